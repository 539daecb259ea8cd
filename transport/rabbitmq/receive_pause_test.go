package rabbitmq

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// Handlers that cannot send would only use attempts up.
func TestReceivingPausesWhileNothingCanBeSent(t *testing.T) {
	t.Parallel()
	c := opened(t, brokertest.RabbitMQ(t))
	queue := installed(t, c, "orders")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r, err := c.OpenReceiver(ctx, transport.ReceiverOptions{Queue: queue})
	if err != nil {
		t.Fatal(err)
	}
	r.Window(10)
	message := transport.Message{ID: "m-1", Body: []byte("x")}
	for range 2 {
		if _, err := c.Dispatch(ctx, []transport.Operation{{Queue: queue, Message: &message}}); err != nil {
			t.Fatal(err)
		}
	}
	p, _, err := c.publishing.now()
	if err != nil {
		t.Fatal(err)
	}
	c.publishing.set(nil, errors.New("it was closed"))
	if ds, err := r.Receive(ctx, 10); len(ds) > 0 || err == nil || !strings.Contains(err.Error(), "nothing can be sent: it was closed") {
		t.Errorf("received %d deliveries, %v", len(ds), err)
	}
	c.publishing.set(p, nil)
	for n := 0; n < 2; {
		ds, err := r.Receive(ctx, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range ds {
			n++
			if d.Attempt().N != 1 {
				t.Errorf("attempt %+v", d.Attempt())
			}
			if err := d.Complete(ctx); err != nil {
				t.Error(err)
			}
		}
	}
}
