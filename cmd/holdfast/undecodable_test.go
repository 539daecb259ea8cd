package main

import (
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// Its headers nest tables deeper than the AMQP client reads.
func TestAMessageThatCannotBeDecodedIsShown(t *testing.T) {
	url := brokertest.RabbitMQ(t)
	t.Setenv(transportVar, url)
	must(t, "{}", "send", "--to", "sales", "--create", "--type", "T")
	fail(t, "before", "Shop.Bill", "sales", "timeout", "no answer")
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		t.Fatal(err)
	}
	deep := amqp.Table{}
	for range 40 {
		deep = amqp.Table{"a": deep}
	}
	confirm, err := ch.PublishWithDeferredConfirm("", "error", true, false, amqp.Publishing{
		MessageId: "odd", Headers: amqp.Table{"deep": deep, "readable": "yes"}, Body: []byte("the body"),
	})
	if err != nil || !confirm.Wait() {
		t.Fatal(err)
	}
	fail(t, "behind", "Shop.Bill", "sales", "timeout", "no answer")

	holds(t, "error", "before", "odd", "behind")
	for _, args := range [][]string{{"errors", "list"}, {"errors", "show", "odd"}, {"queues", "peek", "error"}} {
		if out := must(t, "", args...); !strings.Contains(out, "more than 32 deep") {
			t.Errorf("%q does not say what cannot be decoded:\n%s", args, out)
		}
	}
	if out := must(t, "", "errors", "show", "odd"); !strings.Contains(out, "the body") || !strings.Contains(out, "readable: yes") {
		t.Errorf("the rest is not shown:\n%s", out)
	}
	must(t, "", "errors", "retry", "before", "behind")
	holds(t, "error", "odd")
}
