package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// users is a pool of connections such as a program has for its own tables.
func users(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	ok(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func begin(t testing.TB, pool *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	ok(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	return tx
}

func join(t testing.TB, c transport.Conn, tx any, ops ...transport.Operation) error {
	t.Helper()
	_, err := c.(transport.TxDispatcher).DispatchIn(t.Context(), tx, ops)
	return err
}

// The user's writes and the messages of the same transaction commit together.
func TestJoinedSendCommitsWithTheRow(t *testing.T) {
	t.Parallel()
	w := newBiz(t)
	c := w.open()
	pool := users(t, testURL())
	tx := begin(t, pool)
	ok(t, w.write(tx, 1))
	ok(t, join(t, c, tx, to("out", msg("1"))))
	w.wantRows(0, 0, 0)
	ok(t, tx.Commit(t.Context()))
	w.wantRows(0, 1, 1)
	tx = begin(t, pool)
	ok(t, w.write(tx, 2))
	ok(t, join(t, c, tx, to("out", msg("2"))))
	ok(t, tx.Rollback(t.Context()))
	w.wantRows(0, 1, 1)
}

func TestASavepointOfAUserUndoesWhatWasSentInIt(t *testing.T) {
	t.Parallel()
	w := newBiz(t)
	c := w.open()
	tx := begin(t, users(t, testURL()))
	ok(t, join(t, c, tx, to("out", msg("kept"))))
	inner, err := tx.Begin(t.Context())
	ok(t, err)
	ok(t, join(t, c, inner, to("out", msg("undone"))))
	ok(t, inner.Rollback(t.Context()))
	ok(t, tx.Commit(t.Context()))
	if id := receive(t, receiver(t, c, "out"), 1)[0].Message().ID; id != "kept" || w.count("out") != 1 {
		t.Errorf("%q is first of %d messages, want what was kept alone", id, w.count("out"))
	}
}

// Behind pgbouncer and the like, users' connections may not prepare statements.
func TestAUsersConnectionMayBeOfAnyExecMode(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "out")
	c := w.open()
	r := receiver(t, c, "out")
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		cfg, err := pgxpool.ParseConfig(testURL())
		ok(t, err)
		cfg.ConnConfig.DefaultQueryExecMode = mode
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		ok(t, err)
		defer pool.Close()
		tx := begin(t, pool)
		odd := msg(`"{odd},'\x'}`)
		odd.Body = []byte{0, 1, 0xff, '\\', '\'', '{'}
		delayed := to("out", msg("delayed"))
		delayed.At, delayed.TTL, delayed.Message.Body = time.Now().Add(time.Microsecond), time.Hour, nil
		ok(t, join(t, c, tx, to("out", odd), to("out", msg("äöü"))))
		ok(t, join(t, c, tx, delayed))
		err = join(t, c, tx, to("missing", msg("lost")))
		isErr(t, err, transport.ErrNoQueue)
		ok(t, tx.Commit(t.Context()))
		ds := receive(t, r, 3)
		want := []*transport.Message{odd, msg("äöü"), delayed.Message}
		for i, d := range ds {
			got := d.Message()
			if got.ID != want[i].ID || string(got.Body) != string(want[i].Body) {
				t.Errorf("%v: received %q with body %q, want %q with %q", mode, got.ID, got.Body, want[i].ID, want[i].Body)
			}
			ok(t, d.Complete(t.Context()))
		}
	}
}

func TestAValueThatIsNoTransactionIsRefusedByItsType(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "out")
	c := w.open()
	for want, tx := range map[string]any{
		"it is a <nil>: want a pgx.Tx of github.com/jackc/pgx/v5 or a *sql.Tx":         nil,
		"it is a *sql.Tx: want a pgx.Tx of github.com/jackc/pgx/v5 or a *sql.Tx":       (*sql.Tx)(nil),
		"it is a *pgxpool.Pool: want a pgx.Tx of github.com/jackc/pgx/v5 or a *sql.Tx": users(t, testURL()),
		"it is a *pgx.Conn: want a pgx.Tx of github.com/jackc/pgx/v5 or a *sql.Tx":     w.sql,
	} {
		err := join(t, c, tx, to("out", msg("1")))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%T: error %v, want %q in it", tx, err, want)
		}
	}
	if n := w.count("out"); n != 0 {
		t.Errorf("%d messages were sent", n)
	}
}

// A transaction of another database is refused, and goes on.
func TestJoinAnotherDatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "out")
	c := w.open()
	other := users(t, brokertest.Postgres(t))
	_, err := other.Exec(t.Context(), "CREATE TABLE biz (id int)")
	ok(t, err)
	tx := begin(t, other)
	for range 2 {
		err = join(t, c, tx, to("out", msg("1")))
		if want := "and the queues are in"; err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("error %v, want %q in it", err, want)
		}
	}
	_, err = tx.Exec(t.Context(), "INSERT INTO biz VALUES (1)")
	ok(t, err)
	ok(t, tx.Commit(t.Context()))
}

func TestWhatCannotBeSentLeavesAUsersTransactionAsItWas(t *testing.T) {
	t.Parallel()
	w := newBiz(t)
	w.exec(`ALTER TABLE %s"out" ADD CHECK (headers::json ->> 'NServiceBus.MessageId' <> 'refused')`)
	c := w.open()
	tx := begin(t, users(t, testURL()))
	ok(t, w.write(tx, 1))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := c.(transport.TxDispatcher).DispatchIn(ended, tx, []transport.Operation{to("out", msg("late"))})
	isErr(t, err, context.Canceled)
	for name, op := range map[string]transport.Operation{
		"no queue":   to("missing", msg("1")),
		"injection":  to(`out"; DROP TABLE out; --`, msg("2")),
		"long name":  to(strings.Repeat("x", 64), msg("3")),
		"refused":    to("out", msg("refused")),
		"no message": {Queue: "out"},
		"too large":  to("out", &transport.Message{ID: "large", Body: make([]byte, MaxBody+1)}),
	} {
		err := join(t, c, tx, to("out", msg("neighbour")), op)
		if got := failedOps(t, err); !slices.Contains(got, 1) {
			t.Errorf("%s: operations %v failed, want 1: %v", name, got, err)
		}
	}
	ok(t, join(t, c, tx, to("out", msg("good"))))
	ok(t, tx.Commit(t.Context()))
	w.wantRows(0, 1, 1)
}

