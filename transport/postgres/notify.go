package postgres

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/backoff"
)

// notifier is the part of a store that notifies receivers of rows.
type notifier struct {
	*db
	self    string  // the prefix of the store's own notifications
	commits commits // of callers' transactions
}

// notify sends the sender $1 and a queue of $3 as a notification on each channel of $2.
const notify = `SELECT pg_notify(c, $1 || ' ' || q) FROM unnest($2::text[], $3::text[]) AS r(c, q)`

// channelOf returns the channel on which receivers of a schema's queues listen. Two schemas with
// long names may share one, and wake each other's receivers without need.
func channelOf(schema string) string {
	return truncated("holdfast."+schema, maxName)
}

// Notify implements [tablequeue.Waker].
func (n *notifier) Notify(ctx context.Context, queues []string) error {
	channels, names := n.heardOf(queues)
	_, err := n.leases.Exec(ctx, notify, n.self, channels, names)
	return failure(err, "notify")
}

// Listen implements [tablequeue.Waker]. Without a listener it waits for the end of ctx.
func (n *notifier) Listen(ctx context.Context, ready func(), wake func(queue string)) error {
	n.commits.wakesBy(wake)
	if n.listener == nil {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return n.listener.listen(ctx, &hearer{
		channel: channelOf(n.Schema),
		ready:   ready,
		heard: func(payload string) {
			if from, queue, ok := strings.Cut(payload, " "); ok && from != n.self {
				wake(n.shortName(n.Schema, queue))
			}
		},
	})
}

// listenTimeout bounds each request of a listener.
const listenTimeout = 10 * time.Second

// A listener receives notifications for several stores on one connection, which is open while one
// of them listens.
type listener struct {
	config  *pgxpool.Config // for one connection
	life    context.Context //nolint:containedctx // ends with Close
	end     context.CancelFunc
	session sync.WaitGroup // the goroutine that has the connection

	mu        sync.Mutex // guards the rest
	hearers   []*hearer
	open      bool               // the goroutine runs
	interrupt context.CancelFunc // ends its wait, so that it reads hearers again; nil before the first wait
}

// A hearer is a store that listens.
type hearer struct {
	channel string
	ready   func()               // called once, when notifications begin to arrive
	heard   func(payload string) // called with each payload of the channel
	told    bool                 // ready was called
	broken  chan error           // buffered; the error that ended the connection
}

// listen receives notifications for h until ctx ends or the connection breaks, and returns the
// cause.
func (l *listener) listen(ctx context.Context, h *hearer) error {
	h.broken = make(chan error, 1)
	l.mu.Lock()
	l.hearers = append(l.hearers, h)
	if l.open {
		l.look()
	} else {
		l.open = true
		l.session.Go(l.run)
	}
	l.mu.Unlock()
	select {
	case err := <-h.broken:
		return fmt.Errorf("postgres: listen: %w", err)
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hearers = slices.DeleteFunc(l.hearers, func(other *hearer) bool { return other == h })
	l.look()
	return context.Cause(ctx)
}

// look makes the session read hearers again. mu is held.
func (l *listener) look() {
	if l.interrupt != nil {
		l.interrupt()
	}
}

// run keeps the connection until no hearer is left, or it breaks, of which it informs all hearers.
func (l *listener) run() {
	conn, err := l.connect(l.life, nil)
	if err == nil {
		defer closeSoon(conn)
		err = l.hear(conn)
	}
	if err == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.look()
	l.open, l.interrupt = false, nil
	for _, h := range l.hearers {
		h.broken <- err
	}
	l.hearers = nil
}

// connect opens a session. notice, which may be nil, is called with each notice of the server.
func (l *listener) connect(ctx context.Context, notice pgconn.NoticeHandler) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	config := l.config.ConnConfig.Copy()
	if notice != nil {
		config.OnNotice = notice
	}
	if l.config.BeforeConnect != nil {
		if err := l.config.BeforeConnect(ctx, config); err != nil {
			return nil, err
		}
	}
	return pgx.ConnectConfig(ctx, config)
}

// hear passes notifications to hearers. It returns nil when no hearer is left.
func (l *listener) hear(conn *pgx.Conn) error {
	listening := map[string]bool{}
	for {
		waiting, hearers := l.next()
		if len(hearers) == 0 {
			return nil
		}
		for _, h := range hearers {
			if err := l.begin(conn, h, listening); err != nil {
				return err
			}
		}
		n, err := conn.WaitForNotification(waiting)
		switch {
		case err == nil:
			for _, h := range hearers {
				if h.channel == n.Channel {
					h.heard(n.Payload)
				}
			}
		case waiting.Err() == nil || l.life.Err() != nil || conn.IsClosed():
			return err
		}
	}
}

// next returns the hearers, and the context of the next wait. Without hearers the session ends.
func (l *listener) next() (context.Context, []*hearer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.look() // the last wait is over
	l.interrupt = nil
	if len(l.hearers) == 0 {
		l.open = false
		return nil, nil
	}
	var waiting context.Context
	waiting, l.interrupt = context.WithCancel(l.life)
	return waiting, slices.Clone(l.hearers)
}

// begin listens to the channel of h, unless the connection does already, and calls ready.
func (l *listener) begin(conn *pgx.Conn, h *hearer, listening map[string]bool) error {
	if h.told {
		return nil
	}
	if !listening[h.channel] {
		ctx, cancel := context.WithTimeout(l.life, listenTimeout)
		defer cancel()
		if _, err := conn.Exec(ctx, "LISTEN "+quote(h.channel)); err != nil {
			return err
		}
		listening[h.channel] = true
	}
	h.told = true
	h.ready()
	return nil
}

// Close ends the connection, when no store listens any more.
func (l *listener) Close() {
	l.end()
	l.session.Wait()
}

// closeSoon closes conn within a second, whatever the context of its owner.
func closeSoon(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

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
