package rabbitmq

import (
	"bytes"
	"errors"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// sendsOn returns the connection that c sends on.
func sendsOn(t *testing.T, c *conn) *publisher {
	t.Helper()
	p, _, err := c.publishing.now()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The broker closes the channel over a body larger than it takes. That size the driver cannot ask
// for.
func TestABodyTooLargeForTheBrokerEndsNoConnection(t *testing.T) {
	t.Parallel()
	node := WholeNode(t)
	set := func(size string) {
		node.Eval("application:set_env(rabbit, max_message_size, " + size + "), persistent_term:put(max_message_size, " + size + ").")
	}
	set("100000")
	t.Cleanup(func() { set("16777216") })
	c := opened(t, node.URL)
	queue := installed(t, c, "orders")
	send := func(size int) error {
		m := &transport.Message{ID: "m-1", Body: bytes.Repeat([]byte("x"), size)}
		_, err := c.Dispatch(t.Context(), []transport.Operation{{Queue: queue, Message: m}})
		return err
	}
	first := sendsOn(t, c)
	if err := send(200_000); !errors.Is(err, transport.ErrOutcomeUnknown) {
		t.Errorf("the first large message: %v", err)
	}
	if err := send(100_000); err != nil {
		t.Error(err)
	}
	var tooLarge *transport.TooLargeError
	if err := send(200_000); !errors.As(err, &tooLarge) || tooLarge.Max != 100_000 {
		t.Errorf("the second large message: %v", err)
	}
	if sendsOn(t, c) != first {
		t.Error("another connection sends now")
	}
	if q, err := c.lookAt(t.Context(), queue); err != nil || q.Messages != 1 {
		t.Errorf("%d messages in the queue, %v", q.Messages, err)
	}
}

// An exchange that is deleted after the first publish ends the channel. It is declared again on the
// next one.
func TestADeletedExchangeEndsNoConnection(t *testing.T) {
	t.Parallel()
	c := opened(t, brokertest.RabbitMQ(t))
	publish := func() error {
		m := &transport.Message{ID: "m-1", Body: []byte("x")}
		_, err := c.Dispatch(t.Context(), []transport.Operation{{Types: []string{"Shop.Gone"}, Message: m}})
		return err
	}
	if err := publish(); err != nil {
		t.Fatal(err)
	}
	first := sendsOn(t, c)
	err := c.onChannel(t.Context(), func(ch *amqp.Channel) error { return ch.ExchangeDelete("Shop:Gone", false, false) })
	if err != nil {
		t.Fatal(err)
	}
	if err := publish(); !errors.Is(err, transport.ErrOutcomeUnknown) {
		t.Errorf("published to an exchange that was deleted: %v", err)
	}
	if err := publish(); err != nil {
		t.Error(err)
	}
	if sendsOn(t, c) != first {
		t.Error("another connection sends now")
	}
}
