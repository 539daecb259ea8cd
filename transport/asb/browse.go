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
	// maxPage is how many messages are looked at by one request.
	maxPage = 250
	// takeTimeout is how long a message is waited for that is there and is not handed out: somebody else has it.
	takeTimeout = 3 * time.Second
	// takeBatch is how many messages are received at once on the way to one that is to be taken.
	takeBatch = 50
)

var _ transport.Cursor = (*cursor)(nil)

// cursor looks at messages without receiving them. To take one that waits behind others, those have to be received too: they stay
// locked until the cursor is closed, or their locks run out.
type cursor struct {
	conn  *conn
	queue string
	*receiver
	next, last int64 // sequence numbers: to look at, and of the last message that was there
	seen       map[*transport.Message]int64
	locked     map[int64]*delivery // received on the way to others
}

// Browse implements [transport.Browser]. Looking costs nothing. Taking a message counts as a hand-out for those before it that
// are not taken.
func (c *conn) Browse(ctx context.Context, queue string) (transport.Cursor, error) {
	r, err := c.OpenReceiver(ctx, transport.ReceiverOptions{Queue: queue})
	if err != nil {
		return nil, err
	}
	cur := &cursor{conn: c, queue: queue, receiver: r.(*receiver), locked: map[int64]*delivery{}} //nolint:errcheck // it is one
	if cur.last, err = cur.end(ctx); err != nil {
		_ = cur.Close() // never fails
		return nil, err
	}
	return cur, nil
}

// peek looks at messages from a sequence number on.
func (cur *cursor) peek(ctx context.Context, from int64, limit int) (msgs []*azservicebus.ReceivedMessage, err error) {
	ctx, cancel := cur.until(ctx)
	defer cancel()
	own, err := cur.supervisor.throttle.wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("asb: browse queue %q: %w: %w", cur.queue, errBusy, err)
	}
	defer func() { own.end(err) }()
	cl, err := cur.supervisor.client(ctx)
	if err != nil {
		return nil, err
	}
	rcv, err := cur.settler.on(cl)
	if err != nil {
		return nil, cl.lostIn(ctx, err)
	}
	on, over := cl.on(ctx)
	defer over()
	msgs, err = look(on, rcv, from, limit)
	if slices.ContainsFunc(msgs, partitioned) {
		err = errPartitioned
	}
	if cur.ctx.Err() != nil {
		return nil, transport.ErrClosed
	}
	return msgs, wrap(cl.lostIn(ctx, err), "browse queue %q", cur.queue)
}

// partitionBits are how many bits of a sequence number are that of the message in its partition; those above are the partition.
// https://learn.microsoft.com/azure/service-bus-messaging/message-sequencing
const partitionBits = 48

var errPartitioned = errors.New("the queue is partitioned: the service shows one message of some partition at a time, so its messages cannot be listed or counted without receiving them. Use a tool that receives, or a queue without partitions")

func partitioned(raw *azservicebus.ReceivedMessage) bool {
	return raw.SequenceNumber != nil && *raw.SequenceNumber>>partitionBits != 0
}

// end is the sequence number of the last message that is there now. The broker finds the next message from a number on; so
// steps that double lead past the last one, and halving back to it.
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

// Next implements [transport.Cursor]. Delayed and deferred messages do not show.
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

// Take implements [transport.Cursor]: the operations are sent before the message is completed, while it is locked.
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

// look finds out which destinations are missing before anything is sent.
func (cur *cursor) look(ctx context.Context, ops []transport.Operation) error {
	var failed []transport.OpError
	for i := range ops {
		var m outgoing
		entity := cur.conn.prepare(&ops[i], &m, time.Now())
		if m.err == nil && !m.publish {
			m.err = cur.conn.reach(ctx, entity)
		}
		if m.err != nil {
			failed = append(failed, transport.OpError{Index: i, Err: m.err})
		}
	}
	if failed != nil {
		return &transport.DispatchError{Ops: failed, Total: len(ops)}
	}
	return nil
}

// reach makes sure that a queue can be sent to.
func (c *conn) reach(ctx context.Context, entity string) error {
	s, err := c.sender(entity)
	if err != nil {
		return err
	}
	return s.withLink(ctx, func(context.Context, *messageBatch) error { return nil })
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
	if found, err := cur.peek(ctx, number, 1); err != nil || len(found) == 0 || *found[0].SequenceNumber != number {
		return nil, errors.Join(err, cur.unless(err))
	}
	for {
		d, err := cur.more(ctx, number)
		if d != nil || err != nil {
			return d, err
		}
	}
}

// unless is that the message is not there, where err is nil.
func (cur *cursor) unless(err error) error {
	if err != nil {
		return nil
	}
	return cur.notFound()
}

// more receives some messages, and returns the one if it is among them.
func (cur *cursor) more(ctx context.Context, number int64) (wanted *delivery, err error) {
	short, cancel := context.WithTimeout(ctx, takeTimeout)
	defer cancel()
	ds, err := cur.Receive(short, takeBatch)
	if err != nil {
		if short.Err() != nil && ctx.Err() == nil {
			err = cur.notFound()
		}
		return nil, err
	}
	for _, d := range ds {
		own := d.(*delivery) //nolint:errcheck // all of ours are
		cur.locked[*own.raw.SequenceNumber] = own
	}
	return cur.locked[number], nil
}

// Close implements [transport.Cursor]: what was received on the way goes back.
func (cur *cursor) Close() error {
	cur.shut()
	cur.leave()
	return nil
}
