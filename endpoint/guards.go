package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/audit"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// A guard lets a message go on, or ends its processing with an outcome. If the outcome is nil, the
// message goes on.
type (
	// arrivalGuard is asked once for each delivery.
	arrivalGuard func(ctx context.Context, in *incoming) outcome
	// admissionGuard is asked before each attempt, and may wait.
	admissionGuard func(ctx context.Context, in *incoming) outcome
	// attemptGuard is asked at the beginning of each attempt. Its error is the failure of the
	// attempt.
	attemptGuard func(ctx context.Context, a *attempt) (outcome, error)
)

// road is the guards of one sort of deliveries, in the order in which they are asked.
type road struct {
	arrival   []arrivalGuard
	admission []admissionGuard
	attempt   []attemptGuard
}

// roads are the roads of an endpoint.
type roads struct {
	ordinary   road
	quarantine road
	satellite  road // has guards of arrival only: no handler receives a message of such a queue
}

// newRoads composes the guards, and decides their order. A check that needs the decoded message is
// no guard: a behavior of the Receive stage may decrypt or replace the body, and have the message
// decoded again.
func newRoads(l *live) (r roads) {
	r.composeArrival(l)
	r.composeAdmission(l)
	r.composeAttempt(l)
	return r
}

func (r *roads) composeArrival(l *live) {
	all := []*road{&r.ordinary, &r.quarantine, &r.satellite}
	arrives := func(g arrivalGuard, on ...*road) {
		for _, road := range on {
			road.arrival = append(road.arrival, g)
		}
	}
	if l.translate != nil {
		arrives(startSlowly, &r.ordinary) // before a function that may hang
		arrives(translate, all...)
	}
	if l.keys != nil { // after Translate, which may set the type
		arrives(passKeys, &r.ordinary)
	}
	arrives(forwardRow, all...)   // before the rate limit: no handler receives such a message
	arrives(mayWait, &r.ordinary) // after forwardRow: a forwarded message does not wait
	arrives(moveDecided, all...)  // before the rate limit, for the same reason
	if l.throttle.Any() {
		arrives(joinLimit, &r.ordinary) // the quarantine has no rate limit
	}
	// After forwardRow and moveDecided, which need the headers of the quarantine.
	arrives(leaveQuarantine, &r.quarantine)
}

func (r *roads) composeAdmission(l *live) {
	if l.throttle.Any() {
		r.ordinary.admission = append(r.ordinary.admission, awaitTurn)
	}
}

func (r *roads) composeAttempt(l *live) {
	begins := func(g attemptGuard, on ...*road) {
		for _, road := range on {
			road.attempt = append(road.attempt, g)
		}
	}
	both := []*road{&r.ordinary, &r.quarantine}
	if l.e.cfg.AuditQueue != "" { // after admission: the wait for a turn is no time of the handlers
		begins(startClock, both...)
	}
	if l.e.cfg.Transactions == None { // before any error: this mode has no retries
		begins(completeFirst, both...)
	}
	begins(refuseUndecodable, both...)
	if l.slow != nil { // after refuseUndecodable: such a message does not reach a handler
		begins(countSlowStart, &r.ordinary)
	}
	if l.outbox != nil {
		begins(refuseOverfull, both...)
	}
	if l.inbox != nil { // before suspect and parked: a message that was handled must not move
		begins(recognize, both...)
	}
	if l.quarantine != nil {
		begins(suspect, &r.ordinary)
	}
	begins(refuseParked, &r.quarantine)
}

func startSlowly(_ context.Context, in *incoming) outcome {
	in.live.slow.Received(in.Received.Attempt().N)
	return nil
}

func mayWait(_ context.Context, in *incoming) outcome {
	in.mayWait = true
	if most := in.live.limits.MaxHold; most > 0 {
		in.HoldUntil = time.Now().Add(most/2 - in.Slot.Age())
	}
	return nil
}

