package rabbitmq

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// After a connection is lost many messages may have to be delayed at once.
func TestManyDelayedMessagesBindTheirQueueOnce(t *testing.T) {
	t.Parallel()
	c := opened(t, brokertest.RabbitMQ(t))
	queue := installed(t, c, "orders")
	p, _, _ := c.publishing.now()
	s, err := p.sender(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var bound atomic.Int32
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			b := batch{by: c.sending, to: p, sender: s}
			to := queueTarget(queue)
			bind := to.bind
			to.bind = func(ch *amqp.Channel, key, exchange string) error {
				bound.Add(1)
				return bind(ch, key, exchange)
			}
			_, err := b.bindDelay(t.Context(), to)
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := bound.Load(); n != 1 {
		t.Errorf("it was bound %d times", n)
	}
}

// The endpoint calls Satellites again after an error.
func TestALookForDeadLettersWithoutAnAnswerIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConn(&core{ctx: t.Context(), schema: schema{
			channels:    channels{log: slog.New(slog.DiscardHandler)},
			deadLetters: deadLetters{queue: "sales.dead-letters"},
		}})
		c.receiving = &supervisor[*receiveConn]{}
		c.receiving.set(nil, errors.New("not connected"))
		if got, err := c.Satellites(t.Context()); len(got) != 0 || err == nil {
			t.Errorf("satellites: %+v, %v", got, err)
		}
	})
}
