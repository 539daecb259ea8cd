package endpoint

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/notify"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/recoverability"
)

// keep reports a message that can be neither settled nor moved, for instance because the error
// queue is missing. The caller requeues it.
func (in *incoming) keep(ctx context.Context, err error) stuck {
	in.reportKept(ctx, err)
	switch {
	case in.CompletedFirst():
		in.LogError(ctx, slog.LevelError, "a failed message is lost: it was completed first, and the error queue refused it",
			err)
		return stuck{}
	case in.exclusive != nil:
		in.LogError(ctx, slog.LevelError, "a failed message could not be settled: it leaves quarantine unless it is parked",
			err, slog.Bool("parked", in.exclusive.Parked))
		return stuck{}
	}
	pause := in.live.requeues.next()
	in.LogError(ctx, slog.LevelError, "a failed message could not be settled: it is requeued",
		err, slog.Duration("after", pause))
	return stuck{pause}
}

// reportKept notifies of a message that can be neither settled nor moved.
func (in *incoming) reportKept(ctx context.Context, err error) {
	attempt := in.Received.Attempt()
	f := recoverability.Failure{
		Err:       fmt.Errorf("message %q from %q could not be settled: %w", in.LogID(), in.Queue, err),
		MessageID: in.ID, Type: settle.FirstType(in.Original.Headers), Queue: in.Queue,
		Attempt: attempt.N, AttemptExact: attempt.Exact, Now: time.Now(),
	}
	in.Report(in.live.notifier.Next(in.FailureKey()), func() {
		in.live.notifier.Critical(ctx, f)
		if !in.CompletedFirst() {
			in.live.notifier.Notify(ctx, recoverability.Notification{Kind: recoverability.FallbackTaken, Failure: &f, Fallback: recoverability.FallbackHeld})
		}
	})
}

// requeue returns a message that is stuck to its queue, after the pause, so that nothing spins.
func (in *incoming) requeue(ctx context.Context, s stuck) {
	switch {
	case in.CompletedFirst():
		in.Lost()
	case in.exclusive != nil:
		in.exclusive.ReturnToOrigin(ctx)
	default:
		in.live.held.Add(1)
		in.live.sleep(ctx, s.pause)
		in.live.held.Add(-1)
		in.Retry(ctx)
	}
}

// sleep pauses for d, or until the endpoint stops or ctx ends.
func (l *live) sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.stopping:
	case <-ctx.Done():
	}
}

// pauses is a back-off shared by the messages that are stuck.
type pauses struct {
	mu      sync.Mutex // guards the rest
	backoff backoff.Backoff
	last    time.Time
}

const maxHold = 30 * time.Second

// next returns the pause for another message. It starts again at a second when there was none for a
// while.
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

// Report implements [notify.Reporter].
func (in *incoming) Report(p *notify.Place, f func()) {
	in.giveUpKeys()
	settled := func() {
		if in.Over() {
			in.Slot.Settled()
		}
	}
	if in.exclusive != nil {
		settled = nil
	}
	in.live.notifier.Report(p, settled, f)
}
