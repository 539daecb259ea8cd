package asb

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/transport"
)

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
func (c *conn) Purge(ctx context.Context, queue string) (int64, error) {
	looked, err := c.Browse(ctx, queue)
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
	for _, d := range cur.conn.inFlight(cur.path, cur.dead) {
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
func (cur *cursor) remove(ctx context.Context, began time.Time, ready int) (n int64, over bool, err error) {
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
