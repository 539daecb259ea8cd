package asb

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

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
	ctx, cancel := joined(ctx, r.conn.ctx)
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
			r.inFlight[own] = began.Add(r.conn.lease)
		}
		r.mu.Unlock()
	case errors.Is(err, transport.ErrLeaseLost):
		own.end()
	}
	return wrap(err, "renew the lock of a message of %q", r.queue)
}
