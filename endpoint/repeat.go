package endpoint

import (
	"context"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

// maxRepeats is how often an attempt is repeated whose transaction its database gave up.
const maxRepeats = 10

// repeats goes with a message through the repetitions of an attempt.
type repeats struct {
	n     int
	pause backoff.Backoff // between them, so that two that met do not meet again
}

// repeat has the message handled again, as part of the same attempt, when its transaction lost
// a conflict, such as a deadlock. Nothing has happened and nobody is to blame, so that
// uses up no retry. It is false when that is not it, or was it too often.
func (in *incoming) repeat(ctx context.Context, err error) bool {
	if in.settled || in.repeats.n == maxRepeats || !in.conflict(err) {
		return false
	}
	in.rollback(ctx)
	next := in.repeats
	if next.n == 0 {
		next.pause = backoff.Backoff{Min: 5 * time.Millisecond, Max: 200 * time.Millisecond}
	}
	if next.pause.Wait(ctx) != nil {
		return false
	}
	next.n++
	in.log().InfoContext(ctx, "a transaction lost a conflict: the attempt is repeated",
		slog.String("message", in.id), slog.Int("repeats", next.n), slog.Any("error", err))
	again := &incoming{
		e: in.e, live: in.live, delivery: in.delivery, slot: in.slot, queue: in.queue,
		holding: in.holding, alone: in.alone, repeats: next,
	}
	again.prepare()
	again.run(ctx)
	return true
}

// conflict tells whether err says that the message's transaction lost one.
func (in *incoming) conflict(err error) bool {
	_, tx := in.session.end()
	judge, ok := tx.(transport.ConflictDetector)
	return ok && judge.Conflict(err)
}
