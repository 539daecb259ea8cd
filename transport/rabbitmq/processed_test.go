package rabbitmq_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

func TestWhatWasDoneWhenItsAcknowledgementWasLostIsNotHandedOutAgain(t *testing.T) {
	for _, kind := range []rabbitmq.QueueType{rabbitmq.Quorum, rabbitmq.Classic} {
		t.Run(string(kind), func(t *testing.T) {
			broker := brokertest.RabbitMQ(t)
			proxy := newProxy(t, broker)
			c := open(t, proxy.URL(t, broker), func(tr *rabbitmq.Transport) { tr.QueueType = kind })
			queue := install(t, c, "orders")
			r := receive(t, c, queue, 10)
			for _, id := range []string{"done", "failed", "left", "done too"} {
				must(t, dispatch(c, send1(queue, message(id, id))))
			}
			held := nextN(t, r, 4)
			proxy.Refuse()
			if _, err := r.Receive(within(t), 1); err == nil {
				t.Fatal("the loss is not noticed")
			}
			for i, settle := range []func(context.Context) error{held[0].Complete, held[1].Retry, held[3].Complete} {
				if err := settle(t.Context()); !errors.Is(err, transport.ErrLeaseLost) {
					t.Errorf("settle %d: %v", i, err)
				}
			}
			proxy.Resume()
			again := map[string]bool{}
			for _, d := range nextN(t, r, 2) {
				again[d.Message().ID] = true
				must(t, d.Complete(t.Context()))
			}
			if !again["failed"] || !again["left"] {
				t.Errorf("handed out again: %v", again)
			}
			nothing(t, r)
			waitEmpty(t, c, broker, queue)
		})
	}
}

// The broker's own clock: it takes back what is held for too long.
func TestAMessageHeldForTooLongIsWarnedOfAndComesAgain(t *testing.T) {
	node := brokertest.OwnRabbitMQ(t)
	set := func(name, value string) {
		node.Control("eval", fmt.Sprintf("application:set_env(rabbit, %s, %s).", name, value))
	}
	set("channel_tick_interval", "1000")
	set("consumer_timeout", "5000")
	defer set("channel_tick_interval", "60000")
	defer set("consumer_timeout", "1800000")

	var logs lockedBuffer
	tr := &rabbitmq.Transport{URL: node.URL, ConsumerTimeout: 5 * time.Second}
	c, err := tr.Open(within(t), transport.Env{Endpoint: "test", Logger: slog.New(slog.NewTextHandler(&logs, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Limits().MaxHold; got != 5*time.Second {
		t.Errorf("MaxHold is %v", got)
	}
	queue := install(t, c, "orders")
	r := receive(t, c, queue, 1)
	must(t, dispatch(c, send1(queue, message("long", "x"))))
	held := next(t, r)

	ctx := within(t)
	var lost error
	for lost == nil && ctx.Err() == nil {
		_, lost = r.Receive(ctx, 1)
	}
	if !strings.Contains(fmt.Sprint(lost), "consumer_timeout") {
		t.Errorf("receiving said %v", lost)
	}
	if err := held.Retry(ctx); !errors.Is(err, transport.ErrLeaseLost) {
		t.Errorf("the late settle: %v", err)
	}
	must(t, next(t, r).Complete(ctx))
	must(t, c.Close())
	text := logs.String()
	if strings.Count(text, "held for long") != 1 || !strings.Contains(text, "message=long") {
		t.Errorf("the log says\n%s", text)
	}
}

func TestAConsumerTimeoutTooShortIsRefused(t *testing.T) {
	tr := &rabbitmq.Transport{URL: "amqp://127.0.0.1:1", ConsumerTimeout: time.Millisecond}
	if _, err := tr.Open(t.Context(), transport.Env{}); err == nil || !strings.Contains(err.Error(), "ConsumerTimeout") {
		t.Errorf("%v", err)
	}
}
