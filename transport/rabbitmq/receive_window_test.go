package rabbitmq

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// A process that stops between two messages gives nothing back that it has not asked for: before
// RabbitMQ 4.3 that would count as an attempt.
func TestAWindowOfOnePrefetchesNothing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c, err := (&Transport{URL: brokertest.RabbitMQ(t)}).Open(ctx, transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	queue := brokertest.Name(t, "single")
	err = c.(transport.Installer).Install(ctx, transport.Plan{Queues: []transport.Queue{{Name: queue}}})
	for _, id := range []string{"a", "b"} {
		_, sent := c.Dispatch(ctx, []transport.Operation{{Queue: queue, Message: &transport.Message{ID: id}}})
		err = errors.Join(err, sent)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a", "b"} {
		r, err := c.OpenReceiver(ctx, transport.ReceiverOptions{Queue: queue})
		if err != nil {
			t.Fatal(err)
		}
		r.Window(1)
		ds, err := r.Receive(ctx, 1)
		if err != nil {
			t.Fatal(err)
		}
		if a := ds[0].Attempt(); ds[0].Message().ID != want || a.N != 1 {
			t.Errorf("%s has attempt %+v, want %s with the first", ds[0].Message().ID, a, want)
		}
		if err := errors.Join(ds[0].Complete(ctx), r.Close()); err != nil {
			t.Fatal(err)
		}
	}
}
