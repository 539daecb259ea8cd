package rabbitmq

import (
	"context"
	"maps"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/transport"
)

// maxLooks is the delivery count from which a message that was looked at is put back as a fresh copy:
// well under the 20 after which RabbitMQ 4 drops it.
const maxLooks = 10

// renew replaces a message that has been handed out so often that the broker might drop it by
// a copy, which comes at the end of the queue. Where that fails the message stays as it is.
func (cur *cursor) renew(ctx context.Context, m *transport.Message) (bool, error) {
	d := cur.seen[m]
	if count, _ := integer(d.Headers[deliveryCount]); !d.Redelivered || count < maxLooks || cur.conn.republish(ctx, cur.queue, d) != nil {
		return false, nil
	}
	cur.copies++
	return true, cur.acknowledge(ctx, m)
}

// republish puts a copy of a message at the end of a queue.
func (c *conn) republish(ctx context.Context, queue string, d *amqp.Delivery) error {
	b, err := c.newBatch(ctx)
	if err != nil {
		return err
	}
	if err := b.send(ctx, 0, route{"", queue, true}, copyOf(d, c.dialer.user)); err != nil {
		return err
	}
	return b.answer(ctx, b.flight[0].sent)
}

// copyOf is a message as it came, with what the broker has written on its way: where a delayed one was to go,
// and why one was given up. The count of its hand-outs begins again, it goes to one queue only, and the
// broker takes no user but ours.
func copyOf(d *amqp.Delivery, ours string) *amqp.Publishing {
	table := maps.Clone(d.Headers)
	maps.DeleteFunc(table, func(name string, _ any) bool {
		return name == deliveryCount || name == acquiredCount || routes(name)
	})
	msg := &amqp.Publishing{
		Headers: table, Body: d.Body,
		ContentType: d.ContentType, ContentEncoding: d.ContentEncoding,
		DeliveryMode: d.DeliveryMode, Priority: d.Priority, Expiration: d.Expiration,
		CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, MessageId: d.MessageId,
		Timestamp: d.Timestamp, Type: d.Type, AppId: d.AppId,
	}
	if d.UserId == ours {
		msg.UserId = ours
	}
	return msg
}
