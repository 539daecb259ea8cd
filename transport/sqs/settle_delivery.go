package sqs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.Delivery = (*delivery)(nil)

// delivery is one hand-out of a message.
type delivery struct {
	inbox          *inbox
	message        transport.Message
	attempt        transport.Attempt
	handle         string    // SQS's name of the hand-out
	received       time.Time // SQS hides a message for maxHold from then, at most
	completesFirst bool      // nobody handles the message before it is completed

	copy copyOf // guarded by the inbox's mu

	mu      sync.Mutex // guards what follows
	leased  time.Time  // until when it is ours
	state   state
	verb    verb              // with which it settles
	pending *ticket[settling] // what becomes of that; its caller may have given up waiting
}

type state int8

const (
	idle     state = iota
	waiting        // somebody waits for pending
	deserted       // nobody does
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
func (d *delivery) Complete(ctx context.Context) error { return d.settle(ctx, completing, 0) }

// Retry has the message handed out again, as the next attempt.
func (d *delivery) Retry(ctx context.Context) error { return d.settle(ctx, retrying, 0) }

// Release gives the message back. SQS counts that all the same.
func (d *delivery) Release(ctx context.Context) error { return d.settle(ctx, releasing, 0) }

var errSettled = errors.New("sqs: the delivery is settled already")

func (d *delivery) settle(ctx context.Context, v verb, seconds int32) error {
	by, answer, err := d.begin(v, seconds)
	if err != nil {
		return err
	}
	select {
	case <-answer.done:
		return answer.err
	case <-ctx.Done():
	}
	err = fmt.Errorf("sqs: %s a message of %q: %w", v, d.inbox.queue, context.Cause(ctx))
	if by.withdraw(answer) {
		d.end(err)
		return err
	}
	select {
	case <-answer.done:
		return answer.err
	default:
		d.desert()
		return fmt.Errorf("%w: %w", err, transport.ErrOutcomeUnknown)
	}
}

// begin submits the delivery, or takes up waiting for what an earlier call with the same verb has begun.
func (d *delivery) begin(v verb, seconds int32) (*gather[settling], *ticket[settling], error) {
	in := d.inbox
	by := in.hides
	if v == completing {
		by = in.deletes
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expire(time.Now())
	switch {
	case in.conn.closed():
		return nil, nil, transport.ErrClosed
	case d.state == lost:
		if v == completing {
			in.late(d)
		}
		return nil, nil, lostError(string(v))
	case d.state == settled || d.state == waiting:
		return nil, nil, errSettled
	case d.state == deserted && d.verb != v:
		return nil, nil, fmt.Errorf("sqs: %s: an earlier %s is not answered yet", v, d.verb)
	case d.state == deserted:
		d.state = waiting
		return by, d.pending, nil
	}
	d.state, d.verb = waiting, v
	in.opened(-1)
	d.pending = by.submit(settling{d, seconds})[0]
	return by, d.pending, nil
}

// expire notes that the lease has run out before anybody began to settle. Called with mu held.
func (d *delivery) expire(now time.Time) {
	if d.state == idle && !now.Before(d.leased) {
		d.gone()
	}
}

// gone notes that the message is not ours any more, which nobody has begun to settle. Called with mu held.
func (d *delivery) gone() {
	d.state = lost
	d.inbox.opened(-1)
	d.inbox.forget(d)
}

// ended takes in what became of settling, whether anybody waits for it or not.
func ended(ss []settling, errs []error) []error {
	for i, s := range ss {
		s.end(errs[i])
	}
	return errs
}

// end takes in what became of settling.
func (d *delivery) end(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.state == lost: // handed out anew meanwhile
	case err == nil:
		d.state = settled
		d.inbox.forget(d)
	case errors.Is(err, transport.ErrLeaseLost):
		d.state = lost
		d.inbox.forget(d)
	default:
		d.state = idle
		d.inbox.opened(1)
	}
}

// desert notes that nobody waits for the answer any more.
func (d *delivery) desert() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == waiting {
		d.state = deserted
	}
}

// lose notes that the message has been handed out anew.
func (d *delivery) lose() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == idle {
		d.inbox.opened(-1)
	}
	if d.state != settled {
		d.state = lost
	}
}

// overdue tells whether the lease is over, by our clock or because the message was handed out anew.
func (d *delivery) overdue(now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state == lost || !now.Before(d.leased)
}

// isOpen tells whether the message is ours and not on its way back.
func (d *delivery) isOpen() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state == idle || d.state == deserted
}

// left is for how long the message is still ours, unless it is renewed.
func (d *delivery) left() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Until(d.leased)
}
