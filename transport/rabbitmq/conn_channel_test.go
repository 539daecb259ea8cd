package rabbitmq

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// An endpoint looks at its quarantine every few seconds for as long as it lives.
func TestLookingAtQueuesOpensNoChannelEachTime(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	opened, err := (&Transport{URL: brokertest.RabbitMQ(t)}).Open(ctx, transport.Env{Endpoint: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	c := opened.(*conn)
	if err := c.Install(ctx, transport.Plan{Queues: []transport.Queue{{Name: "orders"}}}); err != nil {
		t.Fatal(err)
	}
	channel := func() *amqp.Channel {
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if _, err := c.Inspect(ctx, "orders"); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		w, _, _ := c.receiving.now()
		return w.asked
	}
	first := channel()
	if second := channel(); second != first {
		t.Error("another channel was opened")
	}
	if _, err := c.Inspect(ctx, "absent"); !errors.Is(err, transport.ErrNoQueue) {
		t.Errorf("a missing queue: %v", err)
	}
	if third := channel(); third == first {
		t.Error("a channel that a refusal has closed was used again")
	}
}
