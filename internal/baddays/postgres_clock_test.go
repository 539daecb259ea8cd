package baddays_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

// postgresClock sets the clock of the server by an hour while a message is handled, others are
// ready, others are delayed, and a row waits in an outbox.
func postgresClock(step time.Duration) func(t *testing.T) outcome {
	return func(t *testing.T) outcome {
		node, clock := brokertest.ClockPostgres(t)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		p := &patient{log: &records{}, orderDay: &orderDay{
			t: t, ctx: ctx, attempts: map[int]int{}, handled: map[int]int{},
			queue: brokertest.Name(t, "orders"), errors: brokertest.Name(t, "error"),
			broker: &postgres.Transport{URL: node.URL, Lease: 10 * time.Second},
		}}
		p.sound = p.broker
		gate := make(chan struct{})
		p.run(func(n int) error {
			if n == 0 {
				<-gate
			}
			return nil
		}, func(cfg *endpoint.Config) {
			cfg.Logger, cfg.Concurrency = slog.New(p.log), 1
		})
		outbox := startClockOutbox(ctx, t, node.URL)

		const ready = 50
		p.send(0, ready, p.queue)
		outbox.store()
		p.await("a message to be handled", func() bool { return p.tries(0) > 0 })
		began := time.Now()
		clock.Set(step)
		must(t, p.sendFromElsewhere(ready, 2*time.Second)) // early or late by the clock, but not by the step
		for _, since := range []time.Duration{0, 5 * time.Second} {
			<-time.After(time.Until(began.Add(since)))
			if h := p.endpoint.Health(); !h.Ready || !h.Live || len(h.Reasons)+len(h.Warnings) > 0 {
				t.Errorf("%v after the step: %+v", since, h)
			}
		}
		close(gate)
		freed := time.Now()
		p.await("all messages to be handled", func() bool {
			for n := range ready + 1 {
				if p.tries(n) == 0 {
					return false
				}
			}
			return true
		})
		outbox.await()
		normal := time.Since(freed)
		for n := range ready + 1 {
			if tries := p.tries(n); tries > 1 && (step < 0 || n > 0) {
				t.Errorf("message %d was handled %d times", n, tries)
			}
		}
		if lines := p.log.since(began, slog.LevelWarn); lines != 1 {
			t.Errorf("the log has %d warnings, want one about the step\n%s", lines, p.log)
		}
		clock.Set(0)
		p.handle(ready + 1)
		p.awaitHealth("", true)
		return outcome{
			message:    fmt.Sprintf("the message that was handled meanwhile: %d attempts", p.tries(0)),
			neighbours: fmt.Sprintf("%d ready messages are handled once each, and the row of the outbox is sent", ready-1),
			normal:     normal,
		}
	}
}

// tries returns the number of attempts of a message.
func (d *orderDay) tries(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.attempts[n]
}

// clockOutbox is an endpoint whose broker is away at first, and whose outbox is in a database.
type clockOutbox struct {
	*orderDay
	away atomic.Bool
	sink *inmemory.Transport
}

func startClockOutbox(ctx context.Context, t *testing.T, url string) *clockOutbox {
	t.Helper()
	o := &clockOutbox{orderDay: &orderDay{
		t: t, ctx: ctx, attempts: map[int]int{}, handled: map[int]int{}, queue: "away", errors: "error",
	}, sink: &inmemory.Transport{}}
	o.away.Store(true)
	o.sink.CreateQueues("sink")
	o.sink.Fail = func(verb, _ string) error {
		if verb == "Dispatch" && o.away.Load() {
			return transport.ErrUnreachable
		}
		return nil
	}
	o.broker = o.sink
	o.run(func(int) error { return nil }, func(cfg *endpoint.Config) {
		cfg.Outbox = &postgres.Transport{URL: url}
	})
	return o
}

// store stores a message in the outbox, which the broker does not take.
func (o *clockOutbox) store() {
	o.t.Helper()
	must(o.t, o.endpoint.Send(o.ctx, order{1}, endpoint.To("sink"), endpoint.ViaOutbox()))
}

// await has the broker take messages, and waits for the stored one.
func (o *clockOutbox) await() {
	o.t.Helper()
	o.away.Store(false)
	o.orderDay.await("the row of the outbox to be sent", func() bool { return len(o.sink.Messages("sink")) == 1 })
}
