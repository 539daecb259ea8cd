package endpoint

import (
	"context"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/failurelog"
	"github.com/holdfast-go/holdfast/endpoint/internal/overdue"
	"github.com/holdfast-go/holdfast/endpoint/internal/throttle"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// retriesInPlace is how often a throttled message is attempted again here before another has its
// turn.
const retriesInPlace = 3

// throttling is a message's part in a rate limit. It lasts for all attempts at a delivery.
type throttling struct {
	in    *incoming
	limit *throttle.Limit // nil where nothing is limited
	turn  throttle.Turn
	until time.Time // until when the message may wait here; zero is for ever
}

// joinLimit is a guard. It sets the message's part in the rate limit that applies to the message,
// if there is one, and the time until which the message may wait.
func joinLimit(_ context.Context, in *incoming) outcome {
	t := &in.throttling
	t.in, t.limit = in, in.e.limits.Of(func() string {
		if t, _ := in.e.types.named(in.Original.Headers.Get(header.EnclosedMessageTypes)); t != nil {
			return t.name
		}
		return "" // not registered
	})
	if most := in.live.limits.MaxHold; most > 0 {
		t.until = time.Now().Add(most/2 - in.Slot.Age())
	}
	return nil
}

// await waits, without a slot, until an attempt is allowed. It returns nil then, and otherwise the
// outcome of the message. The message waits here however often the answer of the limit changes: no
// attempt is made for that.
func (t *throttling) await(ctx context.Context) outcome {
	if t.limit == nil {
		return nil
	}
	in, waited := t.in, t.turn.Tries > 0
	for {
		d, changed := t.limit.Wait(&t.turn, time.Now())
		if d == 0 {
			break
		}
		if d == throttle.Blocked && t.limit.Type != "" && t.deferrable() {
			return back{throttled{}} // so that messages of other types, which are behind it, are attempted
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

// throttle records a failure. It reports whether attempts are limited, so that the failure uses up
// no retry. The failure that begins the limit, and one more than RateLimit allows, are for
// recoverability to decide about.
func (a *attempt) throttle(ctx context.Context, err error) bool {
	t := &a.throttling
	if t.limit == nil {
		return false
	}
	f, mendable := a.facts(err), false
	failed := a.asFunction(new(overdue.Call), &nameMatchers, func() error {
		mendable = f.Mendable()
		return nil
	})
	if failed != nil || !mendable {
		return false
	}
	limited := t.limit.Failed(a.ID, f.Now)
	t.report(ctx, f)
	if !limited || a.CompletedFirst() {
		return false
	}
	if t.limit.Exhausted(&t.turn, f.Now, t.earlier) {
		a.Log.InfoContext(ctx, "a message failed as often, or for as long, as RateLimit allows: the policy decides",
			slog.String("message", a.LogID()),
			slog.Int("failures", t.turn.Failures.Failures), slog.Time("since", t.turn.Failures.Since))
		return false
	}
	a.Log.InfoContext(ctx, "a message failed while attempts are limited: it uses up no retry",
		slog.String("message", a.LogID()), slog.Int("tries", t.turn.Tries), slog.Any("error", err))
	return true
}

// succeeded records that a message was handled.
func (t *throttling) succeeded(ctx context.Context) {
	if t.limit != nil && t.limit.Succeeded() {
		t.report(ctx, recoverability.Failure{Queue: t.in.Queue, Now: time.Now()})
	}
}

// pass frees the turn for another message.
func (t *throttling) pass() {
	if t.limit != nil {
		t.limit.Pass(&t.turn)
	}
}

// report carries out a change of the limit, if there was one, and notifies of it.
func (t *throttling) report(ctx context.Context, f recoverability.Failure) {
	t.limit.Report(func(before, since time.Time, failures int) {
		in, kind := t.in, recoverability.RateLimitStarted
		if t.limit.Type == "" {
			for _, s := range in.live.sources {
				s.SetSerial(!since.IsZero())
			}
		}
		if since.IsZero() {
			kind = recoverability.RateLimitEnded
			in.Log.InfoContext(ctx, "a message was handled: attempts are no longer limited",
				slog.String("type", t.limit.Type), slog.Duration("after", f.Now.Sub(before)))
		} else {
			in.Log.WarnContext(ctx, "failures in a row: one message at a time is attempted until one is handled",
				slog.String("type", t.limit.Type), slog.Int("failures", failures), slog.Any("error", f.Err))
		}
		concerns := &recoverability.Failure{Queue: f.Queue, Type: t.limit.Type, Err: f.Err, Now: f.Now}
		place := in.live.notifier.Next(failurelog.KeyOf("", t.limit.Type)) // no queue has that name
		in.live.reports.Go(func() {                                        // the next change does not wait for it
			defer place.End()
			place.Wait()
			in.live.notifier.Notify(ctx, recoverability.Notification{Kind: kind, Failure: concerns})
		})
	})
}

// deferrable reports whether the message can return later as a copy.
func (t *throttling) deferrable() bool { return t.in.live.limits.MaxDelay > 0 }

// postpone returns the message to its queue with no retry used up: for later, as a copy, where the
// transport has delays. Else it is released, which counts as an attempt where releases are not
// free.
func (t *throttling) postpone(ctx context.Context) outcome {
	in := t.in
	if !t.deferrable() {
		in.e.failures.SetThrottled(in.FailureKey(), t.all())
		in.Release(ctx)
		return over{}
	}
	return t.copyFor(ctx, t.limit.Deferral(time.Now()))
}

// copyFor completes the message with a copy of it that is due after a while, with no retry used up.
// If the copy is refused, the outcome is another one.
func (t *throttling) copyFor(ctx context.Context, after time.Duration) outcome {
	in := t.in
	after = min(after, in.live.limits.MaxDelay)
	headers := fault.DeferHeaders(in.Original.Headers, t.usedRetries(), t.all())
	err := in.Complete(ctx, nil, []transport.Operation{in.CopyTo(in.Queue, headers, after)})
	switch {
	case err == nil:
	case copies.OfMessage(err):
		return in.moveRefused(ctx, &copies.CopyError{Doing: "the message could not be postponed", Err: err})
	default:
		return back{in.keep(ctx, err)}
	}
	if !in.LostLease() {
		in.e.failures.Forget(in.FailureKey()) // the copy carries them
	}
	in.Log.DebugContext(ctx, "a message is postponed, without a retry used up",
		slog.String("message", in.LogID()), slog.Duration("after", after))
	return over{}
}

// usedRetries returns how many immediate retries of this cycle the message has used up, as far as
// this process knows where the broker does not count.
func (t *throttling) usedRetries() int {
	in := t.in
	used := fault.UsedRetries(in.Original.Headers)
	if attempt := in.Received.Attempt(); attempt.Exact {
		return used + attempt.N - 1
	}
	known, _ := in.e.failures.Known(in.FailureKey())
	return used + known.Failed
}

// earlier returns the failures before this delivery that used up no retry. They are forgotten once
// the policy has decided: then the message has another delivery of the same copy.
func (t *throttling) earlier(now time.Time) fault.Throttled {
	in := t.in
	switch {
	case !t.deferrable():
		known, _ := in.e.failures.Known(in.FailureKey())
		return known.Throttled
	case in.Received.Attempt().N > 1:
		return fault.Throttled{}
	}
	return fault.ThrottledFailures(in.Original.Headers, now)
}

// all returns those, and the failures of this delivery.
func (t *throttling) all() fault.Throttled {
	if t.turn.Tries > 0 {
		return t.turn.Failures
	}
	return t.earlier(time.Now())
}
