package acceptance_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// The number of attempts is one number, however many instances share the queue; where the broker
// does not count, it is the most.
func TestInstancesShareAttempts(t *testing.T) {
	first := []string{"memory", notCounting, "quorum"}
	others := []string{"sqlite", "postgres", "servicebus", "sqs"}
	onBrokers(t, first, others, func(t *testing.T, broker string) {
		const messages, instances = 20, 3
		s := &instancesProof{t: t, broker: openBroker(t, broker), attempts: map[string]int{}, by: map[string]int{}}
		s.run(instances, messages)
		const want = (2 + 1) * (3 + 1)
		for i := range messages {
			id := fmt.Sprint("m-", i)
			if got := s.attempts[id]; got > want || got < want && broker != notCounting {
				t.Errorf("%s was tried %d times, want (2+1)·(3+1) = %d", id, got, want)
			}
		}
		if len(s.attempts) != messages || len(s.by) < 2 {
			t.Errorf("%d messages were tried, by %v", len(s.attempts), s.by)
		}
		t.Logf("attempts by instance: %v", s.by)
	})
}

type instancesProof struct {
	t      *testing.T
	broker transport.Transport

	mu       sync.Mutex
	attempts map[string]int // by message
	by       map[string]int // by instance
}

func (p *instancesProof) run(instances, messages int) {
	ctx, cancel := context.WithTimeout(p.t.Context(), timeLimit)
	defer cancel()
	var all []*endpoint.Endpoint
	for i := range instances {
		e, err := endpoint.New(p.config(fmt.Sprint("instance-", i)))
		if err != nil {
			p.t.Fatal(err)
		}
		if err := e.Install(ctx); err != nil {
			p.t.Fatal(err)
		}
		all = append(all, e)
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- endpoint.RunAll(running, all...) }()
	for _, e := range all {
		if err := e.WaitReady(ctx); err != nil {
			p.t.Fatal(err)
		}
	}
	for i := range messages {
		if err := all[0].Send(ctx, placeOrder{}, endpoint.MessageID(fmt.Sprint("m-", i))); err != nil {
			p.t.Fatal(err)
		}
	}
	p.drainErrors(ctx, messages)
	stop()
	if err := <-ended; err != nil {
		p.t.Error(err)
	}
}

func (p *instancesProof) config(instance string) endpoint.Config {
	cfg := sales(p.broker, endpoint.Handle(func(_ context.Context, s *endpoint.Session, _ placeOrder) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.attempts[s.MessageID()]++
		p.by[instance]++
		return errNo
	}))
	cfg.Instance, cfg.Logger = instance, slog.New(slog.DiscardHandler)
	cfg.Recoverability = recoverability.Config{Immediate: 2, Delayed: 3, Delays: recoverability.Delays{Delay: 20 * time.Millisecond}}
	return cfg
}

// drainErrors waits until all messages are in the error queue, once each.
func (p *instancesProof) drainErrors(ctx context.Context, messages int) {
	conn, err := p.broker.Open(ctx, transport.Env{})
	if err != nil {
		p.t.Fatal(err)
	}
	receiver, err := conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: "error"})
	if err != nil {
		p.t.Fatal(err)
	}
	receiver.Window(1)
	found, want := map[string]int{}, map[string]int{}
	for i := range messages {
		want[fmt.Sprint("m-", i)] = 1
		ds, err := receiver.Receive(ctx, 1)
		if err != nil {
			p.t.Fatalf("%d of %d messages are in the error queue: %v", i, messages, err)
		}
		found[ds[0].Message().ID]++
		if err := ds[0].Complete(ctx); err != nil {
			p.t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want, found); diff != "" {
		p.t.Error("the error queue:", diff)
	}
	if err := errors.Join(receiver.Close(), conn.Close()); err != nil {
		p.t.Error(err)
	}
}
