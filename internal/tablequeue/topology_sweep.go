package tablequeue

import (
	"context"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
)

// sweepEvery is how often a Conn that receives offers to remove what has expired.
const sweepEvery = time.Minute

// Sweeper is implemented by a [Store] that can remove rows that have expired by itself. Without it
// each stays until its turn comes, which in a queue that nobody receives from is never.
type Sweeper interface {
	// Sweep removes such rows, unless another process has done so lately. Rows that are leased stay.
	Sweep(ctx context.Context) error
}

// sweep does so until the Conn is closed. What fails is tried again the next time.
func (c *Conn) sweep(store Sweeper) {
	for backoff.Sleep(c.life, sweepEvery) == nil {
		ctx, cancel := context.WithTimeout(c.life, sweepEvery)
		if err := store.Sweep(ctx); err != nil && c.life.Err() == nil {
			c.cfg.Env.Log().WarnContext(ctx, "expired messages could not be removed", slog.Any("error", err))
		}
		cancel()
	}
}
