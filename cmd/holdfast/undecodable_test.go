package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// Its headers nest tables deeper than the AMQP client reads.
func TestAMessageThatCannotBeDecodedIsShown(t *testing.T) {
	url := brokertest.RabbitMQ(t)
	setenv(t, transportVar, url)
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
	confirm, err := ch.PublishWithDeferredConfirm("", "error", true, false, amqp.Publishing{
		MessageId: "odd", Headers: amqp.Table{"deep": deepTable(), "readable": "yes"}, Body: []byte("the body"),
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

func TestReadableMessagesAreFoundAmongUndecodable(t *testing.T) {
	t.Parallel()
	const bad = 100
	url := brokertest.RabbitMQ(t)
	setenv(t, transportVar, url)
	must(t, "{}", "send", "--to", "sales", "--create", "--type", "T")
	fail(t, "first", "Shop.Bill", "sales", "timeout", "no answer")
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
	var confirms []*amqp.DeferredConfirmation
	for range bad {
		c, err := ch.PublishWithDeferredConfirm("", "error", true, false, amqp.Publishing{Headers: amqp.Table{"deep": deepTable()}, Body: []byte("bad")})
		if err != nil {
			t.Fatal(err)
		}
		confirms = append(confirms, c)
	}
	for _, c := range confirms {
		if !c.Wait() {
			t.Fatal("the broker did not take a message")
		}
	}
	fail(t, "last", "Shop.Bill", "sales", "timeout", "no answer")

	if out := must(t, "", "errors", "list"); strings.Count(out, "more than 32 deep") != bad || !strings.Contains(out, fmt.Sprint(bad+2, " messages")) {
		t.Errorf("%d messages are listed as undecodable", strings.Count(out, "more than 32 deep"))
	}
	if ids := inQueue(t, "error", "--type", "Shop.Bill"); !slices.Equal(ids, []string{"first", "last"}) {
		t.Errorf("readable: %q", ids)
	}
	if out := must(t, "", "queues", "peek", "error", "--first", "1000"); !strings.Contains(out, "last") {
		t.Error("peek does not show the last message")
	}
}

// deepTable has tables nested deeper than the AMQP client reads.
func deepTable() amqp.Table {
	deep := amqp.Table{}
	for range 40 {
		deep = amqp.Table{"a": deep}
	}
	return deep
}

// The copy in the error queue is readable, and can fail again for lack of the headers that were
// not.
func TestUndecodableHeadersAreReturnedWithTheRest(t *testing.T) {
	onBrokers(t, []string{"sqlite"}, returnUndecodableHeaders)
}

func returnUndecodableHeaders(t *testing.T) {
	must(t, "{}", "send", "--to", "sales", "--create", "--type", "T", "--header", "NServiceBus.MessageId=first")
	must(t, "{}", "send", "--to", "error", "--create", "--type", "T", "--header", "NServiceBus.MessageId=odd",
		"--header", "NServiceBus.FailedQ=sales", "--header", "Holdfast.Undecodable.Headers={saved")
	must(t, "", "errors", "retry", "odd")
	holds(t, "sales", "first", "odd")
	if out := must(t, "", "errors", "show", "odd", "--queue", "sales"); !strings.Contains(out, "Holdfast.Undecodable.Headers: {saved") {
		t.Errorf("returned without the headers:\n%s", out)
	}
}