// joinLimit sets the limit that applies to the message.
func joinLimit(_ context.Context, in *incoming) outcome {
	in.turn.Limit = in.live.throttle.Of(func() string {
		if t, _ := in.e.types.named(in.Original.Headers.Get(header.EnclosedMessageTypes)); t != nil {
			return t.name
		}
		return "" // not registered
	})
	return nil
}

// awaitTurn waits, without a slot, until the rate limit allows an attempt. The message waits here
// however often the answer of the limit changes.
func awaitTurn(ctx context.Context, in *incoming) outcome {
	waited := in.turn.Tries > 0
	for {
		d, changed, yields := in.turn.Wait(time.Now())
		if d == 0 {
			break
		}
		if yields {
			return back{throttled{}}
		}
		waited = true
		in.giveUpKeys() // the message whose turn it is may need them
		in.Slot.Free()
		switch in.await(ctx, d, changed) {
		case happened:
		case late:
			return back{throttled{}}
		case stopping, canceled:
			return in.cutShort(ctx)
		}
	}
	if waited && in.Slot.Regain(ctx) != nil {
		return in.cutShort(ctx)
	}
	return nil
}

func startClock(_ context.Context, a *attempt) (outcome, error) {
	a.audited = audit.Copied{StartedAt: time.Now(), Headers: &a.receive.Audit}
	return nil, nil
}

// completeFirst ends an attempt whose message cannot be completed: the broker delivers it again.
func completeFirst(ctx context.Context, a *attempt) (outcome, error) {
	if !a.CompleteFirst(ctx) {
		return over{}, nil
	}
	return nil, nil
}

func refuseUndecodable(_ context.Context, a *attempt) (outcome, error) {
	if reason := a.receive.Message.Undecodable; reason != nil {
		err := fmt.Errorf("undecodable message: %w", reason)
		return nil, recoverability.Unrecoverable(&undecodableError{err})
	}
	return nil, nil
}

func countSlowStart(_ context.Context, a *attempt) (outcome, error) {
	a.live.slow.Received(a.receive.Attempt.N)
	return nil, nil
}

func refuseOverfull(_ context.Context, a *attempt) (outcome, error) {
	if err := a.live.outbox.Overfull(); err != nil {
		return nil, a.session.unit.Fail(err)
	}
	return nil, nil
}

// recognize completes a message that was handled before.
func recognize(ctx context.Context, a *attempt) (outcome, error) {
	handled, err := a.live.inbox.Recognize(ctx, &a.Delivery, &a.session.unit, a == &a.first)
	if !handled {
		return nil, err
	}
	a.completeAgain(ctx)
	return done{}, nil
}

// suspect moves a message over which the process may crash to quarantine.
func suspect(ctx context.Context, a *attempt) (outcome, error) {
	q := a.live.quarantine
	if a.cleared || !q.Suspects(&a.Delivery) {
		return nil, nil
	}
	err := q.Move(ctx, &a.Delivery, a.incoming)
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

func leaveQuarantine(_ context.Context, in *incoming) outcome {
	in.exclusive = in.live.quarantine.Receive(&in.Delivery)
	return nil
}

func refuseParked(_ context.Context, a *attempt) (outcome, error) {
	if a.exclusive.Parked {
		return nil, a.exclusive.CrashLoop()
	}
	return nil, nil
}

// completeAgain completes a message that was handled before. If ServiceControl has returned the
// message, ServiceControl waits for a notice.
func (a *attempt) completeAgain(ctx context.Context) {
	a.Slot.Free()
	a.Log.InfoContext(ctx, "a message was handled before: it is completed, and not handled again",
		slog.String("message", a.LogID()), slog.Int("attempt", a.receive.Attempt.N))
	if err := a.audit.Complete(ctx, nil, nil, nil, ""); err != nil {
		a.Abandon(ctx, "a message that was handled before could not be completed: the broker delivers it again", err)
	}
}
