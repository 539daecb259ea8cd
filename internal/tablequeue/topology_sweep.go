package tablequeue

import (
	"context"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
)

// sweepEvery is the time between two sweeps of a Conn that receives.
const sweepEvery = time.Minute

// Sweeper is implemented by a [Store] that can remove expired rows from queues without a receiver. Without it an
// expired row is removed only when it is claimed.
type Sweeper interface {
	// Sweep removes expired rows that are not leased, unless another process has done so lately.
	Sweep(ctx context.Context) error
}

// sweep sweeps until the Conn is closed. It repeats a sweep that fails after the usual pause.
func (c *Conn) sweep(store Sweeper) {
	for backoff.Sleep(c.life, sweepEvery) == nil {
		ctx, cancel := context.WithTimeout(c.life, sweepEvery)
		if err := store.Sweep(ctx); err != nil && c.life.Err() == nil {
			c.cfg.Env.Log().WarnContext(ctx, "expired messages cannot be removed: it is tried again in a minute", slog.Any("error", err))
		}
		cancel()
	}
}
