package baddays_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// warmInstance has one of two instances handle many fast messages before slow ones come. It used to
// prefetch all of these.
func warmInstance(t *testing.T) outcome {
	const slow = 120
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	url := brokertest.RabbitMQ(t)
	name := brokertest.Name(t, "sales")
	instance := func(r *runs) {
		runWorker(t, endpoint.Config{Name: name, Transport: &rabbitmq.Transport{URL: url}, Concurrency: 10}, func(ctx context.Context, s *endpoint.Session, w work) error {
			defer r.count(s, w)
			if w.N < 0 {
				return backoff.Sleep(ctx, 2*time.Second)
			}
			return nil
		})
	}
	warm, fresh := newRuns(), newRuns()
	instance(warm)
	p := newRawPublisher(t, url)
	for i := range 20_000 {
		p.publish(name, workMessage(i))
	}
	p.wait()
	warm.wait(ctx, t, 20_000)
	instance(fresh)
	if err := backoff.Sleep(ctx, time.Minute); err != nil {
		t.Fatal(err)
	}
	for i := range slow {
		p.publish(name, workMessage(-1-i))
	}
	p.wait()
	for warm.len()-20_000+fresh.len() < slow {
		select {
		case <-warm.moved:
		case <-fresh.moved:
		case <-ctx.Done():
			t.Fatalf("%d and %d of the slow messages were handled", warm.len()-20_000, fresh.len())
		}
	}
	a, b := warm.len()-20_000, fresh.len()
	if least := min(a, b); least < slow*4/10 {
		t.Errorf("the warm instance handled %d slow messages, the other %d", a, b)
	}
	return outcome{message: fmt.Sprintf("%d and %d of the slow messages are handled by the warm and the fresh instance", a, b), neighbours: "not concerned"}
}
