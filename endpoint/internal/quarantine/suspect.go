package quarantine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/holdfast-go/holdfast/endpoint/internal/notify"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// Suspects reports whether a message that was delivered before is to be moved to quarantine instead
// of being handled. If the broker does not count, a message is suspected that neither failed nor lost
// its lease here.
func (q *Quarantine) Suspects(d *settle.Delivery) bool {
	if q.missing.Load() {
		return false
	}
	known, ok := d.Failures.Known(d.FailureKey())
	a := d.Received.Attempt()
	if !a.Exact {
		return !ok
	}
	return a.N-known.Failed > q.After
}

// Move completes a suspect with a copy in quarantine, and has r report the move. Move returns
// [transport.ErrNoQueue] if the quarantine is missing: the message is then handled.
// Move returns a [copies.CopyError] if the quarantine refuses the copy.
func (q *Quarantine) Move(ctx context.Context, d *settle.Delivery, r notify.Reporter) error {
	n := d.Received.Attempt().N
	err := q.move(ctx, d, r)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, transport.ErrNoQueue):
		q.find(ctx, err)
		d.LogError(ctx, slog.LevelWarn, "a message cannot be quarantined and is handled like any other",
			err, slog.Int("attempt", n))
		return err
	case copies.OfMessage(err):
		return &copies.CopyError{Doing: fmt.Sprintf(
			"the process may crash over the message, which was delivered %d times, and it could not be moved to quarantine", n,
		), Err: err}
	}
	return fmt.Errorf("move to quarantine: %w", err)
}

func (q *Quarantine) move(ctx context.Context, d *settle.Delivery, r notify.Reporter) error {
	n := d.Received.Attempt().N
	headers := fault.QuarantineHeaders(d.Original.Headers, q.Names.Address(d.Queue), n)
	place := q.Notifier.Next(d.FailureKey())
	report := func() {}
	defer func() { r.Report(place, report) }()
	if err := d.Complete(ctx, nil, []transport.Operation{d.CopyTo(q.Queue, headers, 0)}); err != nil {
		return err //nolint:wrapcheck // Move wraps the error
	}
	d.Slot.Free()
	if d.LostLease() {
		return nil
	}
	select {
	case q.moved <- struct{}{}:
	default: // there is a token
	}
	d.Log.WarnContext(ctx, "the process may crash over a message: it is moved to quarantine",
		slog.String("message", d.LogID()), slog.Int("attempt", n), slog.String("queue", q.Queue))
	f := d.Facts(fmt.Errorf("delivered %d times: the process may crash over it", n))
	report = func() {
		q.Notifier.Notify(ctx, recoverability.Notification{Kind: recoverability.Quarantined, To: q.Queue, Failure: &f})
	}
	return nil
}

// Message is a message that was received from the quarantine. A Message is not safe for concurrent
// use.
type Message struct {
	Before int  // deliveries in the message's own queue, before it was quarantined
	Parked bool // delivered too often in quarantine: the process crashes over the message
	Stuck  bool // the message could be neither settled nor moved

	delivery *settle.Delivery
}

// Receive removes the headers that the quarantine added: for handlers and copies the message is one
// of the queue where it was suspected.
func (q *Quarantine) Receive(d *settle.Delivery) *Message {
	m, own, a := &Message{delivery: d}, *d.Original, d.Received.Attempt()
	var queue string
	own.Headers, queue, m.Before = fault.LeaveQuarantine(own.Headers)
	d.Queue, d.Original = q.Names.Of(cmp.Or(queue, d.Queue)), &own
	m.Parked = a.Exact && a.N > q.Crashes
	return m
}

// CrashLoop returns the error of a message that is parked.
func (m *Message) CrashLoop() error {
	return recoverability.Unrecoverable(&recoverability.CrashLoopError{
		Queue: m.delivery.Queue, Attempts: m.Before, Crashes: m.delivery.Received.Attempt().N - 1,
	})
}

// ReturnToOrigin moves a message that is stuck in quarantine back to its own queue, where the
// attempts begin anew, so that other messages do not wait. A parked message stays for the next
// visit.
func (m *Message) ReturnToOrigin(ctx context.Context) {
	d := m.delivery
	m.Stuck = true
	if !m.Parked {
		again := d.CopyTo(d.Queue, d.Original.Headers.Clone(), 0)
		err := d.Complete(ctx, nil, []transport.Operation{again})
		if err == nil {
			return
		}
		d.LogError(ctx, slog.LevelWarn, "a message could not be moved back from quarantine", err)
	}
	d.Retry(ctx)
}

// Forbids returns why an action cannot be carried out in quarantine; "" if the action can, or if m
// is nil. Retried at once, the message would seem to have crashed the process, and a parked message
// would crash it again.
func (m *Message) Forbids(action recoverability.Action) string {
	if m == nil {
		return ""
	}
	switch action.(type) {
	case recoverability.Retry:
		return "nothing is retried at once in quarantine"
	case recoverability.RetryInline:
		return "nothing is retried inline in quarantine, where all others wait"
	case recoverability.Delay:
		if m.Parked {
			return "the process crashes over the message"
		}
	case recoverability.MoveToError, recoverability.DeadLetter, recoverability.Discard:
	}
	return ""
}
