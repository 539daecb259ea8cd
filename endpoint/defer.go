package endpoint

import (
	"context"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/transport"
)

// deferrable tells whether the message can leave our hands for a while.
func (in *incoming) deferrable() bool { return in.live.limits.MaxDelay > 0 }

// putOff has the message come again later with no retry used up: as a copy where the transport
// has delays. Else it is released, which counts as a hand-out where releases are not free.
func (in *incoming) putOff(ctx context.Context) {
	in.session = &Session{in: in}
	if !in.deferrable() {
		in.e.failures.SetThrottled(in.failureKey(), in.throttledBefore())
		in.release(ctx)
		return
	}
	after := min(in.holding.throttle.deferral(), in.live.limits.MaxDelay)
	headers := fault.DeferHeaders(in.original.Headers, in.usedRetries(), in.throttledBefore())
	if err := in.finish(ctx, []transport.Operation{in.copyTo(in.queue, headers, after)}); err != nil {
		in.hold(ctx, err)
		return
	}
	if !in.gone {
		in.e.failures.Forget(in.failureKey()) // the copy carries them
	}
	in.log().DebugContext(ctx, "a message is put off, without a retry used up",
		slog.String("message", in.id), slog.Duration("after", after))
}

// usedRetries is how many immediate retries of this cycle the message has used up, as far as this process knows where
// the broker does not count.
func (in *incoming) usedRetries() int {
	used := fault.UsedRetries(in.original.Headers)
	if attempt := in.receive.Attempt; attempt.Exact {
		return used + attempt.N - 1
	}
	return used + in.e.failures.Failed(in.failureKey())
}

// throttled are the failures that used up no retry before this delivery. They are forgotten once the policy has
// decided: then the message has another delivery of the same copy.
func (in *incoming) throttled(now time.Time) fault.Throttled {
	switch {
	case !in.deferrable():
		return in.e.failures.Throttled(in.failureKey())
	case in.receive.Attempt.N > 1:
		return fault.Throttled{}
	}
	return fault.ThrottledFailures(in.original.Headers, now)
}

// throttledBefore are those, and the failures of this delivery.
func (in *incoming) throttledBefore() fault.Throttled {
	if in.holding.tries > 0 {
		return in.holding.throttled
	}
	return in.throttled(time.Now())
}

// remembersThrottled reports whether this process alone may know of such failures.
func (in *incoming) remembersThrottled() bool {
	return in.holding != nil && in.holding.throttle != nil && !in.deferrable()
}

// release gives the message back untouched.
func (in *incoming) release(ctx context.Context) {
	if err := in.settle(ctx, in.delivery.Release); err != nil {
		in.log().WarnContext(ctx, "a message could not be released", slog.String("message", in.id), slog.Any("error", err))
	}
}
