package rabbitmq_test

import (
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// RabbitMQ tries at most 32 messages of a queue at a time, and a refused one again after 3 minutes
// only.
func TestDelaysToAFullQueueHoldUpOnlyEachOther(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	c := open(t, url, nil)
	raw := rawChannel(t, url)
	args := amqp.Table{"x-queue-type": "quorum", "x-max-length": 1, "x-overflow": "reject-publish"}
	for _, full := range []string{"full", "subscriber"} {
		if _, err := raw.QueueDeclare(full, true, false, false, false, args); err != nil {
			t.Fatal(err)
		}
		must(t, dispatch(c, send1(full, message("first", "x"))))
	}
	must(t, raw.ExchangeDeclare("subscriber", amqp.ExchangeFanout, true, false, false, false, nil))
	must(t, raw.QueueBind("subscriber", "", "subscriber", false, nil))
	must(t, c.(transport.Subscriber).Subscribe(within(t), "subscriber", []string{"Shop.Placed"}))
	queue := install(t, c, "orders")

	var ops []transport.Operation
	for i := range 40 {
		ops = append(ops, delayed("full", fmt.Sprint("full", i), time.Second))
		event := publish1(message(fmt.Sprint("event", i), "x"), "Shop.Placed")
		event.After = time.Second
		ops = append(ops, event)
	}
	for i := range 40 { // these are due after those
		ops = append(ops, delayed(queue, fmt.Sprint("fine", i), time.Second))
	}
	must(t, dispatch(c, ops...))
	r := receive(t, c, queue, 10)
	for range 40 {
		must(t, next(t, r).Complete(t.Context()))
	}
	nothing(t, r)
}
