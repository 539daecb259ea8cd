// Package process has the loop that processes a message, with the guards, the attempts, the waits
// before a further attempt, and the outcomes. A message waits here, whatever the message waits for;
// only a message that waits for its error queue is in package held.
package process

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/audit"
	"github.com/holdfast-go/holdfast/endpoint/internal/inbox"
	"github.com/holdfast-go/holdfast/endpoint/internal/keylock"
	"github.com/holdfast-go/holdfast/endpoint/internal/notify"
	"github.com/holdfast-go/holdfast/endpoint/internal/outage"
	"github.com/holdfast-go/holdfast/endpoint/internal/outbox"
	"github.com/holdfast-go/holdfast/endpoint/internal/overdue"
	"github.com/holdfast-go/holdfast/endpoint/internal/quarantine"
	"github.com/holdfast-go/holdfast/endpoint/internal/recovery"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/endpoint/internal/throttle"
	"github.com/holdfast-go/holdfast/endpoint/internal/typelimit"
	"github.com/holdfast-go/holdfast/endpoint/internal/work"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
)

// Shared has the parts that the messages of an endpoint share. The fields are set before the first
// message.
type Shared struct {
	Settler    settle.Settler
	Auditor    audit.Auditor
	Recovery   recovery.Shared
	Notifier   *notify.Notifier
	Calls      *overdue.Watch // of the program's functions
	Limits     transport.Limits
	Throttle   throttle.Limits
	Locks      *keylock.Locks         // nil: no handler has keys
	Outbox     *outbox.Outbox         // nil: none
	Timers     *outbox.Outbox         // where timers wait; nil: nowhere
	Inbox      *inbox.Inbox           // nil: handled messages are not recorded
	Outage     *outage.Database       // of the outbox or inbox; nil where there is neither
	Quarantine *quarantine.Quarantine // nil where there is no guard
	Slow       *pump.SlowStart        // same

	// CompletesFirst: a message is completed before the handlers run.
	CompletesFirst bool
	// Translate changes a received message for the driver's user; nil for no function.
	Translate func(*transport.Message)
	// ReceiveStage runs stage Receive.
	ReceiveStage pipeline.Func[*pipeline.Receive]
	// DispatchStage runs stage Dispatch. The end of the stage calls [Attempt.Finish].
	DispatchStage pipeline.Func[*pipeline.Dispatch]
	// TypeOf returns the name of the registered type that a header of types names; "" if no type is
	// registered.
	TypeOf func(enclosed string) string
	// HasKeys reports whether a handler of the types has keys.
	HasKeys func(enclosed string) bool
	Errors  Errors
}

// Errors makes the errors of the endpoint. The Go types of errors are in fault headers.
type Errors interface {
	// TimedOut reports whether an attempt failed because the time of the attempt, or of a handler,
	// was over.
	TimedOut(err error) bool
	// Undecodable returns the error of a message that cannot be read.
	Undecodable(reason error) error
	// Undeliverable returns the error of a message that a queue refused when the message was due.
	Undeliverable(queue string, err error) error
	// Decided returns the error of a message that failed in an earlier delivery.
	Decided(text, class string) error
}

// Message is a delivery in process, with the state of all attempts. A Message is not safe for
// concurrent use.
type Message struct {
	settle.Delivery
	*Shared

	Attempts Attempts
	Keys     keylock.Held

	first      overdue.Call // of Translate, and of the first attempt
	turn       throttle.Turn
	conflicts  conflicts
	impediment outage.Impediment
	exclusive  *quarantine.Message // nil outside quarantine
	attempts   int                 // begun
	mayWait    bool                // for the error queue, without a slot
	cleared    bool                // a suspect that the quarantine did not take
	audit      audit.Message
}

// Attempts makes the attempts at a message.
type Attempts interface {
	// NewAttempt returns the next attempt. Each attempt has a new session, because a goroutine that
	// outlives an attempt may still use the session.
	NewAttempt() *Attempt
}

// Attempt is an attempt at a message: received, decoded, handled and settled. Of, Unit and Receive
// are set before the attempt begins.
type Attempt struct {
	*Message

	Of   recovery.Attempt // the endpoint's part of the attempt
	Unit *work.Unit       // of the handlers
	// Running is the call of the program's functions in the attempt. Each attempt has a new call,
	// because a goroutine that outlives an attempt may still use the call. Nil of an attempt that
	// is not made, for example at a message that only moves.
	Running     *overdue.Call
	Receive     pipeline.Receive
	Dispatch    pipeline.Dispatch
	limit       *typelimit.Limiter // that the message is within; nil: none
	RecoveredBy *recovery.Recovery // nil unless the attempt has failed

	keysEnded way // how the message returns, if its wait has ended without the keys

	audited audit.Copied // set if there are audit copies
}

