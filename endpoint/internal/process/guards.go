package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/audit"
	"github.com/holdfast-go/holdfast/endpoint/internal/panics"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// A guard lets a message go on, or ends the processing with an outcome. If the outcome is nil, the
// message goes on.
type guard func(ctx context.Context, m *Message) outcome

// road is the guards of a sort of deliveries, in the order of the questions.
type road struct {
	arrival   []guard            // asked once for each delivery
	admission []guard            // asked before each attempt; may wait
	attempt   []attemptGuard     // asked at the beginning of each attempt
	ends      []func(m *Message) // called when the processing has ended
}

// roads are the roads of an endpoint.
type roads struct {
	road       // of messages from the queues of the endpoint
	quarantine road
	satellite  road // has guards of arrival only: no handler receives a message of the driver's queues
}

// compose composes the guards, and decides the order. A check that needs the decoded message is
// no guard: a behavior of the Receive stage may decrypt or replace the body, and have the message
// decoded again.
func (r *roads) compose(s *Shared) {
	r.composeMessage(s)
	r.composeAttempt(s)
}

// composeMessage composes the guards that are asked about a message.
func (r *roads) composeMessage(s *Shared) {
	all := []*road{&r.road, &r.quarantine, &r.satellite}
	arrives := func(g guard, on ...*road) {
		for _, road := range on {
			road.arrival = append(road.arrival, g)
		}
	}
	if s.Slow != nil { // first, because a slow start ends a while after the first message of any kind
		arrives(startSlowly, &r.road)
	}
	if s.Translate != nil {
		arrives(translate, all...)
	}
	if s.Locks != nil { // after Translate, which may set the type
		arrives(passKeys, &r.road)
		r.ends, r.quarantine.ends = append(r.ends, giveUpKeys), append(r.quarantine.ends, giveUpKeys)
	}
	arrives(forwardRow, all...)  // before the rate limit: no handler receives a forwarded message
	arrives(mayWait, &r.road)    // after forwardRow: a forwarded message does not wait
	arrives(moveDecided, all...) // before the rate limit, for the same reason
	if len(s.Throttle) > 0 {
		arrives(joinLimit, &r.road) // the quarantine has no rate limit
		r.admission = append(r.admission, awaitTurn)
		r.ends = append(r.ends, passTurn) // after giveUpKeys: the message with the next turn may need the keys
	}
	// After forwardRow and moveDecided, which need the headers of the quarantine.
	arrives(leaveQuarantine, &r.quarantine)
}

// composeAttempt composes the guards that are asked about an attempt.
func (r *roads) composeAttempt(s *Shared) {
	begins := func(g attemptGuard, on ...*road) {
		for _, road := range on {
			road.attempt = append(road.attempt, g)
		}
	}
	both := []*road{&r.road, &r.quarantine}
	if s.Auditor.AuditQueue != "" { // after admission: the wait for a turn is no time of the handlers
		begins(startClock, both...)
	}
	if s.CompletesFirst { // before any error: this mode has no retries
		begins(completeFirst, both...)
	}
	begins(refuseUndecodable, both...)
	if s.Slow != nil { // after refuseUndecodable: an undecodable message does not reach a handler
		begins(countSlowStart, &r.road)
	}
	if s.Outbox != nil {
		begins(refuseOverfull, both...)
	}
	if s.Inbox != nil { // before suspect and parked: a message that was handled must not move
		begins(recognize, both...)
	}
	if s.Quarantine != nil {
		begins(suspect, &r.road)
	}
	begins(refuseParked, &r.quarantine)
}

func giveUpKeys(m *Message) { m.Keys.GiveUp(m.Slot) }

func passTurn(m *Message) { m.turn.Pass() }

func startSlowly(_ context.Context, m *Message) outcome {
	m.Slow.Arrived()
	return nil
}

// nameTranslate is the name of a function of the program: see [overdue.Call.EnterFunction].
var nameTranslate = "Transport.Translate"

