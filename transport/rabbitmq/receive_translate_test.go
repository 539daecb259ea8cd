package rabbitmq

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/transport"
)

// Translate is not called by the goroutines that receive: a message for which it hangs would hold
// up all others.
func TestTranslateIsLeftToTheEndpoint(t *testing.T) {
	called := false
	c, _ := lostChannel(0)
	c.receiver.of.translate = func(*transport.Message) { called = true }
	c.push(&consumer{}, &amqp.Delivery{MessageId: "a"})
	if called || len(c.waiting) != 1 {
		t.Errorf("a receiver calls Translate: %v; %d messages wait", called, len(c.waiting))
	}
	if c.receiver.of.Translation()(nil); !called {
		t.Error("the endpoint does not get Translate")
	}
}
