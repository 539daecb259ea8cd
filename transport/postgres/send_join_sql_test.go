package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite" // another database system

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// usersSQL is a database/sql pool of a program, with the driver of pgx. traced, which may be nil,
// gets its statements.
func usersSQL(t testing.TB, url string, mode pgx.QueryExecMode, traced *statements) *sql.DB {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	ok(t, err)
	cfg.DefaultQueryExecMode = mode
	if traced != nil {
		cfg.Tracer = traced
	}
	db := stdlib.OpenDB(*cfg)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func beginSQL(t testing.TB, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(context.WithoutCancel(t.Context()), nil)
	ok(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// statements are those that a connection executed.
type statements struct {
	mu  sync.Mutex // guards all
	all []string
}

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, q.SQL)
	return ctx
}

func (*statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (s *statements) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.all
	s.all = nil
	return all
}

// usersDB begins transactions of a program through either library.
type usersDB struct {
	begin func() (tx any, commit func() error)
	seen  *statements
}

func usersDBs(t testing.TB, url string) map[string]usersDB {
	t.Helper()
	all := map[string]usersDB{}
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		seen := &statements{}
		db := usersSQL(t, url, mode, seen)
		all["sql, "+mode.String()] = usersDB{func() (any, func() error) {
			tx := beginSQL(t, db)
			return tx, tx.Commit
		}, seen}
	}
	seen := &statements{}
	cfg, err := pgxpool.ParseConfig(url)
	ok(t, err)
	cfg.ConnConfig.Tracer = seen
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	ok(t, err)
	t.Cleanup(pool.Close)
	all["pgx"] = usersDB{func() (any, func() error) {
		tx := begin(t, pool)
		return tx, func() error { return tx.Commit(context.WithoutCancel(t.Context())) }
	}, seen}
	return all
}

func TestATransactionOfAnyLibraryIsOneToSendIn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "out", "other")
	c := w.open()
	r := receiver(t, c, "out")
	for name, db := range usersDBs(t, testURL()) {
		t.Run(name, func(t *testing.T) {
			odd := msg(`"{odd},'\x'}`)
			odd.Body = []byte{0, 1, 0xff, '\\', '\'', '{'}
			empty := msg("empty")
			empty.Body = nil
			past, later := to("out", msg("past")), to("out", msg("later"))
			past.At, past.TTL = time.Now().Add(-time.Hour), time.Hour
			later.After = time.Hour
			tx, commit := db.begin()
			ok(t, join(t, c, tx, to("out", odd), to("out", msg("äöü")), to("out", empty)))
			receipts, err := c.(transport.TxDispatcher).DispatchIn(t.Context(), tx, []transport.Operation{past, to("other", msg("beside")), later})
			ok(t, err)
			isErr(t, join(t, c, tx, to("missing", msg("lost"))), transport.ErrNoQueue)
			ok(t, join(t, c, tx))
			ok(t, join(t, c, tx, to("out", msg("last"))))
			if n := w.count("out"); n != 0 {
				t.Errorf("%d messages before the commit", n)
			}
			ok(t, commit())
			ok(t, c.(transport.Canceler).Cancel(t.Context(), receipts[2].Cancel))
			ds := receive(t, r, 5)
			slices.SortFunc(ds, func(a, b transport.Delivery) int { return strings.Compare(a.Message().ID, b.Message().ID) })
			want := []*transport.Message{odd, empty, msg("last"), msg("past"), msg("äöü")}
			for i, d := range ds {
				if got := d.Message(); got.ID != want[i].ID || string(got.Body) != string(want[i].Body) {
					t.Errorf("received %q with body %q, want %q with %q", got.ID, got.Body, want[i].ID, want[i].Body)
				}
				ok(t, d.Complete(t.Context()))
			}
			if n := w.count("other"); n != 1 {
				t.Errorf("%d messages beside them, want 1", n)
			}
			w.exec(`DELETE FROM %sother`)
		})
	}
}

func TestAPlainMessageIsOneStatementInAUsersTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "out", "other")
	c := w.open()
	for name, db := range usersDBs(t, testURL()) {
		for i, ops := range [][]transport.Operation{
			{to("out", msg("before"))}, // may have a savepoint
			{to("out", msg("1"))},
			{to("out", msg("2")), to("out", msg("3"))},
		} {
			tx, commit := db.begin()
			db.seen.take()
			ok(t, join(t, c, tx, ops...))
			if got := db.seen.take(); i > 0 && len(got) != 1 {
				t.Errorf("%s: %d messages are %q, want one statement", name, len(ops), got)
			}
			ok(t, commit())
		}
	}
	if n := w.count("out"); n != 4*4 {
		t.Errorf("%d messages, want 16", n)
	}
}

// The server has ended the transaction. The next one is protected by a savepoint.
func TestAnErrorOfTheOneStatementEndsAUsersTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "out", "other")
	c := w.open()
	for name, db := range usersDBs(t, testURL()) {
		tx, commit := db.begin()
		ok(t, join(t, c, tx, to("out", msg("good"))))
		ok(t, commit())
		w.exec(`ALTER TABLE %sout ADD CONSTRAINT no CHECK (headers::json ->> 'NServiceBus.MessageId' <> 'refused')`)
		tx, commit = db.begin()
		err := join(t, c, tx, to("out", msg("neighbour")), to("out", msg("refused")))
		if diff := cmp.Diff([]int{0, 1}, failedOps(t, err)); diff != "" {
			t.Errorf("%s: failed operations (-want +got):\n%s", name, diff)
		}
		if err := commit(); err == nil {
			t.Errorf("%s: the transaction was committed", name)
		}
		tx, commit = db.begin()
		if err := join(t, c, tx, to("out", msg("refused"))); err == nil {
			t.Errorf("%s: refused message was sent", name)
		}
		ok(t, join(t, c, tx, to("out", msg("good"))))
		ok(t, commit())
		w.exec(`ALTER TABLE %sout DROP CONSTRAINT no`)
		if n := w.exec(`DELETE FROM %sout`); n != 2 {
			t.Errorf("%s: %d messages, want 2", name, n)
		}
	}
}

