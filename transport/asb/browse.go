package asb

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/transport"
)

const (
	// maxPage is how many messages a request browses.
	maxPage = 250
	// takeTimeout bounds the wait for a message that the service shows and does not deliver,
	// because another receiver has it.
	takeTimeout = 3 * time.Second
	// takeBatch is how many messages are received at once to reach one.
	takeBatch = 50
)

var _ transport.Cursor = (*cursor)(nil)

// cursor browses messages without receiving them. To take a message it receives those before it
// too, which stay locked until the cursor is closed or their locks expire.
type cursor struct {
	*receiver
	next, last int64 // sequence numbers: of the next message, and of the last one when the cursor was opened
	seen       map[*transport.Message]int64
	locked     map[int64]*delivery // received before the message to be taken
	limit      deliveryLimit
}

// Browse implements [transport.Browser]. Browsing does not change delivery counts. Taking a message
// counts as a delivery of those before it that are not taken: it fails with
// [transport.ErrDeliveryLimit] if the queue's MaxDeliveryCount leaves too few deliveries to them.
func (c *conn) Browse(ctx context.Context, queue string) (transport.Cursor, error) {
	r, err := c.OpenReceiver(ctx, transport.ReceiverOptions{Queue: queue})
	if err != nil {
		return nil, err
	}
	cur := &cursor{receiver: r.(*receiver), locked: map[int64]*delivery{}} //nolint:errcheck // the driver's own
	if err = cur.readLimit(ctx); err == nil {
		cur.last, err = cur.end(ctx)
	}
	if err != nil {
		_ = cur.Close() // never fails
		return nil, err
	}
	return cur, nil
}

// peek browses messages from a sequence number on.
func (cur *cursor) peek(ctx context.Context, from int64, limit int) (msgs []*azservicebus.ReceivedMessage, err error) {
	ctx, cancel := joined(ctx, cur.ctx)
	defer cancel()
	own, err := cur.supervisor.throttle.wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("asb: browse queue %q: %w: %w", cur.queue, errBusy, err)
	}
	defer func() { own.end(err) }()
	msgs, err = cur.supervisor.browse(ctx, cur.settler.on, from, limit)
	partitioned := func(raw *azservicebus.ReceivedMessage) bool { return *raw.SequenceNumber>>partitionBits != 0 }
	if slices.ContainsFunc(msgs, partitioned) {
		err = errPartitioned
	}
	if cur.ctx.Err() != nil {
		return nil, transport.ErrClosed
	}
	return msgs, wrap(err, "browse queue %q", cur.queue)
}

var errPartitioned = errors.New("the queue is partitioned: the service shows one message of some partition at a time, so its messages cannot be listed or counted without receiving them. Use a tool that receives, or a queue without partitions")

// partitionBits is how many bits of a sequence number count within a partition; those above are the
// partition's number. https://learn.microsoft.com/azure/service-bus-messaging/message-sequencing
const partitionBits = 48

// end returns the sequence number of the last message. The broker finds the next message from a
// number on: end doubles its steps until none is found, and then bisects.
func (cur *cursor) end(ctx context.Context) (last int64, err error) {
	low, high := int64(0), int64(math.MaxInt64) // the last is at low or beyond, and before high
	for step := int64(1); low < high; {
		at := low
		switch {
		case high < math.MaxInt64:
			at = low + (high-low)/2
		case last > 0:
			at = low + min(step, high-low-1)
			step *= 2
		}
		found, err := cur.peek(ctx, at, 1)
		switch {
		case err != nil:
			return 0, err
		case len(found) > 0:
			last = *found[0].SequenceNumber
			low = last + 1
		case at == low:
			return last, nil
		default:
			high = at
		}
	}
	return last, nil
}

// Next implements [transport.Cursor]. It does not return delayed and deferred messages.
func (cur *cursor) Next(ctx context.Context, limit int) (ms []*transport.Message, err error) {
	cur.seen = make(map[*transport.Message]int64, limit)
	for len(ms) == 0 && cur.next <= cur.last {
		found, err := cur.peek(ctx, cur.next, min(limit, maxPage))
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			cur.next = cur.last + 1
		}
		for _, raw := range found {
			number := *raw.SequenceNumber
			cur.next = number + 1
			if number > cur.last || raw.State != azservicebus.MessageStateActive {
				continue
			}
			m := decode(raw)
			cur.seen[&m] = number
			ms = append(ms, &m)
		}
	}
	return ms, nil
}

// Take implements [transport.Cursor]: the operations are sent before the message is completed,
// while it is locked.
func (cur *cursor) Take(ctx context.Context, m *transport.Message, ops []transport.Operation) error {
	number, ok := cur.seen[m]
	if !ok {
		return cur.notFound()
	}
	if err := cur.look(ctx, ops); err != nil {
		return err
	}
	d, err := cur.lock(ctx, number)
	if err != nil {
		return err
	}
	if _, err := cur.conn.Dispatch(ctx, ops); err != nil {
		return err
	}
	if err := d.Complete(ctx); err != nil {
		return fmt.Errorf("%w: %w", err, transport.ErrOutcomeUnknown)
	}
	delete(cur.locked, number)
	delete(cur.seen, m)
	return nil
}

// look returns an error if a destination cannot be sent to, before the first operation is sent.
func (cur *cursor) look(ctx context.Context, ops []transport.Operation) error {
	messages := make([]outgoing, len(ops))
	for i := range ops {
		m := &messages[i]
		to, err := cur.conn.prepare(&ops[i], m, time.Now())
		if m.err = err; err == nil && !m.publish {
			m.err = to.withLink(ctx, func(context.Context, *messageBatch) error { return nil })
		}
	}
	_, err := results(messages)
	return err
}

func (cur *cursor) notFound() error {
	return fmt.Errorf("asb: take a message of %q: %w", cur.queue, transport.ErrNotFound)
}

// lock receives until the message comes.
func (cur *cursor) lock(ctx context.Context, number int64) (*delivery, error) {
	if d := cur.locked[number]; d != nil {
		err := cur.renew(ctx, d)
		if !errors.Is(err, transport.ErrLeaseLost) {
			return d, err
		}
		delete(cur.locked, number)
	}
	switch found, err := cur.peek(ctx, number, 1); {
	case err != nil:
		return nil, err
	case len(found) == 0 || *found[0].SequenceNumber != number:
		return nil, cur.notFound()
	}
	for {
		d, err := cur.more(ctx, number)
		if d != nil || err != nil {
			return d, err
		}
	}
}

// more receives some messages, and returns the wanted one if it is among them.
func (cur *cursor) more(ctx context.Context, number int64) (wanted *delivery, err error) {
	spare, err := cur.spare(ctx)
	if err != nil {
		return nil, err
	}
	short, cancel := context.WithTimeout(ctx, takeTimeout)
	defer cancel()
	ds, err := cur.Receive(short, min(takeBatch, spare))
	if err != nil {
		if short.Err() != nil && ctx.Err() == nil {
			err = cur.notFound()
		}
		return nil, err
	}
	cur.received(ds)
	return cur.locked[number], nil
}

// Close implements [transport.Cursor]: messages that were received and not taken are released.
func (cur *cursor) Close() error {
	cur.shut()
	cur.leave()
	return nil
}
