package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.Browser = (*conn)(nil)
	_ transport.Cursor  = (*cursor)(nil)
)

// cursor goes through a queue on a connection of its own. AMQP has no way to look at a
// message where it is, so each is fetched and stays unacknowledged at the broker, hidden from
// others, until the cursor is closed; here only those of the last Next are kept.
type cursor struct {
	conn  *conn
	queue string
	link  *brokerConn
	ch    *amqp.Channel // in transaction mode: the broker says when it has an acknowledgement
	left  int           // messages that were there and have not been looked at
	held  int           // messages that were looked at and not taken
	// copies is how many messages were replaced.
	copies int
	done   chan struct{} // closed by Close
	seen   map[*transport.Message]*amqp.Delivery
}

// Browse implements [transport.Browser]. While the cursor is open, what it has looked at is hidden
// from other receivers. Before RabbitMQ 4.3 looking at a message of a quorum queue counts as
// a hand-out; one that has been looked at ten times is put at the end of the queue as
// a copy with a fresh count, which differs in nothing else but that the property user-id is left out
// where it is not our user's, and that a time to live begins again.
func (c *conn) Browse(ctx context.Context, queue string) (transport.Cursor, error) {
	found, err := c.lookAt(ctx, queue)
	if err != nil {
		return nil, err
	}
	cur := &cursor{
		conn: c, queue: queue, left: found.Messages,
		done: make(chan struct{}),
	}
	if cur.link, err = c.dial(ctx, "browsing"); err != nil {
		return nil, err
	}
	if !c.tasks.start(cur.watch) {
		hangUp(cur.link)
		return nil, transport.ErrClosed
	}
	if err := cur.do(ctx, cur.open); err != nil {
		_ = cur.Close() // never fails
		return nil, err
	}
	return cur, nil
}

// watch ends the connection with the cursor or with the conn.
func (cur *cursor) watch() {
	select {
	case <-cur.done:
	case <-cur.conn.ctx.Done():
	}
	hangUp(cur.link)
}

func (cur *cursor) open() (err error) {
	if cur.ch, err = cur.link.Channel(); err != nil {
		return err
	}
	return cur.ch.Tx()
}

// do asks the broker something. A context that ends takes the connection with it.
func (cur *cursor) do(ctx context.Context, f func() error) error {
	if cur.conn.ctx.Err() != nil {
		return transport.ErrClosed
	}
	err := abortable(ctx, func() { hangUp(cur.link) }, f)
	return wrap(err, "browse queue %q", cur.queue)
}

// maxPage is how many bytes of bodies make a page, whatever its limit.
const maxPage = 16 << 20

// Next implements [transport.Cursor].
func (cur *cursor) Next(ctx context.Context, limit int) (ms []*transport.Message, err error) {
	cur.seen = make(map[*transport.Message]*amqp.Delivery, limit)
	for size := 0; len(ms) < limit && cur.left > 0 && size < maxPage; {
		d, err := cur.get(ctx)
		if err != nil {
			return nil, err
		}
		if d == nil {
			cur.left = 0
			break
		}
		m := decode(d)
		properties(&m, d)
		cur.seen[&m] = d
		cur.held++
		if renewed, err := cur.renew(ctx, &m); renewed || err != nil {
			if err != nil {
				return nil, err
			}
			continue
		}
		cur.left--
		size += len(d.Body)
		ms = append(ms, &m)
	}
	return ms, nil
}

// get fetches the next message, nil when there is none. Copies that are on their way are waited for.
func (cur *cursor) get(ctx context.Context) (*amqp.Delivery, error) {
	pause := backoff.Backoff{Min: time.Millisecond, Max: 50 * time.Millisecond}
	patience, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	for {
		var d amqp.Delivery
		var found bool
		err := cur.do(ctx, func() (err error) {
			d, found, err = cur.ch.Get(cur.queue, false)
			return err
		})
		if err != nil || found {
			return &d, err
		}
		if cur.copies == 0 || pause.Wait(patience) != nil {
			return nil, ctx.Err()
		}
	}
}

// Take implements [transport.Cursor]: the operations are confirmed before the message is acknowledged.
// One transaction over both would lose what it publishes: a quorum queue takes it in after the end
// of a channel that has just died, and then drops it.
func (cur *cursor) Take(ctx context.Context, m *transport.Message, ops []transport.Operation) error {
	if cur.seen[m] == nil {
		return fmt.Errorf("rabbitmq: take a message of %q: %w", cur.queue, transport.ErrNotFound)
	}
	if err := cur.look(ctx, ops); err != nil {
		return err
	}
	if _, err := cur.conn.Dispatch(ctx, ops); err != nil {
		return err
	}
	return cur.acknowledge(ctx, m)
}

// acknowledge takes a message out of the queue that was looked at.
func (cur *cursor) acknowledge(ctx context.Context, m *transport.Message) error {
	tag := cur.seen[m].DeliveryTag
	err := cur.do(ctx, func() error {
		if err := cur.ch.Ack(tag, false); err != nil {
			return err
		}
		return cur.ch.TxCommit()
	})
	if err != nil {
		return fmt.Errorf("%w: %w", err, transport.ErrOutcomeUnknown)
	}
	delete(cur.seen, m)
	cur.held--
	return nil
}

var errNoPublish = errors.New("rabbitmq: a cursor sends to queues only")

// look finds out what the broker would refuse before anything is sent.
func (cur *cursor) look(ctx context.Context, ops []transport.Operation) error {
	var failed []transport.OpError
	for i := range ops {
		err := errNoPublish
		if ops[i].Queue != "" {
			_, err = cur.conn.lookAt(ctx, ops[i].Queue)
		}
		if err != nil {
			failed = append(failed, transport.OpError{Index: i, Err: err})
		}
	}
	if len(failed) > 0 {
		return &transport.DispatchError{Ops: failed, Total: len(ops)}
	}
	return nil
}

// Close implements [transport.Cursor]: the broker gives back what was not taken.
func (cur *cursor) Close() error {
	select {
	case <-cur.done:
		return nil
	default:
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if cur.ch != nil && !cur.ch.IsClosed() {
		_ = cur.do(ctx, func() error { return cur.giveBack(ctx) })
	}
	close(cur.done)
	return nil
}

// giveBack returns everything with a negative acknowledgement, which from RabbitMQ 4.3 does not
// count. It waits until the messages are there again, unless others take them meanwhile: who looks
// next should see them.
func (cur *cursor) giveBack(ctx context.Context) error {
	if err := cur.ch.Nack(0, true, true); err != nil {
		return err
	}
	if err := cur.ch.TxCommit(); err != nil {
		return err
	}
	pause := backoff.Backoff{Min: time.Millisecond, Max: 50 * time.Millisecond}
	for {
		found, err := cur.ch.QueueDeclarePassive(cur.queue, true, false, false, false, nil)
		if err != nil || found.Messages >= cur.held {
			return err
		}
		if err := pause.Wait(ctx); err != nil {
			return err
		}
	}
}

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
	if err := b.send(ctx, 0, route{"", queue, true}, copyOf(d, b.to.conn.user)); err != nil {
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
