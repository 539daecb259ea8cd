package endpoint

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// wait is the time between two attempts at a message within one delivery.
type wait struct {
	after time.Duration   // at most; forever for no bound
	event <-chan struct{} // ends the wait when it is closed; nil: nothing does
	keeps kept
	late  way // if the broker is about to deliver the message again; nil: the attempt is made at once
}

// forever is the time of a wait that only its event ends.
const forever time.Duration = -1

// kept is what a message keeps while it waits.
type kept int8

const (
	keepsNothing kept = iota
	keepsKeys
	// keepsSlot: the message keeps its keys too. The wait is short: the stop of the endpoint does
	// not end it.
	keepsSlot
)

// waitEnd is how a wait has ended.
type waitEnd int8

const (
	happened waitEnd = iota // the time has passed, or the event has happened
	late                    // the broker is about to deliver the message again
	stopping                // the endpoint stops
	canceled                // the context has ended, perhaps because the lease is lost
)

// await waits for d, or for an event. A message that was completed first cannot return to its
// queue: then neither the stop of the endpoint nor the broker ends the wait.
func (in *incoming) await(ctx context.Context, d time.Duration, event <-chan struct{}) waitEnd {
	if in.CompletedFirst() {
		return awaitFirst(ctx, d, event, nil, time.Time{})
	}
	return awaitFirst(ctx, d, event, in.Slot.Stopping(), in.HoldUntil)
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
func (in *incoming) pause(ctx context.Context, w *wait) outcome {
	if w == nil {
		return nil // admission waits
	}
	end := happened
	switch w.keeps {
	case keepsNothing:
		in.giveUpKeys()
		in.Slot.Free()
		end = in.await(ctx, w.after, w.event)
	case keepsKeys:
		in.Slot.Free()
		end = in.await(ctx, w.after, w.event)
	case keepsSlot:
		end = awaitFirst(ctx, w.after, w.event, nil, time.Time{})
	}
	switch {
	case end == late && w.late != nil:
		return back{w.late}
	case end == stopping, end == canceled, in.Slot.Regain(ctx) != nil:
		in.Slot.Free()
		return in.cutShort(ctx)
	}
	return nil
}

// cutShort returns the outcome of a message whose attempt, or whose wait, was ended by the stop of
// the endpoint or by the loss of the lease.
func (in *incoming) cutShort(ctx context.Context) outcome {
	if cause := context.Cause(ctx); errors.Is(cause, transport.ErrLeaseLost) {
		in.Lose(ctx, cause)
		return over{}
	}
	return back{released{}}
}
