package inmemory

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.Receiver     = (*receiver)(nil)
	_ transport.ByteReceiver = (*receiver)(nil)
	_ transport.Renewer      = renewer{}
)

type receiver struct {
	conn *conn
	name string
	done chan struct{} // closed with the receiver or its conn

	queue *queue // guarded by broker.mu
}

func (r *receiver) Receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	return r.ReceiveBytes(ctx, limit, math.MaxInt64)
}

// ReceiveBytes limits the bytes of one call. All messages are in memory either way.
func (r *receiver) ReceiveBytes(ctx context.Context, limit int, maxBytes int64) ([]transport.Delivery, error) {
	if err := r.conn.t.refuse(ctx, "Receive", r.name); err != nil {
		return nil, err
	}
	if most := r.conn.t.MaxReceive; most > 0 {
		limit = min(limit, most)
	}
	for {
		ds, next, err := r.take(limit, maxBytes)
		if len(ds) > 0 || err != nil {
			return ds, err
		}
		if err := r.wait(ctx, next); err != nil {
			return nil, err
		}
	}
}

// change is the next change of an empty queue.
type change struct {
	news <-chan struct{}
	due  time.Time // zero if none is scheduled
}

func (r *receiver) take(limit int, maxBytes int64) (ds []transport.Delivery, next change, err error) {
	r.conn.b.mu.Lock()
	defer r.conn.b.mu.Unlock()
	select {
	case <-r.done:
		return nil, change{}, transport.ErrClosed
	default:
	}
	if r.queue.removed {
		q, err := r.conn.b.find(r.name)
		if err != nil {
			return nil, change{}, err
		}
		r.queue = q
	}
	q := r.queue
	q.advance()
	n := q.ready.within(limit, maxBytes)
	if n == 0 {
		next.news = q.wait()
		if len(q.timed) > 0 {
			next.due = q.timed[0].due
		}
		return nil, next, nil
	}
	return r.deliver(n), next, nil
}

func (r *receiver) deliver(n int) []transport.Delivery {
	t := r.conn.t
	ds := make([]delivery, n)
	given := make([]transport.Delivery, n)
	var until time.Time
	if t.Lease > 0 {
		until = time.Now().Add(t.Lease)
	}
	for i := range ds {
		d := &ds[i]
		d.conn = r.conn
		r.queue.deliver(d)
		if t.Lease > 0 {
			r.queue.schedule(d.item, until)
		}
		given[i] = withoutDelivery(d, t.Without)
	}
	return given
}

func (r *receiver) wait(ctx context.Context, next change) error {
	var timer <-chan time.Time
	if !next.due.IsZero() {
		t := time.NewTimer(time.Until(next.due))
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-r.done:
		return transport.ErrClosed
	case <-next.news:
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
	for i, d := range ds {
		errs[i] = r.renew(ctx, d)
	}
	return errs
}

func (r renewer) renew(ctx context.Context, given transport.Delivery) error {
	own, ok := given.(held)
	if !ok {
		return errors.New("inmemory: renew: not a delivery of this transport")
	}
	d := own.self()
	return d.settle(ctx, "Renew", func(it *item) error {
		it.queue.reschedule(it, time.Now().Add(r.conn.t.Lease))
		return nil
	})
}
