package quarantine

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	// firstWait is how long the first message may take to arrive, and nextWait each
	// that follows, before the quarantine is taken to be empty.
	firstWait = time.Second
	nextWait  = 300 * time.Millisecond
	// slowWait bounds the wait for the first message of a slow broker, as long as the broker
	// counts a message that is ready.
	slowWait = 30 * time.Second
	// drainTime bounds the wait for the messages that the driver has prefetched.
	drainTime = 10 * time.Second
)

// receiver receives from the quarantine until no message arrives, and then ends the
// visit. It cancels a Receive, never the visit: an answer on the way arrives in a pump that is
// not stopping, so that its message is handled.
type receiver struct {
	transport.Receiver
	ready func(ctx context.Context) bool // reports whether the broker counts a message that is ready
	end   context.CancelFunc             // of the visit

	// The pump calls Receive once at a time.
	began    time.Time // of the wait for the next message; zero before
	came     bool      // a message has been received
	draining bool      // the broker sends no more: only the driver's prefetched messages are left
}

// Receive calls Receive of the driver, and ends the visit after a wait that was long enough.
func (r *receiver) Receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	if r.began.IsZero() {
		r.began = time.Now()
	}
	ds, err := r.receive(ctx, limit)
	switch {
	case len(ds) > 0:
		r.came, r.began = true, time.Time{}
	case r.draining, time.Since(r.began) >= firstWait: // the latter where Receive fails
		r.end()
	}
	return ds, err
}

func (r *receiver) receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	if r.draining {
		return r.drain(ctx, limit)
	}
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	came, began := r.came, r.began
	go func() {
		r.wait(waiting, came, began)
		stop()
	}()
	ds, err := r.Receiver.Receive(waiting, limit)
	if len(ds) > 0 || waiting.Err() == nil || ctx.Err() != nil {
		return ds, err
	}
	r.draining = true
	return r.drain(ctx, limit)
}

// wait returns when no message is expected any more, or when ctx ends.
func (r *receiver) wait(ctx context.Context, came bool, began time.Time) {
	if came {
		_ = backoff.Sleep(ctx, nextWait-time.Since(began)) // the caller sees the end of ctx
		return
	}
	for backoff.Sleep(ctx, firstWait) == nil {
		if time.Since(began) >= slowWait || !r.ready(ctx) {
			return
		}
	}
}

// drain receives the messages that the driver has prefetched, where releasing them would count as
// an attempt.
func (r *receiver) drain(ctx context.Context, limit int) ([]transport.Delivery, error) {
	ctx, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	ds := r.Drain(ctx, limit)
	if len(ds) == 0 {
		return nil, context.Canceled
	}
	return ds, nil
}

// Drain calls Drain of the driver, if the driver has the method.
func (r *receiver) Drain(ctx context.Context, limit int) []transport.Delivery {
	if d, ok := r.Receiver.(transport.Drainer); ok {
		return d.Drain(ctx, limit)
	}
	return nil
}

// Renew calls Renew of the driver, which has the method if deliveries are leased.
func (r *receiver) Renew(ctx context.Context, ds []transport.Delivery) []error {
	if renewer, ok := r.Receiver.(transport.Renewer); ok {
		return renewer.Renew(ctx, ds)
	}
	return nil
}
