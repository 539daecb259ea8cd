package endpoint

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/recoverability"
)

// hold keeps a message that could not be dealt with from coming straight back, so
// that nothing spins while, for instance, the error queue is missing.
func (in *incoming) hold(ctx context.Context, err error) {
	f := recoverability.Failure{
		Err:       fmt.Errorf("message %q from %q could not be dealt with: %w", in.id, in.queue, err),
		MessageID: in.id, Type: firstType(in.original.Headers), Queue: in.queue,
		Attempt: in.receive.Attempt.N, AttemptExact: in.receive.Attempt.Exact, Now: time.Now(),
	}
	in.tell(in.takeTurn(), func() {
		in.e.critical(ctx, f)
		if !in.taken {
			in.e.notify(ctx, Notification{Kind: FallbackTaken, Failure: &f, Fallback: FallbackHeld})
		}
	})
	if in.taken {
		in.log().ErrorContext(ctx, "a failed message is lost: transaction mode None took it off its queue, and it could not be moved to the error queue",
			slog.String("message", in.id), slog.Any("error", err))
		return
	}
	in.rollback(ctx)
	if in.alone != nil {
		in.goBack(ctx, err)
		return
	}
	pause := in.live.holding.next()
	in.log().ErrorContext(ctx, "a failed message could not be dealt with: it will be handed out again",
		slog.String("message", in.id), slog.Duration("after", pause), slog.Any("error", err))
	in.live.held.Add(1)
	in.live.sleep(ctx, pause)
	in.live.held.Add(-1)
	if err := in.settle(ctx, in.delivery.Retry); err != nil {
		in.log().WarnContext(ctx, "a message could not be returned: the broker will do so", slog.String("message", in.id), slog.Any("error", err))
	}
}

// sleep pauses for d, or until the endpoint stops or the message is no longer ours.
func (l *live) sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.stopping:
	case <-ctx.Done():
	}
}

// pauses is a back-off shared by the messages that could not be dealt with.
type pauses struct {
	mu      sync.Mutex // guards the rest
	backoff backoff.Backoff
	last    time.Time
}

const maxHold = 30 * time.Second

// next is the pause for another message; it starts again at a second when there was
// none for a while.
func (p *pauses) next() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Sub(p.last) > 2*maxHold {
		p.backoff = backoff.Backoff{Min: time.Second, Max: maxHold}
	}
	p.last = now
	return p.backoff.Next()
}
