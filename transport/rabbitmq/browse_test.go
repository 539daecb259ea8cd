package rabbitmq_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// browsed is a conn, a channel and a cursor on a queue of so many messages.
func browsed(t *testing.T, messages int) (conn transport.Conn, ch *amqp.Channel) {
	t.Helper()
	url := brokertest.RabbitMQ(t)
	conn, err := (&rabbitmq.Transport{URL: url}).Open(t.Context(), transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	raw, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = raw.Close() })
	if ch, err = raw.Channel(); err != nil {
		t.Fatal(err)
	}
	plan := transport.Plan{Queues: []transport.Queue{{Name: "error"}}}
	if err := conn.(transport.Installer).Install(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	var ops []transport.Operation
	for i := range messages {
		m := &transport.Message{ID: fmt.Sprint("m-", i), Body: []byte("{}")}
		m.Headers.Set(header.MessageID, m.ID)
		ops = append(ops, transport.Operation{Message: m, Queue: "error"})
	}
	if _, err := conn.Dispatch(t.Context(), ops); err != nil {
		t.Fatal(err)
	}
	return conn, ch
}

func cursorOn(t *testing.T, conn transport.Conn) transport.Cursor {
	t.Helper()
	cur, err := conn.(transport.Browser).Browse(t.Context(), "error")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cur.Close() })
	return cur
}

func nextOf(t *testing.T, cur transport.Cursor, limit int) []*transport.Message {
	t.Helper()
	ms, err := cur.Next(t.Context(), limit)
	if err != nil {
		t.Fatal(err)
	}
	return ms
}

// What a full queue refuses stays where it is, and Take says so.
func TestTakingForAFullQueueLosesNothing(t *testing.T) {
	t.Parallel()
	const messages = 8
	conn, ch := browsed(t, messages)
	_, err := ch.QueueDeclare("sales", true, false, false, false, amqp.Table{
		"x-queue-type": "quorum", "x-max-length": int32(2), "x-overflow": "reject-publish",
	})
	if err != nil {
		t.Fatal(err)
	}
	cur := cursorOn(t, conn)
	taken := 0
	for _, m := range nextOf(t, cur, messages) {
		err := cur.Take(t.Context(), m, []transport.Operation{{Message: m, Queue: "sales"}})
		var refused *transport.DispatchError
		switch {
		case err == nil:
			taken++
		case !errors.As(err, &refused):
			t.Fatal(err)
		}
	}
	if taken < 2 || taken == messages {
		t.Errorf("%d were taken, want those that there is room for", taken)
	}
	if err := cur.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, ch, messages-taken)
}

// The copy that is made after ten reads has the headers about the message's origin and destination.
func TestLookingAtAMessageOftenChangesNothingAboutIt(t *testing.T) {
	t.Parallel()
	conn, ch := browsed(t, 0)
	_, err := ch.QueueDeclare("waiting", true, false, false, false, amqp.Table{
		"x-message-ttl": int32(0), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "error",
	})
	must(t, err)
	must(t, ch.PublishWithContext(t.Context(), "", "waiting", false, false, amqp.Publishing{
		Headers: amqp.Table{"Shop.Count": int32(7), "Holdfast.Delay.ExpiresAt": "1"}, Body: []byte("{}"), MessageId: "m-1",
		AppId: "shop", ContentEncoding: "gzip", Priority: 3, Timestamp: time.Unix(1_700_000_000, 0), UserId: "guest", Type: "Shop.Order",
	}))
	eventually(t, ch, 1)
	var first amqp.Delivery
	for look := range 14 {
		cur := cursorOn(t, conn)
		if ms := nextOf(t, cur, 10); len(ms) != 1 || ms[0].Native["x-death"] == "" {
			t.Fatalf("look %d shows %+v", look, ms)
		}
		must(t, cur.Close())
		if look > 0 && look < 13 {
			continue
		}
		d, found, err := ch.Get("error", false)
		if err != nil || !found {
			t.Fatal(found, err)
		}
		must(t, d.Nack(false, true))
		d.Acknowledger, d.DeliveryTag, d.Redelivered = nil, 0, false
		delete(d.Headers, "x-delivery-count")
		if look == 0 {
			first = d
		} else if diff := cmp.Diff(first, d); diff != "" {
			t.Error(diff)
		}
		eventually(t, ch, 1)
	}
}

func TestAConnThatClosesEndsItsCursors(t *testing.T) {
	t.Parallel()
	conn, ch := browsed(t, 3)
	cur := cursorOn(t, conn)
	m := nextOf(t, cur, 1)[0]
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := cur.Next(t.Context(), 1); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("Next: %v, want ErrClosed", err)
	}
	if err := cur.Take(t.Context(), m, nil); err == nil {
		t.Error("Take has worked")
	}
	eventually(t, ch, 3)
}

func TestAContextThatEndsEndsTheLooking(t *testing.T) {
	t.Parallel()
	conn, ch := browsed(t, 3)
	cur := cursorOn(t, conn)
	nextOf(t, cur, 2)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := cur.Next(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("Next: %v, want that of its context", err)
	}
	eventually(t, ch, 3)
}

// eventually waits until the broker has so many messages in the queue again.
func eventually(t *testing.T, ch *amqp.Channel, want int) {
	t.Helper()
	for ctx := within(t); ; {
		found, err := ch.QueueDeclarePassive("error", true, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		if found.Messages == want {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("%d messages, want %d", found.Messages, want)
		}
	}
}