// translate has the function of the driver's user change the message. If the function fails, the
// message cannot be decoded.
func translate(_ context.Context, m *Message) outcome {
	if m.Received.Message().Undecodable != nil {
		return nil
	}
	translated := settle.SharedCopy(m.Received.Message())
	err := m.Calls.Apart(&m.first, &nameTranslate, m.Queue, m.ID, func() error {
		m.Translate(translated)
		return nil
	})
	if err != nil {
		translated = settle.SharedCopy(m.Received.Message())
		translated.Undecodable = fmt.Errorf("%s: %w", nameTranslate, err)
	}
	m.Original, m.ID = settle.OriginalOf(translated)
	return nil
}

// passKeys lets the messages behind the message take keys if no handler of the message has a key, by
// the headers at the arrival of the message.
func passKeys(_ context.Context, m *Message) outcome {
	if !m.HasKeys(m.Original.Headers.Get(header.EnclosedMessageTypes)) {
		m.Keys.Arrivals.Pass(m.Slot)
	}
	return nil
}

func mayWait(_ context.Context, m *Message) outcome {
	m.mayWait = true
	if most := m.Limits.MaxHold; most > 0 {
		m.HoldUntil = time.Now().Add(most/2 - m.Slot.Age())
	}
	return nil
}

// moveDecided moves a message that was held before to the error queue, without a handler.
func moveDecided(ctx context.Context, m *Message) outcome {
	queue, ok := m.Received.Message().Headers.Lookup(header.HoldfastFaultDecided)
	if !ok {
		return nil
	}
	m.Slot.Free()
	a, original := m.Attempts.NewAttempt(), *copies.Unpacked(m.Received.Message())
	var failed header.Map
	original.Headers, failed = fault.LeaveDecided(original.Headers)
	m.Original = &original
	failure := m.Errors.Decided(failed.Get(header.ExceptionMessage), failed.Get(header.HoldfastFaultClass))
	return m.recovered(ctx, m.newRecovery().MoveDecided(ctx, a.Of, queue, failed, failure))
}

// joinLimit sets the limit that applies to the message.
func joinLimit(_ context.Context, m *Message) outcome {
	m.turn.Limit = m.Throttle.Of(func() string {
		return m.TypeOf(m.Original.Headers.Get(header.EnclosedMessageTypes))
	})
	return nil
}

// awaitTurn waits, without a slot, until the rate limit allows an attempt. The message waits here
// however often the answer of the limit changes.
func awaitTurn(ctx context.Context, m *Message) outcome {
	waited := m.turn.Tries > 0
	for {
		d, changed, yields := m.turn.Wait(time.Now())
		if d == 0 {
			break
		}
		if yields {
			return back{throttled{}}
		}
		waited = true
		m.Keys.GiveUp(m.Slot) // the message with the next turn may need the keys
		m.Slot.Free()
		switch m.await(ctx, d, changed) {
		case happened:
		case late:
			return back{throttled{}}
		case stopping, canceled:
			return m.cutShort(ctx)
		}
	}
	if waited && m.Slot.Regain(ctx) != nil {
		return m.cutShort(ctx)
	}
	return nil
}

func startClock(_ context.Context, a *Attempt) (outcome, error) {
	a.audited = audit.Copied{StartedAt: time.Now(), Headers: &a.Receive.Audit}
	return nil, nil
}

// completeFirst ends an attempt whose message cannot be completed: the broker delivers the message
// again.
func completeFirst(ctx context.Context, a *Attempt) (outcome, error) {
	if !a.CompleteFirst(ctx) {
		return over{}, nil
	}
	return nil, nil
}

func refuseUndecodable(_ context.Context, a *Attempt) (outcome, error) {
	if reason := a.Receive.Message.Undecodable; reason != nil {
		err := fmt.Errorf("undecodable message: %w", reason)
		return nil, recoverability.Unrecoverable(a.Errors.Undecodable(err))
	}
	return nil, nil
}

