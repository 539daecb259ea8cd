package postgres

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/backoff"
)

// maxCommits is the largest number of transactions that are watched at once. Receivers find the
// rows of others by polling.
const maxCommits = 10_000

// commits watches the callers' transactions that rows were inserted in, and notifies receivers
// after a commit. A notification inside the transaction would serialize all commits of the
// database: PostgreSQL queues notifications in the order of commits (PreCommit_Notify in async.c).
type commits struct {
	mu       sync.Mutex // guards the rest
	pending  map[int64][]string
	watching bool
	last     time.Time // when a transaction was added
	closed   bool
	wake     func(queue string) // wakes receivers of the Conn; nil without receivers

	life  context.Context //nolint:containedctx // ends when Close begins
	end   context.CancelFunc
	watch sync.WaitGroup
}

// watchCommit notifies the receivers of queues after transaction id has committed.
func (n *notifier) watchCommit(id int64, queues []string) {
	c := &n.commits
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.pending) >= maxCommits {
		return
	}
	if c.pending == nil {
		c.pending = map[int64][]string{}
		c.life, c.end = context.WithCancel(context.Background())
	}
	c.pending[id] = append(c.pending[id], queues...)
	c.last = time.Now()
	if !c.watching {
		c.watching = true
		c.watch.Go(n.watchCommits)
	}
}

// The pauses between polls. A pause is a quarter of the time since the last insert: after a short
// transaction receivers are notified soon, and a long one costs few polls. While many transactions
// are open a poll serves several.
const (
	shortestPause = 5 * time.Millisecond
	busyPause     = 20 * time.Millisecond // with more than busyCommits
	longestPause  = 250 * time.Millisecond

	busyCommits = 4
	notifyEvery = 50 * time.Millisecond // the least time between two notifications
)

// watchCommits polls until no transaction is left, and notifies of those that have committed.
func (n *notifier) watchCommits() {
	var queues []string // to notify of
	var notified time.Time
	for {
		ids, last := n.commits.watched(len(queues) > 0)
		if len(ids) == 0 && len(queues) == 0 {
			return
		}
		least := shortestPause
		if len(ids) > busyCommits {
			least = busyPause
		}
		if backoff.Sleep(n.commits.life, min(max(time.Since(last)/4, least), longestPause)) != nil {
			return
		}
		for _, q := range n.lookAtCommits(ids) {
			n.commits.wakeUp(q)
			if !slices.Contains(queues, q) {
				queues = append(queues, q)
			}
		}
		if len(queues) > 0 && time.Since(notified) >= notifyEvery {
			n.notifyOf(queues)
			queues, notified = nil, time.Now()
		}
	}
}

// endedTransactions returns the transactions of $1 that have ended, and whether they committed. A
// transaction that is too old to be known has ended.
const endedTransactions = `SELECT x, coalesce(txid_status(x) = 'committed', true)
FROM unnest($1::bigint[]) AS x, (SELECT txid_current_snapshot() AS now OFFSET 0) AS s WHERE txid_visible_in_snapshot(x, s.now)`

// lookAtCommits forgets those of the transactions ids that have ended. It returns the queues of
// those that committed.
func (n *notifier) lookAtCommits(ids []int64) (queues []string) {
	if len(ids) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(n.commits.life, time.Second)
	defer cancel()
	var id int64
	var committed bool
	rows, _ := n.leases.Query(ctx, endedTransactions, ids) // an error is that of rows too; the next poll finds the others
	_, _ = pgx.ForEachRow(rows, []any{&id, &committed}, func() error {
		n.commits.mu.Lock()
		defer n.commits.mu.Unlock()
		for _, q := range n.commits.pending[id] {
			if committed && !slices.Contains(queues, q) {
				queues = append(queues, q)
			}
		}
		delete(n.commits.pending, id)
		return nil
	})
	return queues
}

// notifyOf notifies receivers of other processes. Without the notification they find the rows by
// polling.
func (n *notifier) notifyOf(queues []string) {
	ctx, cancel := context.WithTimeout(n.commits.life, time.Second)
	defer cancel()
	_ = n.Notify(ctx, queues)
}

// watched returns the pending transactions, and when the last of them was added. Without any the
// watcher ends, unless it has something left to do.
func (c *commits) watched(left bool) (ids []int64, last time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watching = len(c.pending) > 0 || left
	return slices.Collect(maps.Keys(c.pending)), c.last
}

// wakeUp wakes the receivers of this Conn.
func (c *commits) wakeUp(queue string) {
	c.mu.Lock()
	wake := c.wake
	c.mu.Unlock()
	if wake != nil {
		wake(queue)
	}
}

// wakesBy has wake called with each queue that a commit has inserted rows into.
func (c *commits) wakesBy(wake func(queue string)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wake = wake
}

func (c *commits) close() {
	c.mu.Lock()
	c.closed = true
	if c.end != nil {
		c.end()
	}
	c.mu.Unlock()
	c.watch.Wait()
}
