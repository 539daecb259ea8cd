package endpoint

import (
	"context"
	"log/slog"

	"github.com/holdfast-go/holdfast/transport"
)

// postpone returns the message to its queue until a queue that it sends to takes messages again. It has not failed: no
// attempt is used up, and no slot is held. It is false where that is not why it was not completed, or the transport cannot.
func (in *incoming) postpone(ctx context.Context) bool {
	busy := in.busy
	if busy == nil || in.settled || in.taken || ctx.Err() != nil {
		return false
	}
	p, ok := in.delivery.(transport.Postponer)
	if !ok {
		return false
	}
	in.slot.Free()
	in.rollback(ctx)
	in.settled = true
	again := in.settle(ctx, func(ctx context.Context) error { return p.Postpone(ctx, busy.Queue) })
	if again != nil {
		in.log().WarnContext(ctx, "a message could not be returned: the broker will do so", slog.String("message", in.id), slog.Any("error", again))
		return true
	}
	in.log().DebugContext(ctx, "a message waits until another queue takes messages, without an attempt used up",
		slog.String("message", in.id), slog.String("queue", busy.Queue))
	return true
}
