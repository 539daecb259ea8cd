package endpoint

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	// quarantineFirst is how long the first message may take to arrive, and quarantineNext each
	// that follows, before the quarantine is taken to be empty.
	quarantineFirst = time.Second
	quarantineNext  = 300 * time.Millisecond
	// quarantineSlow bounds the wait for the first message of a slow broker, as long as the broker
	// counts a message that is ready.
	quarantineSlow = 30 * time.Second
	// quarantineDrain bounds the wait for the messages that the driver has prefetched.
	quarantineDrain = 10 * time.Second
)

// quarantineReceiver receives from the quarantine until no message arrives, and then ends the
// visit. It cancels a Receive, never the visit: an answer that is on its way arrives in a pump that
// is not stopping, so that its message is handled as any other.
type quarantineReceiver struct {
	transport.Receiver
	ready func(ctx context.Context) bool // reports whether the broker counts a message that is ready
	end   context.CancelFunc             // of the visit

	// The pump calls Receive once at a time.
	began    time.Time // of the wait for the next message; zero before
	came     bool      // a message has been received
	draining bool      // the broker sends no more: only the driver's prefetched messages are left
}

// Receive is that of the driver, and ends the visit when it has waited for long enough.
func (r *quarantineReceiver) Receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	if r.began.IsZero() {
		r.began = time.Now()
	}
	ds, err := r.receive(ctx, limit)
	switch {
	case len(ds) > 0:
		r.came, r.began = true, time.Time{}
	case r.draining, time.Since(r.began) >= quarantineFirst: // the latter where Receive fails
		r.end()
	}
	return ds, err
}

func (r *quarantineReceiver) receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
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
func (r *quarantineReceiver) wait(ctx context.Context, came bool, began time.Time) {
	if came {
		_ = backoff.Sleep(ctx, quarantineNext-time.Since(began)) // the caller sees the end of ctx
		return
	}
	for backoff.Sleep(ctx, quarantineFirst) == nil {
		if time.Since(began) >= quarantineSlow || !r.ready(ctx) {
			return
		}
	}
}

// drain receives the messages that the driver has prefetched, where releasing them would count as
// an attempt.
func (r *quarantineReceiver) drain(ctx context.Context, limit int) ([]transport.Delivery, error) {
	ctx, cancel := context.WithTimeout(ctx, quarantineDrain)
	defer cancel()
	ds := r.Drain(ctx, limit)
	if len(ds) == 0 {
		return nil, context.Canceled
	}
	return ds, nil
}

// Drain is that of the driver; nothing where it has none.
func (r *quarantineReceiver) Drain(ctx context.Context, limit int) []transport.Delivery {
	if d, ok := r.Receiver.(transport.Drainer); ok {
		return d.Drain(ctx, limit)
	}
	return nil
}

// Renew is that of the driver, which has one where its deliveries are leased.
func (r *quarantineReceiver) Renew(ctx context.Context, ds []transport.Delivery) []error {
	if renewer, ok := r.Receiver.(transport.Renewer); ok {
		return renewer.Renew(ctx, ds)
	}
	return nil
}
