package rabbitmq_test

import (
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// A caller with direct reply-to gets one reply, and the driver counts the reply as sent. Nothing
// else arrives there.
func TestADirectReplyArrivesOnce(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	c := open(t, url, nil)
	queue := install(t, c, "requests")
	caller := rawChannel(t, url)
	replies, err := caller.Consume("amq.rabbitmq.reply-to", "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	request := amqp.Publishing{MessageId: "r", ReplyTo: "amq.rabbitmq.reply-to", Body: []byte("request")}
	if err := caller.Publish("", queue, true, false, request); err != nil {
		t.Fatal(err)
	}
	d := next(t, receive(t, c, queue, 1))
	address := d.Message().Headers.Get(header.ReplyToAddress)
	if !strings.HasPrefix(address, "amq.rabbitmq.reply-to.") {
		t.Fatalf("the request asks for a reply to %q", address)
	}
	reply := func(body string) transport.Operation {
		return transport.Operation{Queue: address, Message: &transport.Message{ID: "reply", Body: []byte(body)}}
	}
	for _, body := range []string{"first", "second"} {
		if _, err := c.Dispatch(within(t), []transport.Operation{reply(body)}); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-replies:
			if string(got.Body) != body {
				t.Errorf("the caller got %q, want %q", got.Body, body)
			}
		case <-within(t).Done():
			t.Fatal("the caller got no reply")
		}
	}
	late := reply("late")
	late.After = time.Minute
	if _, err := c.Dispatch(within(t), []transport.Operation{late}); err == nil || !strings.Contains(err.Error(), "cannot be delayed") {
		t.Errorf("a delayed reply: %v", err)
	}
	if err := caller.Close(); err != nil {
		t.Fatal(err)
	}
	if got, more := <-replies; more {
		t.Errorf("the caller got %q, too", got.Body)
	}
	if _, err := c.Dispatch(within(t), []transport.Operation{reply("too late"), send1(queue, &transport.Message{ID: "m"})}); err != nil {
		t.Errorf("a reply to a caller that is gone: %v", err)
	}
	if err := d.Complete(within(t)); err != nil {
		t.Error(err)
	}
}
