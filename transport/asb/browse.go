package asb

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
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

// browser is the part of a conn with which tools list messages and remove them.
type browser struct{ receivers *receivers }

// Browse implements [transport.Browser]. Browsing does not change delivery counts. Taking a message
// counts as a delivery of those before it that are not taken: it fails with
// [transport.ErrDeliveryLimit] if the queue's MaxDeliveryCount leaves too few deliveries to them.
func (br *browser) Browse(ctx context.Context, queue string) (transport.Cursor, error) {
	r, err := br.receivers.OpenReceiver(ctx, transport.ReceiverOptions{Queue: queue})
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
func (cur *cursor) peek(
	ctx context.Context, from int64, limit int,
) (msgs []*azservicebus.ReceivedMessage, err error) {
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
func (cur *cursor) Take(
	ctx context.Context, m *transport.Message, ops []transport.Operation,
) error {
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
	if _, err := cur.of.senders.Dispatch(ctx, ops); err != nil {
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
		to, err := cur.of.senders.prepare(&ops[i], m, time.Now())
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

// assumedDeliveryCount is the service's default. It is assumed if the limit of a queue cannot be
// read.
const assumedDeliveryCount = 10

// deliveryLimit lets a cursor receive messages only if each keeps one delivery at least when it is
// released: a message that has been released as often as the queue's MaxDeliveryCount becomes a
// dead letter. The delivery counts are browsed ahead.
type deliveryLimit struct {
	most    int32 // MaxDeliveryCount
	assumed bool  // it could not be read
	checked int64 // sequence number of the last message whose count was browsed
	spare   int   // how many of those have not been received
}

// spare returns how many messages the cursor may receive now, or [transport.ErrDeliveryLimit].
func (cur *cursor) spare(ctx context.Context) (int, error) {
	l := &cur.limit
	if cur.dead { // dead letters have no limit
		return takeBatch, nil
	}
	for again := true; l.spare < takeBatch; {
		found, err := cur.peek(ctx, l.checked+1, maxPage)
		switch {
		case err != nil:
			return 0, err
		case len(found) == 0 && l.spare == 0 && again: // others have released messages in front
			l.checked, again = 0, false
			continue
		case len(found) == 0:
			return max(l.spare, 1), nil
		}
		for _, raw := range found {
			if d := cur.locked[*raw.SequenceNumber]; d == nil && raw.State == azservicebus.MessageStateActive {
				if err := cur.hasSpare(raw); err != nil && l.spare > 0 {
					return l.spare, nil // those in front of it
				} else if err != nil {
					return 0, err
				}
				l.spare++
			}
			l.checked = *raw.SequenceNumber
		}
	}
	return l.spare, nil
}

// hasSpare returns an error unless a message keeps a delivery after one more.
func (cur *cursor) hasSpare(raw *azservicebus.ReceivedMessage) error {
	l := &cur.limit
	if int64(attemptOf(raw)) < int64(l.most) {
		return nil
	}
	detail := fmt.Sprintf("dead-letters a message after %d deliveries", l.most)
	if l.assumed {
		detail = fmt.Sprintf("may dead-letter a message after %d deliveries, the service's default: the limit could not be read, which needs the right to manage", l.most)
	}
	return fmt.Errorf("asb: take a message of %q: %w: the queue %s, and message %q, in front of it or with it, has had %d. "+
		"Set the queue's MaxDeliveryCount to 2147483647", cur.queue, transport.ErrDeliveryLimit, detail, raw.MessageID, attemptOf(raw)-1)
}

// received counts messages that the cursor has received. A message whose lock has expired is
// received again.
func (cur *cursor) received(ds []transport.Delivery) {
	for _, d := range ds {
		own := d.(*delivery) //nolint:errcheck // the driver's own
		number := *own.raw.SequenceNumber
		if cur.locked[number] == nil && number <= cur.limit.checked {
			cur.limit.spare--
		}
		cur.locked[number] = own
	}
	cur.limit.spare = max(cur.limit.spare, 0)
}

// readLimit reads the delivery limit. It fails for a partitioned queue: the numbers of messages of
// its first partition are those of a queue without partitions.
func (cur *cursor) readLimit(ctx context.Context) error {
	l := &cur.limit
	within, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	found, err := cur.of.admin.GetQueue(within, cur.path, nil)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil: // no right to manage the namespace, or its administration cannot be reached
		l.most, l.assumed = assumedDeliveryCount, true
	case found == nil:
		return wrap(transport.ErrNoQueue, "browse queue %q", cur.queue)
	case valueOr(found.EnablePartitioning, false):
		return wrap(errPartitioned, "browse queue %q", cur.queue)
	default:
		l.most = max(valueOr(found.MaxDeliveryCount, assumedDeliveryCount), 1)
	}
	return nil
}

var _ transport.Purger = (*conn)(nil)

const (
	// purgeBatch is how many messages are removed at once.
	purgeBatch = 200
	// purgeTimeout bounds the wait for a message that the service shows: another receiver may have
	// it. A link to a distant or busy service takes a second to be made.
	purgeTimeout = 10 * time.Second
)

// Purge implements [transport.Purger]: it receives and completes the messages that were there when
// it began. It asks for no more than these. A later message that comes nevertheless is released,
// which counts as a delivery.
func (br *browser) Purge(ctx context.Context, queue string) (int64, error) {
	looked, err := br.Browse(ctx, queue)
	if err != nil {
		return 0, err
	}
	cur := looked.(*cursor) //nolint:errcheck // the driver's own
	defer func() { _ = cur.Close() }()
	began := time.Now()
	var removed int64
	for {
		ready, err := cur.ready(ctx)
		if err != nil || ready == 0 {
			return removed, err
		}
		n, over, err := cur.remove(ctx, began, ready)
		removed += n
		if over || err != nil {
			return removed, err
		}
	}
}

// ready returns how many of the messages to be removed are neither delayed nor in flight at this
// conn, as far as one request shows. 0: none is.
func (cur *cursor) ready(ctx context.Context) (n int, err error) {
	mine := map[int64]bool{}
	for _, d := range cur.of.inFlight(cur.path, cur.dead) {
		mine[*d.raw.SequenceNumber] = true
	}
	for from := int64(0); from <= cur.last && n == 0; {
		found, err := cur.peek(ctx, from, maxPage)
		if err != nil || len(found) == 0 {
			return 0, err
		}
		for _, raw := range found {
			from = *raw.SequenceNumber + 1
			if from <= cur.last+1 && raw.State == azservicebus.MessageStateActive && !mine[from-1] {
				n++
			}
		}
	}
	return n, nil
}

// remove removes up to ready messages. over reports that no more are to be removed.
func (cur *cursor) remove(
	ctx context.Context, began time.Time, ready int,
) (n int64, over bool, err error) {
	short, cancel := context.WithTimeout(ctx, purgeTimeout)
	defer cancel()
	ds, err := cur.Receive(short, min(ready, purgeBatch))
	if err != nil {
		if short.Err() != nil && ctx.Err() == nil {
			err = nil // the rest are in flight elsewhere, or delayed
		}
		return 0, true, err
	}
	var all sync.WaitGroup
	var removed atomic.Int64
	errs := make([]error, len(ds))
	for i, d := range ds {
		own := d.(*delivery) //nolint:errcheck // the driver's own
		if due := own.raw.ScheduledEnqueueTime; *own.raw.SequenceNumber > cur.last || due != nil && due.After(began) {
			over = true
			all.Go(func() { errs[i] = unlessGone(own.Release(ctx)) })
			continue
		}
		all.Go(func() {
			err := own.Complete(ctx)
			if err == nil {
				removed.Add(1)
			}
			errs[i] = unlessGone(err)
		})
	}
	all.Wait()
	return removed.Load(), over, errors.Join(errs...)
}

// unlessGone returns err unless it is that the lock has expired.
func unlessGone(err error) error {
	if errors.Is(err, transport.ErrLeaseLost) {
		return nil
	}
	return err
}
