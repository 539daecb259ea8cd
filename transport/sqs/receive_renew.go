package sqs

import (
	"context"
	"errors"
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

func (in *inFlight) renew(ctx context.Context, ds []*delivery, lease time.Duration) []error {
	errs := make([]error, len(ds))
	now := time.Now()
	var ss []settling
	var is []int
	for i, d := range ds {
		seconds, keep := d.renewal(now, lease)
		switch {
		case !keep:
			errs[i] = lostError("renew")
		case seconds > 0:
			ss, is = append(ss, settling{d, seconds}), append(is, i)
		}
	}
	for n, err := range in.hideAll(ctx, ss) {
		errs[is[n]] = err
	}
	return errs
}

// renewal returns the seconds to renew the lease for: 0 while the message returns to the queue,
// which a renewal would undo. keep is false if the lease is over or cannot be renewed.
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