func countSlowStart(_ context.Context, a *Attempt) (outcome, error) {
	a.Slow.Received(a.Receive.Attempt.N)
	return nil, nil
}

func refuseOverfull(_ context.Context, a *Attempt) (outcome, error) {
	if err := a.Outbox.Overfull(); err != nil {
		return nil, a.Unit.Fail(err)
	}
	return nil, nil
}

// recognize completes a message that was handled before.
func recognize(ctx context.Context, a *Attempt) (outcome, error) {
	handled, err := a.Inbox.Recognize(ctx, &a.Delivery, a.Unit, a.attempts == 1)
	if !handled {
		return nil, err
	}
	a.completeAgain(ctx)
	return done{}, nil
}

// suspect moves a message over which the process may crash to quarantine.
func suspect(ctx context.Context, a *Attempt) (outcome, error) {
	q := a.Quarantine
	if a.Receive.Attempt.N < 2 || a.cleared || !q.Suspects(&a.Delivery) {
		return nil, nil
	}
	err := q.Move(ctx, &a.Delivery, a.Message)
	if err == nil {
		return over{}, nil
	}
	if errors.Is(err, transport.ErrNoQueue) {
		a.cleared = true
		return nil, nil
	}
	if refused, ok := errors.AsType[*copies.CopyError](err); ok {
		return a.moveRefused(ctx, refused), nil
	}
	a.Slot.Free()
	return a.keep(ctx, err), nil
}

func leaveQuarantine(_ context.Context, m *Message) outcome {
	m.exclusive = m.Quarantine.Receive(&m.Delivery)
	return nil
}

func refuseParked(_ context.Context, a *Attempt) (outcome, error) {
	if a.exclusive.Parked {
		return nil, a.exclusive.CrashLoop()
	}
	return nil, nil
}

// forwardRow is a guard. It ends the processing of a message for another queue, if the message was
// kept in this queue until the message was due. No handler receives the message: the message is sent
// on and completed. If the queue refuses the message, the message moves to the error queue. After
// another error the message is requeued after a pause.
func forwardRow(ctx context.Context, m *Message) outcome {
	r, ok := m.Received.(transport.Relayer)
	if !ok {
		return nil
	}
	ops := r.Relay()
	if len(ops) == 0 {
		return nil
	}
	if err := sendOn(ctx, m, ops); err != nil {
		m.LogError(ctx, slog.LevelError, "a message that was due could not be sent on to its queue: it stays and is tried again",
			err, slog.String("queue", ops[0].Queue))
		return m.keep(ctx, err)
	}
	return over{}
}

func sendOn(ctx context.Context, m *Message, ops []transport.Operation) (err error) {
	defer panics.Catch(&err)
	err = m.Complete(ctx, nil, ops)
	switch busy := m.BusyQueue(); {
	case err == nil:
		return nil
	case busy != "":
		m.Postpone(ctx, busy)
		return nil
	case copies.Refused(err):
		queue, a := ops[0].Queue, m.Attempts.NewAttempt()
		return m.newRecovery().Bury(ctx, a.Of, cmp.Or(queue, m.Queue), m.Errors.Undeliverable(queue, err))
	}
	return err
}

// Derive returns the operations that a driver derives from a message of the driver's own queues.
type Derive = func(context.Context, *transport.Message) ([]transport.Operation, error)

// forward sends the operations that the driver derives from the message, and completes the message.
func forward(ctx context.Context, m *Message, derive Derive) (err error) {
	defer panics.Catch(&err)
	a := m.Attempts.NewAttempt()
	ops, err := derive(ctx, a.Receive.Message)
	if dead, ok := errors.AsType[*transport.DeadLetteredError](err); ok {
		return m.newRecovery().Bury(ctx, a.Of, cmp.Or(dead.Queue, m.Queue), dead)
	}
	if err != nil {
		return err
	}
	return m.Complete(ctx, nil, ops)
}
