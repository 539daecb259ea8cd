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
	// postponedFor bounds the wait of a row for the end of a lock, where this process does not
	// notice it.
	postponedFor = 30 * time.Second
	// briefly is the wait of a row for a lock that has just ended, or that this process does not
	// know.
	briefly = 500 * time.Millisecond
	// unnotedFor is the wait of a row that is not remembered, because too many are.
	unnotedFor   = 5 * time.Second
	maxPostponed = 100_000 // rows that are remembered for one lock
	hastenRows   = 1000    // in one statement
)

const lockAdvice = "another transaction has locked its table, as VACUUM FULL, ALTER TABLE and index maintenance do; " +
	"its messages are sent when the lock ends"

const rowLockAdvice = "a write to its table waits for another transaction, as a trigger does that changes a row which that transaction has " +
	"changed; its messages are sent when the write succeeds"

// obstacle is what keeps messages from a queue.
type obstacle int8

const (
	// tableLocked: the watcher looks for the end of the lock. Until then operations are refused.
	tableLocked obstacle = iota
	// suspected: a statement with rows for the queue failed. Units for the queue take the detour.
	suspected
	// impeded: a write by itself failed, too. Operations are refused until a probe succeeds.
	impeded
)

// postponed is a queue that takes no messages, with the rows that wait for it.
type postponed struct {
	obstacle obstacle
	class    Class // of the error
	reason   string
	since    time.Time
	probe    time.Time // of an impeded queue: from then on a unit is written, as a probe
	failed   time.Time // the last probe
	called   time.Time // the last row, as a probe

	rows map[string]map[int64]struct{} // seqs by queue
	n    int
}

// admits reports whether an operation for the queue is not refused. Of an impeded queue that
// operation is a probe.
func (p *postponed) admits() bool {
	now := time.Now()
	if p.obstacle == impeded && !now.Before(p.probe) {
		p.probe = now.Add(2 * detourWait) // the probe itself waits for a second
		return true
	}
	return p.obstacle == suspected
}

// forgetAfter is the time without a probe after which a queue counts as one that takes messages.
const forgetAfter = time.Minute

// waitingRow is a row that waits for a queue.
type waitingRow struct {
	queue string // that the row is in
	seq   int64
}

// next returns a row that is to be the next probe, and forgets it. A row is delivered some time
// after the call, so the next is called after a pause.
func (p *postponed) next() (row waitingRow, ok bool) {
	now := time.Now()
	if p.obstacle != impeded || now.Before(p.probe) || now.Sub(p.called) < detourWait {
		return waitingRow{}, false
	}
	for from, seqs := range p.rows {
		for seq := range seqs {
			delete(seqs, seq)
			p.n--
			p.called = now
			return waitingRow{from, seq}, true
		}
	}
	return waitingRow{}, false
}

// Postpone implements [transport.Postponer]: the row waits without a lease, and becomes visible
// when the lock on busy ends.
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

// postpone notes that row seq of from waits for the end of the lock on queue. It reports whether
// there is a lock.
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

// lock refuses operations for queue until the lock on its table ends.
func (c *Conn) lock(queue string) {
	if c.unusable.lock(queue) {
		c.refuses(queue, lockAdvice)
	}
}

// refuses logs that operations for queue are refused, and starts a watcher if there is none.
func (c *Conn) refuses(queue, reason string) {
	c.cfg.Env.Log().WarnContext(c.life, "a queue takes no messages: deliveries that send to it are postponed, and use up no attempt",
		slog.String("queue", queue), slog.String("reason", reason))
	if c.unusable.watch() {
		c.running.Go(c.watchQueues)
	}
}

// watchQueues looks for the ends of locks and calls back rows as probes, until all queues take
// messages.
func (c *Conn) watchQueues() {
	for {
		queues, watching := c.unusable.watched()
		if !watching || backoff.Sleep(c.life, lockPoll) != nil {
			return
		}
		if len(queues) > 0 {
			c.watchLocks(queues)
		}
		for _, row := range c.unusable.probes() {
			c.hasten(row.queue, []int64{row.seq})
		}
	}
}

// watchLocks asks for the end of the locks on queues.
func (c *Conn) watchLocks(queues []string) {
	locks := c.store.(Locks) //nolint:errcheck // find has seen that it is one
	ctx, cancel := context.WithTimeout(c.life, maxWait)
	defer cancel()
	locked, err := locks.Locked(ctx, queues)
	for i, q := range queues {
		if err != nil || locked[i] {
			continue
		}
		if p := c.unlock(q); p != nil {
			c.hastenAll(p)
		}
	}
}

// unlock ends the refusal of operations for queue, and returns the rows that wait for the queue. It
// returns nil if no operation was refused.
func (c *Conn) unlock(queue string) *postponed {
	p := c.unusable.unlock(queue)
	if p == nil || p.obstacle == suspected {
		return nil
	}
	c.cfg.Env.Log().InfoContext(c.life, "a queue takes messages again",
		slog.String("queue", queue), slog.Duration("after", time.Since(p.since)), slog.Int("waiting", p.n))
	return p
}

// hastenAll makes the rows of p visible.
func (c *Conn) hastenAll(p *postponed) {
	for from, seqs := range p.rows {
		c.hasten(from, slices.Sorted(maps.Keys(seqs)))
	}
}

// hasten makes rows visible at once. When that fails they become visible at the end of their wait.
func (c *Conn) hasten(queue string, seqs []int64) {
	h, ok := c.store.(Hastener)
	if !ok {
		return
	}
	for part := range slices.Chunk(seqs, hastenRows) {
		ctx, cancel := context.WithTimeout(c.life, maxWait)
		err := h.Hasten(ctx, queue, part)
		cancel()
		if err != nil {
			c.cfg.Env.Log().WarnContext(c.life, "messages that waited for the end of a lock cannot be made visible now: they are delivered later",
				slog.String("queue", queue), slog.Int("messages", len(part)), slog.Duration("within", postponedFor), slog.Any("error", err))
			return
		}
		c.wakes.announce(queue)
	}
}
