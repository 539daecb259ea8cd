package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// clock is the clock of the machine, which all processes that use a file have in common.
type clock struct {
	dialect.Clock
	wall func() time.Time // time.Now; a test sets another function before the store is used
}

// now returns the time as the file stores it.
func (c *clock) now() int64 { return micros(c.wall()) }

// follow looks for a step of the clock before a claim. After a step back, follow makes rows visible
// that were visible before.
func (c *clock) follow(ctx context.Context, claim *tablequeue.Claim) {
	asked := time.Now()
	now := time.UnixMicro(c.now()) // without a monotonic time, by which Follow would find no step
	c.Follow(ctx, claim.Queue, claim.For, now, asked, time.Now())
}

const (
	// maxRestored bounds the rows of a transaction that makes rows visible again.
	maxRestored = 10_000

	// restoreHidden makes rows visible if they were visible at the time ?4, before the clock was set
	// back by ?2. Leases that last for more than ?5 end earlier by ?2.
	restoreHidden = `
		update holdfast_messages
		set visible_at = case when lease_id is null then ?1 else visible_at - ?2 end
		where seq in (
			select seq from holdfast_messages
			where queue = ?3 and visible_at > ?1
				and case when lease_id is null then visible_at <= ?4 else visible_at > ?1 + ?5 end
			order by visible_at, seq limit ?6)`
)

// restorer returns the function that makes rows of a queue of s visible after the clock was set
// back.
func restorer(s *store) func(context.Context, string, dialect.StepBack) (int64, error) {
	return func(ctx context.Context, queue string, step dialect.StepBack) (n int64, err error) {
		err = s.writer.do(ctx, durable, func(*sql.Tx) (err error) {
			n, err = s.writer.execute(restoreHidden, s.clock.now(), step.By.Microseconds(), queue,
				micros(step.Before), step.Leases.Microseconds(), int64(maxRestored))
			return err
		})
		return n, err
	}
}
