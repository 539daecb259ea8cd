package sqs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/batch"
	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.Delivery = (*delivery)(nil)

// delivery is one delivery of a message.
type delivery struct {
	inFlight       *inFlight
	message        transport.Message
	attempt        transport.Attempt
	handle         string    // SQS's receipt handle
	received       time.Time // SQS hides a message until maxHold after it
	completesFirst bool      // the message is completed before it is handled

	copy copyOf // set under inFlight.mu, before the delivery is handled

	mu      sync.Mutex // guards the fields below
	leased  time.Time  // end of the lease
	state   state
	verb    verb                     // with which it settles
	pending *batch.Pending[settling] // its result
	awaited bool                     // a caller waits for the result, or has it
}

type state int8

const (
	idle state = iota
	submitted
	settled
	lost
)

type verb string

const (
	completing verb = "complete"
	retrying   verb = "retry"
	releasing  verb = "release"
)

func (d *delivery) Message() *transport.Message { return &d.message }

func (d *delivery) Attempt() transport.Attempt { return d.attempt }

// Complete deletes the message.
func (d *delivery) Complete(ctx context.Context) error { return d.settle(ctx, completing) }

// Retry ends the lease, so that the message is delivered again as the next attempt.
func (d *delivery) Retry(ctx context.Context) error { return d.settle(ctx, retrying) }

// Release is Retry: SQS counts each delivery.
func (d *delivery) Release(ctx context.Context) error { return d.settle(ctx, releasing) }

var errSettled = errors.New("sqs: the delivery is settled already")

func (d *delivery) settle(ctx context.Context, v verb) error {
	by, pending, err := d.begin(v)
	if err != nil {
		return err
	}
	select {
	case err := <-pending.Done():
		return batchError(err)
	case <-ctx.Done():
	}
	err = fmt.Errorf("sqs: %s a message of %q: %w", v, d.inFlight.queue, context.Cause(ctx))
	if by.Withdraw(pending) {
		d.end(err)
		return err
	}
	select {
	case err := <-pending.Done():
		return batchError(err)
	default:
		d.mu.Lock()
		defer d.mu.Unlock()
		d.awaited = false
		return fmt.Errorf("%w: %w", err, transport.ErrOutcomeUnknown)
	}
}

// begin submits the delivery, or returns the pending result of an earlier call with the same verb.
func (d *delivery) begin(v verb) (*batch.Batcher[settling], *batch.Pending[settling], error) {
	in := d.inFlight
	by := in.hides
	if v == completing {
		by = in.deletes
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expire(time.Now())
	switch {
	case in.of.closed():
		return by, nil, transport.ErrClosed
	case d.state == lost:
		if v == completing {
			in.late(d)
		}
		return by, nil, lostError(string(v))
	case d.state == idle:
		d.state, d.verb = submitted, v
		in.open.Add(-1)
		d.pending = by.Submit(settling{delivery: d})
	case d.awaited, d.state == settled && d.verb != v:
		return by, nil, errSettled
	case d.verb != v:
		return by, nil, fmt.Errorf("sqs: %s: an earlier %s is not answered yet", v, d.verb)
	}
	d.awaited = true
	return by, d.pending, nil
}

// expire records the end of the lease if no settle has begun. Called with mu held.
func (d *delivery) expire(now time.Time) {
	if d.state == idle && !now.Before(d.leased) {
		d.loseIdle()
	}
}

// loseIdle records the loss of the lease of an idle delivery. Called with mu held.
func (d *delivery) loseIdle() {
	d.state = lost
	d.inFlight.open.Add(-1)
	d.inFlight.forget(d)
}

// ended records the results of settles, whether callers wait for them or not.
func ended(ss []settling, errs []error) []error {
	for i, s := range ss {
		s.end(errs[i])
	}
	return errs
}

// end records the result of a settle.
func (d *delivery) end(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.state == lost: // delivered again meanwhile
	case err == nil:
		d.state = settled
		d.inFlight.forget(d)
	case errors.Is(err, transport.ErrLeaseLost):
		d.state = lost
		d.inFlight.forget(d)
	default:
		d.state = idle
		d.inFlight.open.Add(1)
	}
}

// lose records that the message was delivered again.
func (d *delivery) lose() {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch d.state {
	case idle:
		d.loseIdle()
	case submitted:
		d.state = lost
	case settled, lost:
	}
}

// overdue reports whether the lease is over, by the local clock or because the message was
// delivered again.
func (d *delivery) overdue(now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state == lost || !now.Before(d.leased)
}

// isOpen reports whether the delivery is leased and no caller settles it.
func (d *delivery) isOpen() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state == idle || d.state == submitted && !d.awaited
}

// left returns the rest of the lease.
func (d *delivery) left() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Until(d.leased)
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
