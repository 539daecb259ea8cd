package sqs

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// Renew hides messages for another lease. A message that SQS hides no longer is lost.
func (r *receiver) Renew(ctx context.Context, ds []transport.Delivery) []error {
	own := make([]*delivery, len(ds))
	for i, d := range ds {
		own[i] = d.(*delivery) //nolint:errcheck,forcetypeassert // we made it
	}
	return r.inFlight.renew(ctx, own, r.inFlight.conn.cfg.Lease)
}

// renew renews ten messages in a request, and sends the requests concurrently.
func (in *inFlight) renew(ctx context.Context, ds []*delivery, lease time.Duration) []error {
	errs := make([]error, 0, len(ds))
	var all sync.WaitGroup
	for some := range slices.Chunk(ds, maxBatch) {
		part := errs[len(errs) : len(errs)+len(some)]
		errs = errs[:len(errs)+len(some)]
		all.Go(func() { in.renewSome(ctx, some, lease, part) })
	}
	all.Wait()
	return errs
}

func (in *inFlight) renewSome(ctx context.Context, ds []*delivery, lease time.Duration, errs []error) {
	began := time.Now()
	var ss []settling
	var is []int
	for i, d := range ds {
		seconds, keep := d.renewal(began, lease)
		switch {
		case !keep:
			errs[i] = lostError("renew")
		case seconds > 0:
			ss, is = append(ss, settling{d, seconds}), append(is, i)
		}
	}
	if len(ss) == 0 {
		return
	}
	for n, err := range in.hide(ctx, ss) {
		errs[is[n]] = err
		ss[n].renewed(began, ss[n].seconds, err)
	}
}

// renewal returns the seconds to renew the lease for: 0 while the message returns to the queue, which a renewal would
// undo. keep is false if the lease is over or cannot be renewed.
func (d *delivery) renewal(now time.Time, lease time.Duration) (seconds int32, keep bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expire(now)
	left := maxHold - now.Sub(d.received)
	switch {
	case d.state == settled || d.state == lost || !now.Before(d.leased) || left < time.Second:
		return 0, false
	case d.state != idle && d.verb != completing:
		return 0, true
	default:
		return int32(min(lease, left) / time.Second), true //nolint:gosec // at most maxHold
	}
}

// renewed records the result of a renewal.
func (d *delivery) renewed(began time.Time, seconds int32, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case err == nil:
		d.leased = began.Add(time.Duration(seconds) * time.Second)
	case errors.Is(err, transport.ErrLeaseLost) && d.state == idle:
		d.loseIdle()
	}
}