// maxConflicts bounds the attempts at a delivery whose transaction lost a conflict.
const maxConflicts = 10

// conflicts counts the lost conflicts of a delivery. A lost conflict uses up no retry.
type conflicts struct {
	n     int
	pause backoff.Backoff // jittered, so that two transactions do not meet again
}

// next counts a conflict, and returns the pause before the next attempt.
func (c *conflicts) next() time.Duration {
	if c.n++; c.n == 1 {
		c.pause = backoff.Backoff{Min: 5 * time.Millisecond, Max: 200 * time.Millisecond}
	}
	return c.pause.Next()
}

// Begin sets the fields of the delivery. arrivals is the order of keys in the queue; nil without
// keys, and in quarantine.
func (m *Message) Begin(
	s *Shared, d transport.Delivery, slot *pump.Slot, queue string, arrivals *keylock.Arrivals,
) {
	m.Shared = s
	m.Delivery.Settler, m.Received, m.Slot, m.Queue = &s.Settler, d, slot, queue
	m.Original, m.ID = settle.OriginalOf(d.Message())
	m.audit.Delivery, m.audit.Auditor = &m.Delivery, &s.Auditor
	m.Keys.Locks, m.Keys.Arrivals = s.Locks, arrivals
	m.watch(&m.first)
}

// watch has the call tell the watch of the slot. If the messages behind wait for the keys, the watch
// tells the message that the call is late.
func (m *Message) watch(call *overdue.Call) *overdue.Call {
	if call.Slot = m.Slot; m.Keys.Arrivals != nil {
		call.Observer = m
	}
	return call
}

// begin returns the next attempt, with a call.
func (m *Message) begin() *Attempt {
	a := m.Attempts.NewAttempt()
	if m.attempts++; m.attempts == 1 {
		a.Running = &m.first
	} else {
		a.Running = m.watch(new(overdue.Call))
	}
	return a
}

// Late implements [overdue.Observer]: if the call of a message is late, the messages behind take
// keys before the message.
func (m *Message) Late() { m.Keys.Arrivals.Overtake(m.Slot) }

// Report implements [notify.Reporter].
func (m *Message) Report(p *notify.Place, f func()) {
	m.Keys.GiveUp(m.Slot)
	settled := func() {
		if m.Over() {
			m.Slot.Settled()
		}
	}
	if m.exclusive != nil {
		settled = nil
	}
	m.Notifier.Report(p, settled, f)
}

// newRecovery returns a recovery of the message.
func (m *Message) newRecovery() *recovery.Recovery {
	return &recovery.Recovery{Failed: recovery.Failed{
		Shared: &m.Recovery, Delivery: &m.Delivery, Reporter: m,
		Audit: &m.audit, Exclusive: m.exclusive, MayWait: m.mayWait,
	}}
}

// outcome is how an attempt at a message ended. Guards have outcomes too: a guard ends the
// processing of a message before an attempt, or the attempt before the handlers.
//
//sumtype:decl
type outcome interface{ isOutcome() }

type (
	// done: the message was handled, now or before, and is settled. The success is recorded.
	done struct{}
	// over: nothing is left to do about the message, and nothing is recorded. The message is
	// settled, or the lease is lost, or the broker delivers the message again by itself.
	over struct{}
	// again: another attempt follows within the delivery.
	again struct{ after *wait } // nil: at once, as far as the rate limit allows
	// back: the message returns to its queue.
	back struct{ by way }
	// failed: recoverability decides. The message may be settled already, when a behavior failed
	// afterwards.
	failed struct{ err error }
)

func (done) isOutcome() {}

func (over) isOutcome() {}

func (again) isOutcome() {}

func (back) isOutcome() {}

func (failed) isOutcome() {}

// way is how a message returns to its queue. Only stuck uses up a retry.
//
//sumtype:decl
type way interface{ isWay() }

type (
	// released: the message returns as it is. The broker may count the delivery.
	released struct{}
	// untouched: the delivery does not count. Where the broker would count a release, the message
	// returns as a copy that is due after a while.
	untouched struct{ after time.Duration }
	// throttled: attempts are limited. The message returns as a copy, even where a release does not
	// count: the broker would deliver a released message again at once.
	throttled struct{}
	// behind: a queue that the message sends to takes no messages. The message waits in the queue of
	// the endpoint until the busy queue takes messages.
	behind struct{ queue string }
	// stuck: the message could be neither settled nor moved. The message was reported, and is
	// requeued after a pause.
	stuck struct{ recovery.Stuck }
)

