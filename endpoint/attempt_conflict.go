package endpoint

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// maxConflicts bounds the attempts at one delivery whose transaction lost a conflict.
const maxConflicts = 10

// conflicts counts them. Lost conflicts use up no retry.
type conflicts struct {
	n     int
	pause backoff.Backoff // jittered, so that two transactions that met do not meet again
}

// pauseAfterConflict reports whether another attempt follows, after the pause. If ctx ends first,
// the message is released, unless its lease is lost.
func (in *incoming) pauseAfterConflict(ctx context.Context, err error) bool {
	c := &in.conflicts
	if c.n++; c.n == 1 {
		c.pause = backoff.Backoff{Min: 5 * time.Millisecond, Max: 200 * time.Millisecond}
	}
	if cause := c.pause.Wait(ctx); cause != nil {
		in.slot.Free()
		if errors.Is(cause, transport.ErrLeaseLost) {
			in.settlement.lose(ctx, cause)
		} else {
			in.settlement.release(ctx)
		}
		return false
	}
	in.log().InfoContext(ctx, "a transaction could not be completed: the attempt is repeated",
		slog.String("message", in.logID()), slog.Int("repeats", c.n), slog.Any("error", err))
	return true
}

// putBackContended returns a message to its queue whose transaction lost conflicts at each attempt.
func (in *incoming) putBackContended(ctx context.Context, err error) {
	in.slot.Free()
	in.log().WarnContext(ctx, "a transaction lost conflicts at each attempt: the message returns to its queue, without a retry used up",
		slog.String("message", in.logID()), slog.Int("attempts", in.conflicts.n+1), slog.Any("error", err))
	in.putBack(ctx, in.conflicts.pause.Next())
}

// isConflict reports whether err wraps [transport.ErrConflict]. It is the user's, and may wrap
// itself.
var isConflict = recoverability.Is(transport.ErrConflict)

// conflict reports whether err says that the transaction of s lost a conflict.
func conflict(s *Session, err error) bool {
	if isConflict(err) {
		return true
	}
	_, tx := s.end()
	detector, ok := tx.(transport.ConflictDetector)
	return ok && detector.Conflict(err)
}
