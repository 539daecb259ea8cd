package acceptance_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// What a paused endpoint does not handle stays at the broker until the pause ends.
func TestPause(t *testing.T) {
	onBrokers(t, []string{"quorum"}, []string{"postgres"}, func(t *testing.T, broker string) { pauseOn(t, openBroker(t, broker)) })
}

// pauseOn pauses in the middle of work, adds to it, and goes on.
func pauseOn(t *testing.T, broker transport.Transport) {
	const messages = 300
	ctx, cancel := context.WithTimeout(t.Context(), timeLimit)
	defer cancel()
	var seen [messages]atomic.Int32
	handled := make(chan int, 10*messages)
	queue := brokertest.Name(t, "pause")
	cfg := endpoint.Config{
		Name: queue, Transport: broker, Concurrency: 8, Install: true,
		Messages: []endpoint.Message{endpoint.Command[work]("Pause.Work")},
		Handlers: []endpoint.Handler{endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m work) error {
			seen[m.N].Add(1)
			handled <- m.N
			return nil
		})},
	}
	cfg.Recoverability.ErrorQueue = brokertest.Name(t, "error")
	r := start(t, cfg)
	for n := range messages / 2 {
		r.send(work{n}, endpoint.To(queue))
	}
	<-handled
	if err := r.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	during := len(handled)
	for n := messages / 2; n < messages; n++ {
		r.send(work{n}, endpoint.To(queue))
	}
	if n := len(handled); n != during {
		t.Errorf("%d were handled during the pause", n-during)
	}
	if err := errors.Join(r.SetConcurrency(3), r.Resume(ctx)); err != nil {
		t.Fatal(err)
	}
	for range messages - 1 {
		select {
		case <-handled:
		case <-ctx.Done():
			t.Fatal("not all were handled after the pause")
		}
	}
	r.end()
	for n := range seen {
		if count := seen[n].Load(); count != 1 {
			t.Errorf("message %d was handled %d times", n, count)
		}
	}
}
