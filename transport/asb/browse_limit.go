package asb

import (
	"context"
	"fmt"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/transport"
)

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
	found, err := cur.conn.admin.GetQueue(within, cur.path, nil)
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
