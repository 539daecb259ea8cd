package asb

import (
	"context"
	"fmt"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/transport"
)

// assumedDeliveryCount is the service's default. It is assumed if the limit of a queue cannot be read.
const assumedDeliveryCount = 10

// deliveryLimit lets a cursor receive messages only if each keeps one delivery at least when it is released: a message that has
// been released as often as the queue's MaxDeliveryCount becomes a dead letter. The delivery counts are browsed ahead.
type deliveryLimit struct {
	most    int32 // MaxDeliveryCount; 0 before it is read
	assumed bool  // the credential may not read it
	checked int64 // sequence number of the last message whose count was browsed
	spare   int   // how many of those have not been received
}

// spare returns how many messages the cursor may receive now, or [transport.ErrDeliveryLimit].
func (cur *cursor) spare(ctx context.Context) (int, error) {
	l := &cur.limit
	if cur.dead { // dead letters have no limit
		return takeBatch, nil
	}
	if l.most == 0 {
		if err := cur.readLimit(ctx); err != nil {
			return 0, err
		}
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
		detail = fmt.Sprintf("may dead-letter a message after %d deliveries, the service's default: the credential has no right to read the limit", l.most)
	}
	return fmt.Errorf("asb: take a message of %q: %w: the queue %s, and message %q, in front of it or with it, has had %d. "+
		"Set the queue's MaxDeliveryCount to 2147483647", cur.queue, transport.ErrDeliveryLimit, detail, raw.MessageID, attemptOf(raw)-1)
}

// received counts messages that the cursor has received. A message whose lock has expired is received again.
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

func (cur *cursor) readLimit(ctx context.Context) error {
	l := &cur.limit
	found, err := cur.conn.admin.GetQueue(ctx, cur.path, nil)
	switch {
	case unmanageable(err):
		l.most, l.assumed = assumedDeliveryCount, true
	case err != nil:
		return wrap(managed(err), "read the delivery limit of queue %q", cur.queue)
	case found == nil:
		return wrap(transport.ErrNoQueue, "read the delivery limit of queue %q", cur.queue)
	default:
		l.most = max(valueOr(found.MaxDeliveryCount, assumedDeliveryCount), 1)
	}
	return nil
}
