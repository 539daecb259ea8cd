package asb

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

// renewers is how many locks are renewed at once. The client library makes a request for each.
const renewers = 16

// Renew implements [transport.Renewer].
func (r *receiver) Renew(ctx context.Context, ds []transport.Delivery) []error {
	errs := make([]error, len(ds))
	places := make(chan struct{}, renewers)
	var all sync.WaitGroup
	for i, d := range ds {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			errs[i] = r.renew(ctx, d)
		})
	}
	all.Wait()
	return errs
}

func (r *receiver) renew(ctx context.Context, d transport.Delivery) error {
	own, ok := d.(*delivery)
	if !ok || own.receiver != r {
		return transport.ErrLeaseLost
	}
	ctx, cancel := joined(ctx, r.of.ctx)
	defer cancel()
	switch {
	case own.over.Load():
		return errOver
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	var began time.Time
	err := own.byToken(ctx, verb{do: func(ctx context.Context, rcv *azservicebus.Receiver, raw *azservicebus.ReceivedMessage) error {
		began = time.Now()
		return rcv.RenewMessageLock(ctx, raw, nil)
	}})
	switch {
	case err == nil:
		r.mu.Lock()
		if _, out := r.inFlight[own]; out {
			r.inFlight[own] = began.Add(r.of.lease)
		}
		r.mu.Unlock()
	case errors.Is(err, transport.ErrLeaseLost):
		own.end()
	}
	return wrap(err, "renew the lock of a message of %q", r.queue)
}

// leastLock is the service's shortest lock duration. A message seems to have less if it travelled
// for long, or if this machine's clock is ahead.
const leastLock = 5 * time.Second

// mindLock renews the locks of a queue if they are shorter than the lease in Limits, by the first
// message: without the right to manage the namespace the driver learns their duration no earlier.
// If the service's clock differs from this machine's, it may renew without need, or not notice.
func (r *receiver) mindLock(raw *azservicebus.ReceivedMessage) {
	if raw.LockedUntil == nil {
		return
	}
	lock := time.Until(*raw.LockedUntil)
	if lock > r.of.lease*3/4 {
		return
	}
	r.short.Do(func() {
		lock = max(lock, leastLock)
		r.of.log.Warn("a queue has shorter locks than the transport's LockDuration: the driver renews them itself, which takes more requests",
			"queue", r.queue, "lock", lock.Round(time.Second), "expected", r.of.lease, "advice", "set LockDuration to that of the queue")
		r.of.tasks.Go(func() { r.keep(lock) })
	})
}

// keep renews the locks in flight until the receiver is closed and all are settled or lost.
func (r *receiver) keep(lock time.Duration) {
	for backoff.Sleep(r.of.ctx, lock/3) == nil {
		out := r.unsettled()
		if len(out) == 0 && r.ctx.Err() != nil {
			return
		}
		ctx, cancel := context.WithTimeout(r.of.ctx, lock/2)
		r.Renew(ctx, out) // the settlement reports a lost lock
		cancel()
	}
}
