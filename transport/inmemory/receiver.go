package inmemory

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.ByteReceiver = (*receiver)(nil)

type receiver struct {
	conn  *conn
	queue string
	done  chan struct{} // closed with the receiver or its conn
}

func (r *receiver) Receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	return r.ReceiveBytes(ctx, limit, math.MaxInt64)
}

// ReceiveBytes limits the bytes of one call. All messages are in memory either way.
func (r *receiver) ReceiveBytes(ctx context.Context, limit int, maxBytes int64) ([]transport.Delivery, error) {
	if err := r.conn.t.refuse(ctx, "Receive", r.queue); err != nil {
		return nil, err
	}
	if most := r.conn.t.MaxReceive; most > 0 {
		limit = min(limit, most)
	}
	for {
		ds, changed, due, err := r.take(limit, maxBytes)
		if len(ds) > 0 || err != nil {
			return ds, err
		}
		if err := r.wait(ctx, changed, due); err != nil {
			return nil, err
		}
	}
}

// take returns deliveries, or the next change of an empty queue: changed is closed then, and due is
// the time of what is scheduled, or zero.
func (r *receiver) take(
	limit int, maxBytes int64,
) (ds []transport.Delivery, changed <-chan struct{}, due time.Time, err error) {
	r.conn.b.mu.Lock()
	defer r.conn.b.mu.Unlock()
	if !r.conn.receivers[r] {
		return nil, nil, due, transport.ErrClosed
	}
	q, err := r.conn.b.find(r.queue)
	if err != nil {
		return nil, nil, due, err
	}
	q.advance()
	if n := q.ready.within(limit, maxBytes); n > 0 {
		return r.deliver(q, n), nil, due, nil
	}
	if len(q.timed) > 0 {
		due = q.timed[0].due
	}
	return nil, q.wait(), due, nil
}

func (r *receiver) deliver(q *queue, n int) []transport.Delivery {
	t := r.conn.t
	ds := make([]delivery, n)
	given := make([]transport.Delivery, n)
	until := time.Now().Add(t.Lease)
	for i := range ds {
		d := &ds[i]
		d.conn = r.conn
		q.deliver(d)
		if t.Lease > 0 {
			q.schedule(d.item, until)
		}
		given[i] = withoutDelivery(d, t.Without)
	}
	return given
}

func (r *receiver) wait(ctx context.Context, changed <-chan struct{}, due time.Time) error {
	var timer <-chan time.Time
	if !due.IsZero() {
		timer = time.After(time.Until(due))
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-r.done:
		return transport.ErrClosed
	case <-changed:
	case <-timer:
	}
	return nil
}

// Window does nothing: the driver does not prefetch.
func (r *receiver) Window(int) {}

func (r *receiver) Close() error {
	r.conn.b.mu.Lock()
	defer r.conn.b.mu.Unlock()
	r.stop()
	return nil
}

// stop ends waiting calls of Receive. The broker is locked.
func (r *receiver) stop() {
	if r.conn.receivers[r] {
		delete(r.conn.receivers, r)
		close(r.done)
	}
}

// renewer is a receiver of leased deliveries.
type renewer struct{ *receiver }

func (r renewer) Renew(ctx context.Context, ds []transport.Delivery) []error {
	errs := make([]error, len(ds))
	for i, given := range ds {
		own, ok := given.(held)
		if !ok {
			errs[i] = errors.New("inmemory: renew: not a delivery of this transport")
			continue
		}
		errs[i] = own.self().settle(ctx, "Renew", func(it *item) error {
			it.queue.unschedule(it)
			it.queue.schedule(it, time.Now().Add(r.conn.t.Lease))
			return nil
		})
	}
	return errs
}
