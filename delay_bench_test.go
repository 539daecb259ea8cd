package holdfast_test

import (
	"context"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

type reminder struct{ Due time.Time }

// How late delayed messages are when nothing else goes on: docs/guarantees.md has the numbers.
func BenchmarkLatenessOfDelayedMessages(b *testing.B) {
	for name, open := range map[string]func(testing.TB) transport.Transport{
		"inmemory": func(testing.TB) transport.Transport { return &inmemory.Transport{} },
		"sqlite": func(t testing.TB) transport.Transport {
			return &sqlite.Transport{Path: filepath.Join(t.TempDir(), "late.db")}
		},
		"postgres": func(t testing.TB) transport.Transport {
			return &postgres.Transport{URL: brokertest.Postgres(t)}
		},
		"rabbitmq": func(t testing.TB) transport.Transport {
			return &rabbitmq.Transport{URL: brokertest.RabbitMQ(t)}
		},
	} {
		b.Run(name, func(b *testing.B) {
			t := open(b)
			if name == "rabbitmq" { // which keeps whole seconds
				measureLateness(b, t, func(i int, _ time.Duration) time.Duration { return time.Duration(1+i%10) * time.Second })
				return
			}
			// Each far from the next, so that each has to be woken for.
			measureLateness(b, t, func(i int, passed time.Duration) time.Duration {
				return time.Second/2 + time.Duration(i)*20*time.Millisecond - passed
			})
		})
	}
}

func measureLateness(b *testing.B, t transport.Transport, delay func(i int, passed time.Duration) time.Duration) {
	late := make(chan time.Duration, b.N)
	e, err := endpoint.New(endpoint.Config{
		Name: "late", Transport: t, Install: true,
		Messages: []endpoint.Message{endpoint.Command[reminder]("Late.Reminder")},
		Handlers: []endpoint.Handler{endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m reminder) error {
			late <- time.Since(m.Due)
			return nil
		})},
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	if err := e.WaitReady(ctx); err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	for i := range b.N {
		after := delay(i, time.Since(began))
		if err := e.SendLocal(ctx, reminder{Due: time.Now().Add(after)}, endpoint.After(after)); err != nil {
			b.Fatal(err)
		}
	}
	all := make([]time.Duration, b.N)
	for i := range all {
		all[i] = <-late
	}
	stop()
	if err := <-ended; err != nil {
		b.Error(err)
	}
	slices.Sort(all)
	b.ReportMetric(all[len(all)/2].Seconds()*1e3, "p50-ms")
	b.ReportMetric(all[len(all)*99/100].Seconds()*1e3, "p99-ms")
	if all[0] < -5*time.Millisecond {
		b.Errorf("a message came %v early", -all[0])
	}
}