// A publish in a user's transaction survives the end of a subscriber.
// A subscriber that is uninstalled does not fail the transactions of publishers.
func TestJoinedPublishWhenASubscriberEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "out", "gone")
	c := w.open()
	published := transport.Operation{Types: []string{"T"}, Message: msg("1")}
	ok(t, c.(transport.Subscriber).Subscribe(t.Context(), "gone", []string{"T"}))
	for name, db := range usersDBs(t, testURL()) {
		tx, commit := db.begin()
		ok(t, join(t, c, tx, published))
		ok(t, commit())
		w.exec(`DROP TABLE %sgone`)
		tx, commit = db.begin()
		ok(t, join(t, c, tx, to("out", msg("beside"))))
		if err := join(t, c, tx, published); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		ok(t, commit())
		ok(t, c.(transport.Installer).Install(t.Context(), plan("gone")))
		ok(t, c.(transport.Subscriber).Subscribe(t.Context(), "gone", []string{"T"}))
	}
	if n := w.count("out"); n != 4 {
		t.Errorf("%d messages beside it, want 4", n)
	}
}

// The right to insert is enough to send in a user's transaction.
// A program that only sends needs no right to read the queue.
func TestJoinedSendNeedsOnlyInsert(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "out")
	c := w.open()
	user := w.unprivileged()
	u, err := url.Parse(user)
	ok(t, err)
	w.exec(`REVOKE SELECT, UPDATE, DELETE ON ALL TABLES IN SCHEMA ` + w.schema + ` FROM ` + u.User.Username())
	for _, db := range usersDBs(t, user) {
		for range 2 {
			tx, commit := db.begin()
			ok(t, join(t, c, tx, to("out", msg("1")), to("out", msg("2"))))
			ok(t, commit())
		}
	}
	if n := w.count("out"); n != 16 {
		t.Errorf("%d messages, want 16", n)
	}
	w.exec(`REVOKE INSERT ON ALL TABLES IN SCHEMA ` + w.schema + ` FROM ` + u.User.Username())
	for name, db := range usersDBs(t, user) {
		tx, _ := db.begin()
		err := join(t, c, tx, to("out", msg("1")))
		if got := failedOps(t, err); len(got) != 1 || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("%s: error %v, want that the permission is denied", name, err)
		}
	}
}

// A transaction of another database with the same tables sends nothing.
// A database that has the same tables takes no row, whether the statement has a savepoint or not.
func TestJoinATwinDatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "out")
	c := w.open()
	elsewhere := brokertest.Postgres(t)
	other, err := (&Transport{URL: elsewhere, Schema: w.schema}).Open(t.Context(), transport.Env{})
	ok(t, err)
	defer other.Close()
	ok(t, other.(transport.Installer).Install(t.Context(), plan("out")))
	for name, db := range usersDBs(t, elsewhere) {
		for _, known := range []bool{false, true} {
			if known {
				tx := begin(t, users(t, testURL()))
				ok(t, join(t, c, tx, to("out", msg("1"))))
				ok(t, tx.Rollback(t.Context()))
			}
			tx, commit := db.begin()
			err := join(t, c, tx, to("out", msg("1")))
			theirs, ours := databaseOf(t, elsewhere), databaseOf(t, testURL())
			if want := fmt.Sprintf("it is one of database %q and the queues are in %q", theirs, ours); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s, known queue %v: error %v, want %q in it", name, known, err, want)
			}
			ok(t, commit())
		}
	}
	var n int
	ok(t, users(t, elsewhere).QueryRow(t.Context(), `SELECT count(*) FROM `+quote(w.schema, "out")).Scan(&n))
	if n != 0 || w.count("out") != 0 {
		t.Errorf("%d messages in the other database and %d in this one, want none", n, w.count("out"))
	}
}

func databaseOf(t testing.TB, url string) string {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	ok(t, err)
	return cfg.Database
}

func TestATransactionOfAnotherDatabaseSystemIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "out")
	c := w.open()
	db, err := sql.Open("sqlite", "file:"+t.TempDir()+"/theirs.db")
	ok(t, err)
	t.Cleanup(func() { _ = db.Close() })
	_, err = db.ExecContext(t.Context(), `CREATE TABLE biz (id int)`)
	ok(t, err)
	for range 2 { // the second time the queue is known
		tx := beginSQL(t, db)
		for _, ops := range [][]transport.Operation{{to("out", msg("1"))}, {to("out", msg("1")), to("out", msg("2"))}, {}} {
			err := join(t, c, tx, ops...)
			if want := "the *sql.Tx has to be one of PostgreSQL"; err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%d messages: error %v, want %q in it", len(ops), err, want)
			}
		}
		_, err = tx.ExecContext(t.Context(), `INSERT INTO biz VALUES (1)`)
		ok(t, err)
		ok(t, tx.Commit())
		mine := begin(t, users(t, testURL()))
		ok(t, join(t, c, mine, to("out", msg("1"))))
		ok(t, mine.Rollback(t.Context()))
	}
}

func TestASQLTransactionThatIsOverIsAnError(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "out")
	c := w.open()
	tx := beginSQL(t, usersSQL(t, testURL(), pgx.QueryExecModeCacheStatement, nil))
	ok(t, tx.Commit())
	isErr(t, join(t, c, tx, to("out", msg("1"))), sql.ErrTxDone)
}
