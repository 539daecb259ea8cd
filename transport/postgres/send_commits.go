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

// maxCommits is the largest number of transactions that are watched at once. Receivers find the rows of others by
// polling.
const maxCommits = 10_000

// commits watches the callers' transactions that rows were inserted in, and notifies receivers after a commit. A
// notification inside the transaction would serialize all commits of the database: PostgreSQL queues notifications in
// the order of commits (PreCommit_Notify in async.c).
type commits struct {
	mu       sync.Mutex // guards the rest
	pending  map[int64][]string
	watching bool
	last     time.Time // when a transaction was added
	closed   bool

	life  context.Context //nolint:containedctx // ends when Close begins
	end   context.CancelFunc
	watch sync.WaitGroup
}

// watchCommit notifies the receivers of queues after transaction id has committed.
func (s *store) watchCommit(id int64, queues []string) {
	c := &s.commits
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
		c.watch.Go(s.watchCommits)
	}
}

// The pauses between polls. A pause is a quarter of the time since the last insert: after a short transaction
// receivers are notified soon, and a long one costs few polls.
const (
	shortestPause = 5 * time.Millisecond
	longestPause  = 250 * time.Millisecond
)

// watchCommits polls until no transaction is left.
func (s *store) watchCommits() {
	for {
		ids, last := s.commits.watched()
		if len(ids) == 0 {
			return
		}
		pause := min(max(time.Since(last)/4, shortestPause), longestPause)
		if backoff.Sleep(s.commits.life, pause) != nil {
			return
		}
		s.lookAtCommits(ids)
	}
}

// endedTransactions returns the transactions of $1 that have ended, and whether they committed. A transaction that is
// too old to be known has ended.
const endedTransactions = `SELECT x, coalesce(txid_status(x) = 'committed', true) FROM unnest($1::bigint[]) AS x
WHERE txid_status(x) IS DISTINCT FROM 'in progress'`

func (s *store) lookAtCommits(ids []int64) {
	ctx, cancel := context.WithTimeout(s.commits.life, time.Second)
	defer cancel()
	var queues []string
	var id int64
	var committed bool
	rows, _ := s.leases.Query(ctx, endedTransactions, ids) // an error is that of rows too
	_, err := pgx.ForEachRow(rows, []any{&id, &committed}, func() error {
		s.commits.mu.Lock()
		defer s.commits.mu.Unlock()
		for _, q := range s.commits.pending[id] {
			if committed && !slices.Contains(queues, q) {
				queues = append(queues, q)
			}
		}
		delete(s.commits.pending, id)
		return nil
	})
	if err != nil || len(queues) == 0 {
		return // the next poll finds the others
	}
	channels, names := s.heardOf(queues)
	_, _ = s.leases.Exec(ctx, notify, "tx", channels, names) // without it receivers find the rows by polling
}

// watched returns the pending transactions, and when the last of them was added. Without any the watcher ends.
func (c *commits) watched() (ids []int64, last time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watching = len(c.pending) > 0
	return slices.Collect(maps.Keys(c.pending)), c.last
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
