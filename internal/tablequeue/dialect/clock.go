package dialect

import (
	"context"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// The clock of a database may be set back: by a correction, or by a failover to a server whose clock
// is behind. The clock of a database in a file is the clock of the machine. Rows that were visible
// before the step would wait until the clock reaches their time again. So each claim compares the
// clock with the monotonic clock of this process. After a step back, rows that were visible before
// the step are made visible again, in each queue that this process receives from. Leases are made
// shorter by the step, so that the leases of a dead process do not last longer.
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
	// never is longer than any lease.
	never = 100 * 365 * 24 * time.Hour
)

// Clock is the clock of a database as claims have seen it. Its exported fields are set before its
// use. Its methods are safe for concurrent use.
type Clock struct {
	Log *slog.Logger
	// Restore makes rows of a queue visible that were visible before a step back, and shortens
	// leases. It returns the number of rows that it has changed.
	Restore func(ctx context.Context, queue string, step StepBack) (int64, error)
	// MaxRestored bounds the rows that a call of Restore changes. The next claim changes more rows.
	MaxRestored int64

	claimed sync.Map // by queue: an *atomic.Int64 with the number of the last step that was restored

	mu              sync.Mutex // guards the rest
	seen            time.Time  // the database's time; zero before the first claim
	asked, answered time.Time  // this process's times around the claim that has seen it
	back            foundStep  // the last one
}

// StepBack is a step of a database's clock into the past.
type StepBack struct {
	By     time.Duration
	Before time.Time     // the database's time before the step, or a little later
	Leases time.Duration // leases that last longer are from before the step
}

// foundStep is a step back that a claim has found.
type foundStep struct {
	number int64 // from 1; 0 is no step
	by     time.Duration
	before time.Time // as that of StepBack
	at     time.Time // this process's time
}

// Follow notes the database's time that a claim of a queue has seen: the database has read its
// clock between asked and answered, the times of this process. It reports whether rows have become
// visible because the clock was set back.
func (c *Clock) Follow(
	ctx context.Context, queue string, lease time.Duration, now, asked, answered time.Time,
) bool {
	restored := c.restored(queue)
	step, found := c.observe(now, asked, answered)
	c.logStep(ctx, step, lease)
	back := c.lastBack()
	if found { // there may be no claim of another queue for long
		for other := range c.Queues() {
			c.restore(ctx, other, lease, back)
		}
		return true
	}
	if restored.Load() == back.number || answered.Sub(back.at) > unseen {
		return false
	}
	return c.restore(ctx, queue, lease, back)
}

// Queues returns the queues that rows were claimed from.
func (c *Clock) Queues() iter.Seq[string] {
	return func(yield func(string) bool) {
		c.claimed.Range(func(queue, _ any) bool { return yield(queue.(string)) }) //nolint:errcheck // its keys are names
	}
}

// restored returns the number of the last step whose rows of queue are visible again.
func (c *Clock) restored(queue string) *atomic.Int64 {
	var key any = queue // converted once: a conversion allocates
	n, ok := c.claimed.Load(key)
	if !ok {
		n, _ = c.claimed.LoadOrStore(key, &atomic.Int64{})
	}
	return n.(*atomic.Int64) //nolint:errcheck // the map has no other values
}

// observe returns the difference of the database's time to the time that was expected, or 0 if
// there was no step. It reports whether the step is a new step back.
func (c *Clock) observe(now, asked, answered time.Time) (step time.Duration, back bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.seen.IsZero() {
		earliest, latest := c.seen.Add(asked.Sub(c.answered)), c.seen.Add(answered.Sub(c.asked))
		switch {
		case now.Before(earliest.Add(-leastStep)):
			step = now.Sub(earliest)
			if back = asked.Sub(c.answered) < unseen; back {
				c.back = foundStep{c.back.number + 1, -step, latest, answered}
			}
		case now.After(latest.Add(leastStep)):
			step = now.Sub(latest)
		}
	}
	c.seen, c.asked, c.answered = now, asked, answered
	return step, back
}

// lastBack returns the last step back.
func (c *Clock) lastBack() foundStep {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.back
}

// restore makes rows of queue visible that were visible before a step back. It reports whether
// there were such rows.
func (c *Clock) restore(ctx context.Context, queue string, lease time.Duration, back foundStep) bool {
	step := StepBack{By: back.by, Before: back.before, Leases: never}
	if back.by > shortLeases*lease {
		step.Leases = back.by / 2
	}
	n, err := c.Restore(ctx, queue, step)
	if err == nil && n < c.MaxRestored {
		c.restored(queue).Store(back.number)
	}
	return n > 0
}

// logStep logs a step of the clock.
func (c *Clock) logStep(ctx context.Context, step, lease time.Duration) {
	switch {
	case step < 0:
		c.Log.WarnContext(ctx, "the clock of the database has been set back: messages that were ready "+
			"are made ready again if the step is found within a minute, and delayed messages arrive later",
			slog.Duration("by", -step))
	case step > lease:
		c.Log.WarnContext(ctx, "the clock of the database has been set forward, or this process has slept: "+
			"messages may be handled twice because leases are over, and delayed messages arrive early",
			slog.Duration("by", step))
	}
}
