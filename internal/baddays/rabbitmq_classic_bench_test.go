package baddays_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// BenchmarkRabbitMQClassicAttempts measures how often messages that always fail are attempted, and
// how often they are moved to the quarantine, with three instances on each kind of queue.
func BenchmarkRabbitMQClassicAttempts(b *testing.B) {
	for _, kind := range []rabbitmq.QueueType{rabbitmq.Quorum, rabbitmq.Classic} {
		b.Run(string(kind), func(b *testing.B) {
			for b.Loop() {
				classicAttempts(b, kind)
			}
		})
	}
}

func classicAttempts(b *testing.B, kind rabbitmq.QueueType) {
	const instances, messages = 3, 30
	tr := &rabbitmq.Transport{URL: brokertest.RabbitMQ(b), QueueType: kind}
	var mu sync.Mutex // guards attempts and quarantined
	attempts, quarantined := map[int]int{}, 0
	givenUp := make(chan struct{}, messages)
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	var first *endpoint.Endpoint
	for i := range instances {
		e, err := endpoint.New(endpoint.Config{
			Name: "shop", Transport: tr, Install: true, Instance: fmt.Sprint("i", i), Logger: slog.New(slog.DiscardHandler), Concurrency: 10,
			Messages: []endpoint.Message{endpoint.Command[work]("Test.Work")},
			Handlers: []endpoint.Handler{endpoint.Handle(func(_ context.Context, _ *endpoint.Session, w work) error {
				mu.Lock()
				defer mu.Unlock()
				attempts[w.N]++
				return errors.New("always fails")
			})},
			Recoverability: recoverability.Config{Delays: recoverability.Delays{Delay: time.Second}},
			Notify: []func(context.Context, recoverability.Notification){func(_ context.Context, n recoverability.Notification) {
				if n.Kind == recoverability.Quarantined {
					mu.Lock()
					defer mu.Unlock()
					quarantined++
				}
				if n.Kind == recoverability.MovedToError {
					givenUp <- struct{}{}
				}
			}},
		})
		if err != nil {
			b.Fatal(err)
		}
		running.Go(func() {
			if err := e.Run(ctx); err != nil {
				b.Error(err)
			}
		})
		if err := e.WaitReady(ctx); err != nil {
			b.Fatal(err)
		}
		first = e
	}
	for i := range messages {
		if err := first.SendLocal(ctx, work{N: i}); err != nil {
			b.Fatal(err)
		}
	}
	deadline := time.After(5 * time.Minute)
	for i := range messages {
		select {
		case <-givenUp:
		case <-deadline:
			b.Fatalf("%d of %d messages were given up", i, messages)
		}
	}
	cancel()
	running.Wait()
	counts := slices.Sorted(maps.Values(attempts))
	b.ReportMetric(float64(counts[0]), "attempts-min")
	b.ReportMetric(float64(counts[len(counts)/2]), "attempts-median")
	b.ReportMetric(float64(counts[len(counts)-1]), "attempts-max")
	b.ReportMetric(float64(quarantined), "quarantined")
}

// BenchmarkRabbitMQClassicRetry compares an immediate retry as it is, a return to the queue, with a
// copy of the message, which could carry a count: it is sent, and then the message is completed.
func BenchmarkRabbitMQClassicRetry(b *testing.B) {
	retries := []struct {
		name string
		do   func(transport.Conn, string, transport.Delivery) error
	}{
		{"return", func(_ transport.Conn, _ string, d transport.Delivery) error { return d.Retry(context.Background()) }},
		{"copy", func(c transport.Conn, queue string, d transport.Delivery) error {
			if _, err := c.Dispatch(context.Background(), []transport.Operation{{Queue: queue, Message: d.Message()}}); err != nil {
				return err
			}
			return d.Complete(context.Background())
		}},
	}
	for _, concurrency := range []int{1, 10} {
		for _, retry := range retries {
			b.Run(fmt.Sprintf("%s/c%d", retry.name, concurrency), func(b *testing.B) {
				for b.Loop() {
					rate := classicRetries(b, concurrency, retry.do)
					b.ReportMetric(rate, "retries/s")
				}
			})
		}
	}
}

// classicRetries returns how many retries a second one receiver makes of as many messages as are
// handled at once.
func classicRetries(b *testing.B, concurrency int, retry func(transport.Conn, string, transport.Delivery) error) float64 {
	const total = 5000
	tr := &rabbitmq.Transport{URL: brokertest.RabbitMQ(b), QueueType: rabbitmq.Classic}
	conn, err := tr.Open(b.Context(), transport.Env{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := conn.Close(); err != nil {
			b.Error(err)
		}
	})
	if err := conn.(transport.Installer).Install(b.Context(), transport.Plan{Queues: []transport.Queue{{Name: "q"}}}); err != nil {
		b.Fatal(err)
	}
	for i := range concurrency {
		m := &transport.Message{ID: fmt.Sprint(i), Body: make([]byte, 200)}
		if _, err := conn.Dispatch(b.Context(), []transport.Operation{{Queue: "q", Message: m}}); err != nil {
			b.Fatal(err)
		}
	}
	r, err := conn.OpenReceiver(b.Context(), transport.ReceiverOptions{Queue: "q"})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := r.Close(); err != nil {
			b.Error(err)
		}
	})
	r.Window(concurrency)
	begin := time.Now()
	var handlers sync.WaitGroup
	for done := 0; done < total; {
		ds, err := r.Receive(b.Context(), concurrency)
		if err != nil {
			b.Fatal(err)
		}
		done += len(ds)
		for _, d := range ds {
			handlers.Go(func() {
				if err := retry(conn, "q", d); err != nil {
					b.Error(err)
				}
			})
		}
	}
	handlers.Wait()
	return total / time.Since(begin).Seconds()
}
