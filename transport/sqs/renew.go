package sqs

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// Renew hides messages for another lease, ten in a request. One that SQS does not let us keep any longer is lost.
func (r *receiver) Renew(ctx context.Context, ds []transport.Delivery) []error {
	errs := make([]error, len(ds))
	var all sync.WaitGroup
	at := 0
	for some := range slices.Chunk(ds, most) {
		part := errs[at : at+len(some)]
		at += len(some)
		all.Go(func() { r.renew(ctx, some, part) })
	}
	all.Wait()
	return errs
}

func (r *receiver) renew(ctx context.Context, ds []transport.Delivery, errs []error) {
	began := time.Now()
	var ss []settling
	var is []int
	for i, d := range ds {
		own := d.(*delivery) //nolint:errcheck,forcetypeassert // we made it
		seconds, keep := own.renewal(began)
		switch {
		case !keep:
			errs[i] = lostError("renew")
		case seconds > 0:
			ss, is = append(ss, settling{own, seconds}), append(is, i)
		}
	}
	if len(ss) == 0 {
		return
	}
	for n, err := range r.inbox.hide(ctx, ss) {
		errs[is[n]] = err
		ss[n].renewed(began, ss[n].seconds, err)
	}
}

// renewal is for how many seconds the lease is to be renewed: 0 while it is given back, which a renewal would undo. keep is false
// when the message is not ours any more, or can be for no second longer.
func (d *delivery) renewal(now time.Time) (seconds int32, keep bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	left := maxHold - now.Sub(d.received)
	switch {
	case d.state == settled || d.state == lost || !now.Before(d.leased) || left < time.Second:
		return 0, false
	case d.state != idle && d.verb != completing:
		return 0, true
	default:
		return int32(min(d.inbox.conn.cfg.Lease, left) / time.Second), true //nolint:gosec // at most maxHold
	}
}

// renewed takes in the answer to a renewal that began then.
func (d *delivery) renewed(began time.Time, seconds int32, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case err == nil:
		d.leased = began.Add(time.Duration(seconds) * time.Second)
	case errors.Is(err, transport.ErrLeaseLost) && d.state == idle:
		d.state = lost
		d.inbox.opened(-1)
		d.inbox.forget(d)
	}
}
