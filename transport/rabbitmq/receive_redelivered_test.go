package rabbitmq_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// A completed message is not handled again after a lost connection.
func TestCompletedBeforeALostConnection(t *testing.T) {
	t.Parallel()
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
			awaitLoss(t, r)
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
				t.Errorf("redelivered: %v", again)
			}
			nothing(t, r)
			waitEmpty(t, c, broker, queue)
		})
	}
}

// Two messages of another producer have no id and the same content: the second is not acknowledged
// in place of the first when it is redelivered after a failure.
func TestACompletedMessageIsNoOtherOfTheSameContent(t *testing.T) {
	t.Parallel()
	broker := brokertest.RabbitMQ(t)
	proxy := newProxy(t, broker)
	c := open(t, proxy.URL(t, broker), nil)
	queue := install(t, c, "ticks")
	raw := rawChannel(t, broker)
	tick := func() {
		must(t, raw.PublishWithContext(t.Context(), "", queue, false, false, amqp.Publishing{Body: []byte("tick")}))
	}
	r := receive(t, c, queue, 10)
	tick()
	first := next(t, r)
	proxy.Refuse()
	awaitLoss(t, r)
	if err := first.Complete(t.Context()); !errors.Is(err, transport.ErrLeaseLost) {
		t.Error(err)
	}
	for again := false; !again; { // another client receives the first
		d, found, err := raw.Get(queue, true)
		must(t, err)
		again = found && d.Redelivered
	}
	proxy.Resume()
	tick()
	second := next(t, r)
	must(t, second.Retry(t.Context()))
	must(t, next(t, r).Complete(t.Context()))
}

// A message that is unsettled for too long is logged and redelivered.
// The broker's own clock: it requeues messages that are unsettled for too long.
func TestUnsettledForTooLong(t *testing.T) {
	t.Parallel()
	node := rabbitmq.WholeNode(t)
	set := func(name, value string) {
		node.Eval(fmt.Sprintf("application:set_env(rabbit, %s, %s).", name, value))
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
	again, lost := receiveUntilLost(ctx, r)
	if !c.Limits().FreeRelease { // before 4.3 the broker closes the channel
		if !strings.Contains(fmt.Sprint(lost), "consumer_timeout") {
			t.Errorf("receiving said %v", lost)
		}
		again = next(t, r)
	} else if lost != nil {
		t.Fatalf("receiving said %v", lost)
	}
	if err := held.Retry(ctx); !errors.Is(err, transport.ErrLeaseLost) {
		t.Errorf("the late settle: %v", err)
	}
	if a := again.Attempt(); a != (transport.Attempt{N: 2, Exact: true}) {
		t.Errorf("it came again as %+v", a)
	}
	must(t, again.Complete(ctx))
	must(t, c.Close())
	text := logs.String()
	if strings.Count(text, "held for long") != 1 || !strings.Contains(text, "message=long") {
		t.Errorf("the log says\n%s", text)
	}
}

// receiveUntilLost is the next delivery, or the error that came before it.
func receiveUntilLost(ctx context.Context, r transport.Receiver) (transport.Delivery, error) {
	ds, err := r.Receive(ctx, 1)
	if err != nil {
		return nil, err
	}
	return ds[0], nil
}

// From 4.3 a message that is held for too long does not take the others of its channel with it.
func TestAMessageUnsettledForTooLongIsRequeuedAlone(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), func(tr *rabbitmq.Transport) { tr.ConsumerTimeout = 2 * time.Second })
	if !c.Limits().FreeRelease {
		return // as the test above has it
	}
	queue := install(t, c, "orders")
	r := receive(t, c, queue, 2)
	must(t, dispatch(c, send1(queue, message("long", "x"))))
	long := next(t, r)
	var other transport.Delivery
	begin := time.Now()
	for time.Since(begin) < 3*time.Second {
		must(t, dispatch(c, send1(queue, message("short", "x"))))
		if other = next(t, r); other.Message().ID == "long" {
			break
		}
		must(t, other.Complete(t.Context()))
	}
	if a := other.Attempt(); other.Message().ID != "long" || a.N != 2 {
		t.Errorf("after %v %q came as %+v", time.Since(begin), other.Message().ID, a)
	}
	if err := long.Complete(t.Context()); !errors.Is(err, transport.ErrLeaseLost) {
		t.Errorf("the late settle: %v", err)
	}
	must(t, other.Complete(t.Context()))
	waitForReady(t, c, queue, 0)
}

// A prefetched message that waits too long is released, and the release is not counted.
func TestLatePrefetchIsNotCounted(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), func(tr *rabbitmq.Transport) { tr.ConsumerTimeout = time.Second })
	if !c.Limits().FreeRelease {
		return // before 4.3 the broker takes it, with the channel
	}
	queue := install(t, c, "orders")
	receive(t, c, queue, 2) // which prefetches the message, without a call of Receive
	must(t, dispatch(c, send1(queue, message("a", "x"))))
	waitForReady(t, c, queue, 0)
	d := next(t, receive(t, c, queue, 2))
	if a := d.Attempt(); a != (transport.Attempt{N: 1, Exact: true}) {
		t.Errorf("it comes as %+v", a)
	}
	must(t, d.Complete(t.Context()))
	waitForReady(t, c, queue, 0)
}

func TestTimesTooShortAreRefused(t *testing.T) {
	for name, tr := range map[string]rabbitmq.Transport{
		"ConsumerTimeout 1ms": {ConsumerTimeout: time.Millisecond},
		"Heartbeat 500ms":     {Heartbeat: 500 * time.Millisecond},
		"Heartbeat -1s":       {Heartbeat: -time.Second},
	} {
		tr.URL = "amqp://127.0.0.1:1"
		if _, err := tr.Open(t.Context(), transport.Env{}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
