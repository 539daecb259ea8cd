package postgres

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// The clock of a server may be set back: by a correction, or by a failover to a server whose clock
// is behind. Rows that were visible before would wait until the clock reaches their time again. So
// each claim compares the clock with that of this process. After a step back, rows that were
// visible before the step are made visible again, in each queue that this process receives from.
// Leases are made shorter by the step, so that the leases of a dead process do not last longer.
//
// A row that is delayed after the step, and before the step is found, cannot be distinguished from
// a row that was visible. Such a row may become visible early.

const (
	// leastStep is the least difference that is a step. A smaller one delays rows for as long.
	leastStep = 5 * time.Second
	// unseen is the time after which a step is not found any more: the longer ago the step may be,
	// the more rows may have been delayed since the step.
	unseen = time.Minute
	// shortLeases is the number of leases that a step must exceed for leases to be made shorter:
	// then leases from before the step last longer than leases from after the step.
	shortLeases = 4
)

// serverClock is the clock of the server as claims have seen it. A serverClock is safe for
// concurrent use.
type serverClock struct {
	log     *slog.Logger
	execute func(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error)
	claimed sync.Map // of *table: rows were claimed from the tables, by their queue

	mu              sync.Mutex // guards the rest
	seen            time.Time  // the server's time; zero before the first claim
	asked, answered time.Time  // this process's times around the claim that has seen it
	back            stepBack   // the last one
}

// stepBack is a step of the server's clock into the past.
type stepBack struct {
	number int64 // from 1; 0 is no step
	by     time.Duration
	before time.Time // the server's time before the step, or a little later
	found  time.Time // this process's time
}

// observe notes the server's time, which the server has read between asked and answered. It returns
// the difference to the time that was expected, or 0 if there was no step. It reports whether the
// step is a new step back.
func (c *serverClock) observe(server, asked, answered time.Time) (step time.Duration, back bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.seen.IsZero() {
		earliest, latest := c.seen.Add(asked.Sub(c.answered)), c.seen.Add(answered.Sub(c.asked))
		switch {
		case server.Before(earliest.Add(-leastStep)):
			step = server.Sub(earliest)
			if back = asked.Sub(c.answered) < unseen; back {
				c.back = stepBack{c.back.number + 1, -step, latest, answered}
			}
		case server.After(latest.Add(leastStep)):
			step = server.Sub(latest)
		}
	}
	c.seen, c.asked, c.answered = server, asked, answered
	return step, back
}

// lastBack returns the last step back.
func (c *serverClock) lastBack() stepBack {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.back
}

// follow notes the server's time that a claim of t has seen. It reports whether rows of t have
// become visible because the clock was set back.
func (c *serverClock) follow(
	ctx context.Context, t *table, lease time.Duration, server, asked, answered time.Time,
) bool {
	c.claimed.LoadOrStore(t.name, t)
	step, found := c.observe(server, asked, answered)
	c.logStep(ctx, step, lease)
	back := c.lastBack()
	switch {
	case found: // there may be no claim of another queue for long
		c.claimed.Range(func(_, other any) bool {
			c.restore(ctx, other.(*table), lease, back) //nolint:errcheck // of the map
			return true
		})
		return true
	case t.restored.Load() == back.number:
		return false
	case answered.Sub(back.found) > unseen:
		t.restored.Store(back.number)
		return false
	}
	return c.restore(ctx, t, lease, back)
}

// restore makes rows of t visible that were visible before a step back. It reports whether there
// were such rows.
func (c *serverClock) restore(
	ctx context.Context, t *table, lease time.Duration, back stepBack,
) bool {
	t.front.reset()
	leases := never
	if back.by > shortLeases*lease {
		leases = back.by / 2
	}
	tag, err := c.execute(ctx, t.restore, back.before, back.by.Microseconds(), leases.Microseconds())
	if err == nil && tag.RowsAffected() < maxRestored {
		t.restored.Store(back.number)
	}
	return tag.RowsAffected() > 0
}

// logStep logs a step of the server's clock.
func (c *serverClock) logStep(ctx context.Context, step, lease time.Duration) {
	switch {
	case step < 0:
		c.log.WarnContext(ctx, "the clock of the database has been set back: messages that were ready "+
			"are made ready again if the step is found within a minute, and delayed messages arrive later",
			slog.Duration("by", -step))
	case step > lease:
		c.log.WarnContext(ctx, "the clock of the database has been set forward, or this process has slept: "+
			"messages may be handled twice because leases are over, and delayed messages arrive early",
			slog.Duration("by", step))
	}
}

const (
	// maxRestored bounds the rows of a statement that makes rows visible again. The next claim
	// makes more rows visible.
	maxRestored = 10_000
	// never is longer than any lease.
	never = 100 * 365 * 24 * time.Hour
)

// restoring returns the statement that makes rows of q visible if they were visible at the time $1,
// before the clock was set back by $2. Leases that last for more than $3 end earlier by $2.
func restoring(q string) string {
	return `UPDATE ` + q + ` SET visible_at = CASE WHEN lease_id IS NULL THEN now()
	ELSE visible_at - $2::bigint * interval '1 microsecond' END
WHERE ctid = ANY (ARRAY(SELECT ctid FROM ` + q + `
	WHERE visible_at > now() AND CASE WHEN lease_id IS NULL THEN visible_at <= $1::timestamptz
		ELSE visible_at > now() + $3::bigint * interval '1 microsecond' END
	ORDER BY visible_at, seq LIMIT ` + strconv.Itoa(maxRestored) + ` FOR UPDATE SKIP LOCKED))`
}
