package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

// cursor goes through a queue on a connection of its own. AMQP cannot read a message in its queue,
// so each is fetched and stays unacknowledged at the broker, hidden from other receivers, until the
// cursor is closed. The cursor itself keeps only the messages of the last Next.
type cursor struct {
	by     *browser
	queue  string
	link   *brokerConn
	ch     *amqp.Channel // in transaction mode, in which the broker confirms acknowledgements
	looks  int64         // delivery count from which a message is replaced by a copy
	left   int           // messages that Browse found and Next has not read
	held   int           // messages that were read and not taken
	copies int           // messages that were replaced
	done   chan struct{} // closed by Close
	seen   map[*transport.Message]*amqp.Delivery
}

// browser is the part of a conn with which tools list messages.
type browser struct {
	*core
	sending *sending
}

// Browse implements [transport.Browser]. While the cursor is open, the messages that it has read
// are hidden from other receivers. Before RabbitMQ 4.3 reading a message of a quorum queue counts
// as a delivery; one that has been read ten times is replaced by a copy at the end of the queue,
// whose count begins again. The copy lacks the property user-id where that is not the user of the
// connection, and its time to live begins again. With [Transport].Management the delivery limit of
// the queue is read, and messages are replaced before they reach it. Browse fails with
// [transport.ErrDeliveryLimit] if the limit permits no return at all.
func (br *browser) Browse(ctx context.Context, queue string) (transport.Cursor, error) {
	found, err := br.lookAt(ctx, queue)
	if err != nil {
		return nil, err
	}
	looks, err := br.looks(ctx, queue)
	if err != nil {
		return nil, err
	}
	cur := &cursor{by: br, queue: queue, looks: looks, left: found.Messages, done: make(chan struct{})}
	if cur.link, err = br.dial(ctx, "browsing"); err != nil {
		return nil, err
	}
	watch := func() {
		select {
		case <-cur.done:
		case <-br.ctx.Done():
		}
		cur.link.close()
	}
	if !br.tasks.Go(watch) {
		cur.link.close()
		return nil, transport.ErrClosed
	}
	err = cur.do(ctx, func() (err error) {
		if cur.ch, err = cur.link.Channel(); err != nil {
			return err
		}
		return cur.ch.Tx()
	})
	if err != nil {
		_ = cur.Close() // never fails
		return nil, err
	}
	return cur, nil
}

// do runs a request to the broker. The end of ctx closes the connection.
func (cur *cursor) do(ctx context.Context, f func() error) error {
	if cur.by.ctx.Err() != nil {
		return transport.ErrClosed
	}
	err := abortable(ctx, cur.link.close, f)
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
		cur.seen[&m] = d
		cur.held++
		renewed, err := cur.renew(ctx, &m)
		if err != nil {
			return nil, err
		}
		if !renewed {
			cur.left--
			size += len(d.Body)
			ms = append(ms, &m)
		}
	}
	return ms, nil
}

// get fetches the next message, nil when there is none. It waits for copies that are not in the
// queue yet.
func (cur *cursor) get(ctx context.Context) (*amqp.Delivery, error) {
	pause := backoff.Backoff{Min: time.Millisecond, Max: 50 * time.Millisecond}
	waiting, cancel := context.WithTimeout(ctx, closeTimeout)
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
		if cur.copies == 0 || pause.Wait(waiting) != nil {
			return nil, ctx.Err()
		}
	}
}

// Take implements [transport.Cursor]: the operations are confirmed before the message is
// acknowledged. One transaction over both could lose what it publishes, when its channel is lost
// before a quorum queue has it.
func (cur *cursor) Take(
	ctx context.Context, m *transport.Message, ops []transport.Operation,
) error {
	if cur.seen[m] == nil {
		return fmt.Errorf("rabbitmq: take a message of %q: %w", cur.queue, transport.ErrNotFound)
	}
	if err := cur.look(ctx, ops); err != nil {
		return err
	}
	if _, err := cur.by.sending.Dispatch(ctx, ops); err != nil {
		return err
	}
	return cur.acknowledge(ctx, m)
}

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

// look finds the operations that the broker would refuse, before any is sent.
func (cur *cursor) look(ctx context.Context, ops []transport.Operation) error {
	var failed []transport.OpError
	for i := range ops {
		err := errNoPublish
		if ops[i].Queue != "" {
			_, err = cur.by.lookAt(ctx, ops[i].Queue)
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

// Close implements [transport.Cursor]: it returns the messages that were not taken to the queue.
func (cur *cursor) Close() error {
	select {
	case <-cur.done:
		return nil
	default:
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if cur.ch != nil && !cur.ch.IsClosed() {
		_ = cur.do(ctx, func() error { return cur.requeue(ctx) })
	}
	close(cur.done)
	return nil
}

// requeue returns all messages with a negative acknowledgement, which from RabbitMQ 4.3 does not
// count. It waits until they are in the queue again, for the next cursor, unless they are received
// meanwhile.
func (cur *cursor) requeue(ctx context.Context) error {
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

// maxLooks is the delivery count from which a message that was read is replaced by a copy: well
// under the 20 after which RabbitMQ 4 drops it.
const maxLooks = 10

// looks returns the delivery count from which a message of a queue is replaced by a copy.
func (br *browser) looks(ctx context.Context, queue string) (int64, error) {
	if br.management == nil || br.version.atLeast(release43) { // reading does not count
		return maxLooks, nil
	}
	q, err := br.management.queue(ctx, queue)
	if err != nil {
		return 0, err
	}
	looks, err := looksWithin(q, br.version)
	return looks, wrap(err, "browse queue %q", queue)
}

// looksWithin returns the delivery count from which a message is replaced, so that it can return
// once more after that.
func looksWithin(q managedQueue, v version) (int64, error) {
	limit, ok := q.limit(v)
	switch {
	case !ok:
		return maxLooks, nil
	case limit.returns < 1:
		return 0, fmt.Errorf("%w: each look is a return, and %s", transport.ErrDeliveryLimit, limit.advice(q))
	}
	return min(maxLooks, limit.returns-1), nil
}

// renew replaces a message that has been delivered so often that the broker might drop it by a copy
// at the end of the queue. If that fails the message stays as it is, and a further look could drop
// it.
func (cur *cursor) renew(ctx context.Context, m *transport.Message) (bool, error) {
	d := cur.seen[m]
	count, _ := integer(d.Headers[deliveryCount])
	if !d.Redelivered || count < cur.looks {
		return false, nil
	}
	if err := cur.by.sending.republish(ctx, cur.queue, d); err != nil {
		if cur.looks < maxLooks {
			return false, fmt.Errorf("rabbitmq: browse queue %q: %w: message %q has returned %d times, and no copy replaces it: %w",
				cur.queue, transport.ErrDeliveryLimit, m.ID, count, err)
		}
		return false, nil
	}
	cur.copies++
	return true, cur.acknowledge(ctx, m)
}