func TestATransactionThatIsOverOrAbortedIsAnError(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "out")
	c := w.open()
	pool := users(t, testURL())
	over := begin(t, pool)
	ok(t, over.Commit(t.Context()))
	isErr(t, join(t, c, over, to("out", msg("1"))), pgx.ErrTxClosed)
	aborted := begin(t, pool)
	_, _ = aborted.Exec(t.Context(), "no statement")
	err := join(t, c, aborted, to("out", msg("1")))
	if err == nil || !strings.Contains(err.Error(), "aborted") {
		t.Errorf("error %v, want that the transaction is aborted", err)
	}
}

// A user's transaction notifies listeners when it commits, and not before.
func TestJoinedSendWakesAtTheCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "out", "other")
	c := w.open()
	_, err := w.sql.Exec(t.Context(), "LISTEN "+pgx.Identifier{"holdfast." + w.schema}.Sanitize())
	ok(t, err)
	pool := users(t, testURL())
	undone := begin(t, pool)
	ok(t, join(t, c, undone, to("other", msg("undone"))))
	ok(t, undone.Rollback(t.Context()))
	tx := begin(t, pool)
	ok(t, join(t, c, tx, to("out", msg("1")), to("out", msg("2"))))
	ok(t, join(t, c, tx, to("other", msg("3"))))
	ok(t, tx.Commit(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var heard []string
	for len(heard) < 2 {
		n, err := w.sql.WaitForNotification(ctx)
		ok(t, err)
		_, queue, _ := strings.Cut(n.Payload, " ")
		heard = append(heard, queue)
	}
	if diff := cmp.Diff([]string{"out", "other"}, heard); diff != "" {
		t.Errorf("notifications (-want +got):\n%s", diff)
	}
}

// The transaction of one endpoint's handler serves another endpoint of the same database.
func TestAHandlersTransactionIsOneToSendIn(t *testing.T) {
	t.Parallel()
	w := newBiz(t)
	c, other := w.open(), w.open()
	send(t, c, to("in", msg("1")))
	tx, user := begun(t, receive(t, receiver(t, c, "in"), 1)[0])
	ok(t, join(t, other, user, to("out", msg("2"))))
	w.wantRows(1, 0, 0)
	ok(t, tx.Complete(t.Context(), nil))
	w.wantRows(0, 1, 0)
}

// A killed connection leaves both the user's row and the message, or neither.
func TestJoinedSendIsAtomicUnderKills(t *testing.T) {
	t.Parallel()
	w := newBiz(t)
	c := w.open()
	pool, killers := users(t, testURL()), users(t, testURL())
	var wg sync.WaitGroup
	var mu sync.Mutex
	committed := map[string]bool{}
	for worker := range 4 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(7, uint64(worker)))
			for i := range 50 {
				id := worker*50 + i + 1
				if err := w.order(c, id, pool, fateOf(killers, random.IntN(4))); err == nil {
					mu.Lock()
					committed[fmt.Sprint(id)] = true
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	rows, err := w.sql.Query(t.Context(), "SELECT id::text FROM "+w.schema+".biz ORDER BY 1")
	ok(t, err)
	inTable, err := pgx.CollectRows(rows, pgx.RowTo[string])
	ok(t, err)
	rows, err = w.sql.Query(t.Context(), "SELECT headers::json ->> 'NServiceBus.MessageId' FROM "+w.schema+".out ORDER BY 1")
	ok(t, err)
	inQueue, err := pgx.CollectRows(rows, pgx.RowTo[string])
	ok(t, err)
	if diff := cmp.Diff(inTable, inQueue); diff != "" {
		t.Errorf("rows and messages (-rows +messages):\n%s", diff)
	}
	if len(inTable) < len(committed) || len(committed) == 0 || len(committed) == 200 {
		t.Errorf("%d rows, with %d of 200 transactions known to be committed", len(inTable), len(committed))
	}
}

// fate is what happens to a transaction before and after it sends.
type fate struct{ before, after func(tx pgx.Tx) error }

// fateOf kills the transaction's connection before it sends, after it, or not at all.
func fateOf(killers *pgxpool.Pool, n int) fate {
	kill := func(tx pgx.Tx) error {
		_, err := killers.Exec(context.Background(), "SELECT pg_terminate_backend($1)", int32(tx.Conn().PgConn().PID()))
		return err
	}
	spare := func(pgx.Tx) error { return nil }
	return []fate{{kill, spare}, {spare, kill}, {spare, spare}, {spare, spare}}[n]
}

// order is a user's transaction: a row, a message, and what fate has for it.
func (w *world) order(c transport.Conn, id int, pool *pgxpool.Pool, f fate) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	tx, err := pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // does nothing after Commit
	_, err = tx.Exec(ctx, "INSERT INTO "+w.schema+".biz VALUES ($1)", id)
	err = errors.Join(err, f.before(tx))
	_, sent := c.(transport.TxDispatcher).DispatchIn(ctx, tx, []transport.Operation{to("out", msg(fmt.Sprint(id)))})
	err = errors.Join(err, sent, f.after(tx))
	return errors.Join(err, tx.Commit(ctx))
}
