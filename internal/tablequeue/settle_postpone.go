package tablequeue

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
)

const (
	// postponedFor bounds the wait of a row for the end of a lock, where this process does not notice it.
	postponedFor = 30 * time.Second
	// briefly is the wait of a row for a lock that has just ended, or that this process does not know.
	briefly = 500 * time.Millisecond
	// unnotedFor is the wait of a row that is not remembered, because too many are.
	unnotedFor   = 5 * time.Second
	maxPostponed = 100_000 // rows that are remembered for one lock
	hastenRows   = 1000    // in one statement
)

const lockAdvice = "another transaction has locked its table, as VACUUM FULL, ALTER TABLE and index maintenance do; " +
	"its messages are sent when the lock ends"

// postponed are rows that wait for the end of a lock.
type postponed struct {
	since time.Time
	rows  map[string]map[int64]struct{} // seqs by queue
	n     int
}

// Postpone implements [transport.Postponer]: the row waits without a lease, and becomes visible when the lock on busy
// ends.
func (d *delivery) Postpone(ctx context.Context, busy string) error {
	busy = d.conn.ShortName(busy)
	after := d.conn.unusable.postponement(busy)
	if err := d.settle(ctx, Unit{Verb: Release, After: after}, nil); err != nil || after != postponedFor {
		return err
	}
	if !d.conn.unusable.postpone(busy, d.queue, d.lease.Seq) { // the lock has ended meanwhile
		d.conn.hasten(d.queue, []int64{d.lease.Seq})
	}
	return nil
}

// postponement returns the wait of a row for queue.
func (u *unusable) postponement(queue string) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch p := u.locked[queue]; {
	case p == nil:
		return briefly
	case p.n >= maxPostponed:
		return unnotedFor
	}
	return postponedFor
}

// postpone notes that row seq of from waits for the end of the lock on queue. It reports whether there is a lock.
func (u *unusable) postpone(queue, from string, seq int64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	p := u.locked[queue]
	if p == nil {
		return false
	}
	seqs := p.rows[from]
	if seqs == nil {
		seqs = map[int64]struct{}{}
		p.rows[from] = seqs
	}
	if _, again := seqs[seq]; !again {
		seqs[seq] = struct{}{}
		p.n++
	}
	return true
}

// lock refuses operations for queue until its lock ends.
func (c *Conn) lock(locks Locks, queue string) {
	added, first := c.unusable.lock(queue)
	if added {
		c.cfg.Env.Log().WarnContext(c.life, "a queue takes no messages: deliveries that send to it are postponed, and use up no attempt",
			slog.String("queue", queue), slog.String("reason", lockAdvice))
	}
	if first {
		c.running.Go(func() { c.watchLocks(locks) })
	}
}

// watchLocks polls for the end of locks until there are none.
func (c *Conn) watchLocks(locks Locks) {
	for queues := c.unusable.watched(); len(queues) > 0; queues = c.unusable.watched() {
		if backoff.Sleep(c.life, lockPoll) != nil {
			return
		}
		ctx, cancel := context.WithTimeout(c.life, maxWait)
		locked, err := locks.Locked(ctx, queues)
		cancel()
		for i, q := range queues {
			if err == nil && !locked[i] {
				c.unlock(q)
			}
		}
	}
}

func (c *Conn) unlock(queue string) {
	p := c.unusable.unlock(queue)
	c.cfg.Env.Log().InfoContext(c.life, "a queue takes messages again",
		slog.String("queue", queue), slog.Duration("after", time.Since(p.since)), slog.Int("waiting", p.n))
	for from, seqs := range p.rows {
		c.hasten(from, slices.Sorted(maps.Keys(seqs)))
	}
}

// hasten makes rows visible at once. When that fails they become visible at the end of their wait.
func (c *Conn) hasten(queue string, seqs []int64) {
	locks, ok := c.store.(Locks)
	if !ok {
		return
	}
	for part := range slices.Chunk(seqs, hastenRows) {
		ctx, cancel := context.WithTimeout(c.life, maxWait)
		err := locks.Hasten(ctx, queue, part)
		cancel()
		if err != nil {
			c.cfg.Env.Log().WarnContext(c.life, "messages that waited for the end of a lock cannot be made visible now: they are delivered later",
				slog.String("queue", queue), slog.Int("messages", len(part)), slog.Duration("within", postponedFor), slog.Any("error", err))
			return
		}
		c.wakes.announce(queue)
	}
}
