package process

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/outage"
	"github.com/holdfast-go/holdfast/transport"
)

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