func (released) isWay() {}

func (untouched) isWay() {}

func (throttled) isWay() {}

func (behind) isWay() {}

func (stuck) isWay() {}

// wait is the time between two attempts at a message within one delivery.
type wait struct {
	after time.Duration   // at most; forever for no bound
	event <-chan struct{} // closed when the wait is over; nil for no event
	keeps kept
	late  way // if the broker is about to deliver the message again; nil: the attempt is made at once
}

// forever is the time of a wait without a bound: only the event ends the wait.
const forever time.Duration = -1

// kept is what a message keeps during a wait.
type kept int8

const (
	keepsNothing kept = iota
	keepsKeys
	// keepsSlot: the message keeps the keys too. The wait is short: the stop of the endpoint does
	// not end the wait.
	keepsSlot
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

// waitEnd is how a wait has ended.
type waitEnd int8

const (
	happened waitEnd = iota // the time has passed, or the event has happened
	late                    // the broker is about to deliver the message again
	stopping                // the endpoint stops
	canceled                // the context has ended, perhaps because the lease is lost
)

// await waits for d, or for an event. A message that was completed first cannot return to the queue:
// then neither the stop of the endpoint nor the broker ends the wait.
func (m *Message) await(ctx context.Context, d time.Duration, event <-chan struct{}) waitEnd {
	if m.CompletedFirst() {
		return awaitFirst(ctx, d, event, nil, time.Time{})
	}
	return awaitFirst(ctx, d, event, m.Slot.Stopping(), m.HoldUntil)
}

// awaitFirst waits until d has passed, event or stop is closed, until has come, or ctx ends. The
// stop and the end of ctx are before the event if both have come.
func awaitFirst(
	ctx context.Context, d time.Duration, event, stop <-chan struct{}, until time.Time,
) waitEnd {
	var passed, end <-chan time.Time
	if d != forever {
		timer := time.NewTimer(d)
		defer timer.Stop()
		passed = timer.C
	}
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		end = timer.C
	}
	first := happened
	select {
	case <-passed:
	case <-event:
	case <-end:
		first = late
	case <-stop:
	case <-ctx.Done():
	}
	select {
	case <-ctx.Done():
		return canceled
	case <-stop:
		return stopping
	default:
		return first
	}
}

// pause waits before the next attempt. It returns nil if the attempt follows, and otherwise the
// outcome of the message.
func (m *Message) pause(ctx context.Context, w *wait) outcome {
	if w == nil {
		return nil // admission waits
	}
	end := happened
	switch w.keeps {
	case keepsNothing:
		m.Keys.GiveUp(m.Slot)
		m.Slot.Free()
		end = m.await(ctx, w.after, w.event)
	case keepsKeys:
		m.Slot.Free()
		end = m.await(ctx, w.after, w.event)
	case keepsSlot:
		end = awaitFirst(ctx, w.after, w.event, nil, time.Time{})
	}
	switch {
	case end == late && w.late != nil:
		return back{w.late}
	case end == stopping, end == canceled, m.Slot.Regain(ctx) != nil:
		m.Slot.Free()
		return m.cutShort(ctx)
	}
	return nil
}

// cutShort returns the outcome of a message whose attempt, or whose wait, was ended by the stop of
// the endpoint or by the loss of the lease.
func (m *Message) cutShort(ctx context.Context) outcome {
	if cause := context.Cause(ctx); errors.Is(cause, transport.ErrLeaseLost) {
		m.Lose(ctx, cause)
		return over{}
	}
	return back{released{}}
}

// awaitDatabase returns the outcome of an attempt that failed because the database of the outbox or
// inbox cannot be used; nil of any other attempt. The message waits, without a slot, until the
// database answers. While the database stores the rows of the rest, the message waits for a time.
func (a *Attempt) awaitDatabase(ctx context.Context, tx transport.Tx, err error) outcome {
	down := a.Outage.Down(ctx, &a.Delivery, a.Unit, tx, err)
	if down == nil || ctx.Err() != nil {
		return nil
	}
	w := &wait{late: untouched{outage.MaxPause}}
	if !a.Outage.IsImpeded(ctx, tx, down) {
		w.after, w.event, w.keeps = forever, a.Outage.Began(ctx, down), keepsKeys
		return again{w}
	}
	if w.after, err = a.impediment.Next(ctx, &a.Delivery, err); err != nil {
		return failed{err}
	}
	return again{w}
}
