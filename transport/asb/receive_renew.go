package asb

import (
	"context"
	"errors"
	"fmt"
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

func (r *receiver) renew(ctx context.Context, d transport.Delivery) (err error) {
	own, ok := d.(*delivery)
	if !ok || own.receiver != r {
		return transport.ErrLeaseLost
	}
	ctx, cancel := r.conn.until(ctx)
	defer cancel()
	switch {
	case own.over.Load():
		return errOver
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	turn, err := r.supervisor.throttle.wait(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", errBusy, err)
	}
	defer func() { turn.end(err) }()
	began := time.Now()
	cl, err := r.supervisor.client(ctx)
	if err != nil {
		return err
	}
	rcv, err := r.settler.on(cl)
	if err == nil {
		// A copy, because the library writes to the message. The request needs the token only.
		bare := &azservicebus.ReceivedMessage{LockToken: own.raw.LockToken}
		err = own.ask(ctx, cl, func(ctx context.Context) error { return rcv.RenewMessageLock(ctx, bare, nil) })
	}
	switch {
	case err == nil:
		r.renewed(own, began)
	case errors.Is(err, transport.ErrLeaseLost):
		own.end()
	}
	return wrap(cl.lostIn(ctx, err), "renew the lock of a message of %q", r.queue)
}

// renewed records that a lock was renewed by a request that began then.
func (r *receiver) renewed(d *delivery, began time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, out := r.inFlight[d]; out {
		r.inFlight[d] = began.Add(r.conn.lease)
	}
}
