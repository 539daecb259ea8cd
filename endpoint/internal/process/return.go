package process

import (
	"context"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/recovery"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/transport"
)

// end ends the processing of the message with an outcome after which no attempt follows.
func (m *Message) end(ctx context.Context, out outcome) {
	b, returns := out.(back)
	for returns {
		out = m.giveBack(ctx, b.by)
		b, returns = out.(back)
	}
	if _, ok := out.(done); ok {
		m.succeeded(ctx)
	}
}

// giveBack returns the message to its queue. If the queue has refused the message's copy, the
// outcome is another way, and stuck is the last.
func (m *Message) giveBack(ctx context.Context, by way) outcome {
	switch by := by.(type) {
	case released:
		m.Release(ctx)
	case behind:
		m.Postpone(ctx, by.queue)
	case untouched:
		if m.exclusive == nil && !m.Limits.FreeRelease && m.Limits.MaxDelay > 0 {
			return m.copyLater(ctx, by.after)
		}
		m.Release(ctx)
	case throttled:
		if m.Limits.MaxDelay > 0 {
			return m.copyLater(ctx, m.turn.Deferral(time.Now()))
		}
		m.turn.Remember(&m.Delivery)
		m.Release(ctx)
	case stuck:
		m.newRecovery().Requeue(ctx, by.Stuck)
	}
	return over{}
}

// copyLater completes the message with a copy that is due after a while, with no retry used up. If
// the copy is refused for the content, the message moves to the error queue.
func (m *Message) copyLater(ctx context.Context, after time.Duration) outcome {
	after = min(after, m.Limits.MaxDelay)
	later := m.CopyTo(m.Queue, m.turn.Headers(&m.Delivery), after)
	err := m.Complete(ctx, nil, []transport.Operation{later})
	switch {
	case err == nil:
	case copies.OfMessage(err):
		return m.moveRefused(ctx, &copies.CopyError{Doing: "the message could not be postponed", Err: err})
	default:
		return m.keep(ctx, err)
	}
	if !m.LostLease() {
		m.Failures.Forget(m.FailureKey()) // the copy has the number of failures
	}
	m.Log.DebugContext(ctx, "a message is postponed, without a retry used up",
		slog.String("message", m.LogID()), slog.Duration("after", after))
	return over{}
}

// succeeded records that the handlers succeeded and the message is settled.
func (m *Message) succeeded(ctx context.Context) {
	n := m.Received.Attempt().N
	if m.exclusive == nil {
		m.Slow.Succeeded(n)
	}
	if m.exclusive != nil || (n > 1 || m.Inline > 0) && !m.LostLease() {
		m.ForgetFailures()
	}
	if m.turn.Limit != nil {
		m.turn.Succeeded(ctx, &m.Delivery)
	}
}

// keep reports a message that can be neither settled nor moved. The message is requeued.
func (m *Message) keep(ctx context.Context, err error) outcome {
	return back{stuck{m.newRecovery().Keep(ctx, err)}}
}

// moveRefused moves a message to the error queue, because a copy of the message was refused for the
// content.
func (m *Message) moveRefused(ctx context.Context, failure *copies.CopyError) outcome {
	return m.recovered(ctx, m.newRecovery().MoveRefused(ctx, m.Attempts.NewAttempt().Of, failure))
}

// recovered returns the outcome of a message after a recovery.
func (m *Message) recovered(ctx context.Context, res recovery.Result) outcome {
	switch res := res.(type) {
	case recovery.Retrying:
		m.Inline++
		m.FailureCounted = false
		return again{&wait{after: res.After}}
	case recovery.Waits:
		m.turn.Pass()
		res.Hold(ctx)
	case recovery.Stuck:
		return back{stuck{res}}
	case recovery.Settled:
	}
	return over{}
}
