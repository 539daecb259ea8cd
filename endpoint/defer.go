package endpoint

import (
	"context"
	"log/slog"

	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// deferrable tells whether the message can leave our hands for a while.
func (in *incoming) deferrable() bool { return in.live.limits.MaxDelay > 0 }

// putOff has the message come again later with no retry used up: as a copy where the transport
// has delays. Else it is released, which counts as a hand-out where releases are not free.
func (in *incoming) putOff(ctx context.Context) {
	in.session = &Session{in: in}
	if !in.deferrable() {
		in.release(ctx)
		return
	}
	used := 0
	if attempt := in.receive.Attempt; attempt.Exact { // else it is remembered by the message's id
		used = recoverability.UsedRetries(in.original.Headers) + attempt.N - 1
	}
	after := min(in.holding.throttle.deferral(), in.live.limits.MaxDelay)
	later := in.copyTo(in.queue, recoverability.DeferHeaders(in.original.Headers, used), after)
	if err := in.finish(ctx, []transport.Operation{later}); err != nil {
		in.hold(ctx, err)
		return
	}
	in.log().DebugContext(ctx, "a message is put off, without a retry used up",
		slog.String("message", in.id), slog.Duration("after", after))
}

// release gives the message back untouched.
func (in *incoming) release(ctx context.Context) {
	if err := in.settle(ctx, in.delivery.Release); err != nil {
		in.log().WarnContext(ctx, "a message could not be released", slog.String("message", in.id), slog.Any("error", err))
	}
}
