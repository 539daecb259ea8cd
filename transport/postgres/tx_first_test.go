package postgres

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

// firsts are the statements that begin a transaction, each asking for the number 7.
var firsts = map[string]func(ctx context.Context, tx pgx.Tx) (n int, err error){
	"exec": func(ctx context.Context, tx pgx.Tx) (int, error) {
		_, err := tx.Exec(ctx, `SELECT 7`)
		return 7, err
	},
	"query": func(ctx context.Context, tx pgx.Tx) (int, error) {
		rows, _ := tx.Query(ctx, `SELECT 7`) // an error is that of rows too
		return pgx.CollectExactlyOneRow(rows, pgx.RowTo[int])
	},
	"query of a row": func(ctx context.Context, tx pgx.Tx) (n int, err error) {
		return n, tx.QueryRow(ctx, `SELECT 7`).Scan(&n)
	},
	"batch": func(ctx context.Context, tx pgx.Tx) (n int, err error) {
		var b pgx.Batch
		b.Queue(`SELECT 7`).QueryRow(func(row pgx.Row) error { return row.Scan(&n) })
		return n, tx.SendBatch(ctx, &b).Close()
	},
}

// counted counts what is written to a server: pgx writes once in a round trip.
type counted struct {
	net.Conn
	writes *atomic.Int64
}

func (c counted) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

// A transaction begins in the round trip of its first statement.
func TestBeginTravelsWithFirstStatement(t *testing.T) {
	t.Parallel()
	needServer(t)
	cfg, err := parse(testURL())
	ok(t, err)
	var writes atomic.Int64
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return counted{conn, &writes}, err
	}
	for _, pooled := range []bool{false, true} {
		s, err := openStore(t.Context(), cfg, nil, settings{
			Settings: dialect.Settings{Schema: "public", MaxTx: 1}, address: address{pooled: pooled},
		})
		ok(t, err)
		defer s.Close()
		for name, first := range firsts {
			for range 2 { // the first prepares the statement
				own, err := s.Begin(t.Context())
				ok(t, err)
				writes.Store(0)
				n, err := first(t.Context(), &own.(*handlerTx).user)
				ok(t, err)
				if n != 7 {
					t.Errorf("%s: %d", name, n)
				}
				ok(t, own.Rollback(t.Context()))
			}
			if n := writes.Load(); n != 2 {
				t.Errorf("%s, pooled %v: %d round trips with the rollback, want 2", name, pooled, n)
			}
		}
	}
}

// Whatever becomes of the first statement, the connection is there for the next and the transaction
// the endpoint's.
func TestTheFirstStatementOfATransactionEndsAsAnyOther(t *testing.T) {
	t.Parallel()
	var s string
	var n int
	for name, test := range map[string]struct {
		first func(ctx context.Context, tx pgx.Tx) error
		want  string // in the error
		goes  bool   // on afterwards
	}{
		"no row": {func(ctx context.Context, tx pgx.Tx) error {
			return tx.QueryRow(ctx, `SELECT 7 WHERE false`).Scan(&n)
		}, pgx.ErrNoRows.Error(), true},
		"rows that are left": {func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, `SELECT generate_series(1, 10000)`)
			rows.Next()
			rows.Close()
			return err
		}, "", true},
		"another type": {func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, `SELECT 7`)
			ok(t, err)
			rows.Next()
			return rows.Scan(new(bool))
		}, "cannot scan", true},
		"a failing row": {func(ctx context.Context, tx pgx.Tx) error {
			return tx.QueryRow(ctx, `SELECT 1 / 0`).Scan(&n)
		}, "division by zero", false},
		"failing rows": {func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, `SELECT 1 / n FROM generate_series(-1, 1) AS n`)
			ok(t, err)
			for rows.Next() {
				ok(t, rows.Scan(&n))
			}
			return rows.Err()
		}, "division by zero", false},
		"no such table": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Query(ctx, `SELECT * FROM nowhere`)
			return err
		}, "nowhere", false},
		"a failing batch": {func(ctx context.Context, tx pgx.Tx) error {
			var b pgx.Batch
			b.Queue(`SELECT 1 / 0`)
			b.Queue(`SELECT 7`)
			return tx.SendBatch(ctx, &b).Close()
		}, "division by zero", false},
		"results of a batch": {func(ctx context.Context, tx pgx.Tx) error {
			var b pgx.Batch
			b.Queue(`SELECT 'x'`)
			results := tx.SendBatch(ctx, &b)
			if results.Tx() != nil {
				t.Error("a handler was given the transaction to end")
			}
			ok(t, results.QueryRow().Scan(&s))
			return results.Close()
		}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newBiz(t)
			c := w.open()
			send(t, c, to("in", msg("1")))
			tx, user := begun(t, receive(t, receiver(t, c, "in"), 1)[0])
			err := test.first(t.Context(), user)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q in it", err, test.want)
			}
			err = w.write(user, 1)
			if (err == nil) != test.goes {
				t.Errorf("the next statement: %v", err)
			}
			err = tx.Complete(t.Context(), []transport.Operation{to("out", msg("2"))})
			if (err == nil) != test.goes {
				t.Errorf("completed: %v", err)
			}
			if test.goes {
				w.wantRows(0, 1, 1)
			} else {
				w.wantRows(1, 0, 0)
			}
		})
	}
}
