package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"modernc.org/sqlite"

	"github.com/holdfast-go/holdfast/transport"
)

// A function of OnCommit that hangs fails its message. The writes that share its transaction are
// made, and the function can write no more.
func TestAHangingOnCommitFailsItsMessage(t *testing.T) {
	path := temp(t)
	synctest.Test(t, func(t *testing.T) {
		conn := dial(t, Transport{Path: path, Lease: time.Hour}, queue, "shipping")
		db := charges(t, conn, path, 3)
		r := receiver(t, conn, queue)
		gate, release, late := make(chan struct{}), make(chan struct{}), make(chan error)
		funcs := []func(context.Context, *sql.Tx) error{
			func(context.Context, *sql.Tx) error { <-gate; return nil }, // meanwhile the others come to share a transaction
			func(ctx context.Context, tx *sql.Tx) error {
				err := charge("hanging")(ctx, tx)
				<-release
				late <- charge("late")(context.WithoutCancel(ctx), tx)
				return err
			},
			func(ctx context.Context, tx *sql.Tx) error {
				close(release)
				if err := <-late; err == nil {
					t.Error("the function has written after its time")
				}
				return charge("other")(ctx, tx)
			},
		}
		var txs []transport.Tx
		for _, f := range funcs { // before the first one runs: a claim is a write too
			tx := begin(t, receive(t, r))
			onCommit(t, tx, f)
			txs = append(txs, tx)
		}
		done := make([]chan error, len(funcs))
		for i, tx := range txs {
			done[i] = make(chan error, 1)
			go func() { done[i] <- tx.Complete(context.WithoutCancel(t.Context()), nil) }()
			synctest.Wait()
		}
		began := time.Now()
		close(gate)
		for i, failed := range []bool{false, true, false} {
			if err := <-done[i]; errors.Is(err, errHangs) != failed || (err != nil) != failed || errors.Is(err, transport.ErrUnreachable) {
				t.Errorf("message %d: %v", i, err)
			}
		}
		if took := time.Since(began); took != commitTimeout {
			t.Errorf("the others waited for %v", took)
		}
		if n := count(t, db, `select count(*) from charges`); n != 1 {
			t.Errorf("%d rows were written, want that of the other message", n)
		}
	})
}

// hanging is closed when the time of the function is over whose statement hangs. Until then the
// statement waits, so that the clock of the bubble goes on.
var hanging <-chan struct{}

func init() {
	sqlite.MustRegisterScalarFunction("test_wait", 0,
		func(*sqlite.FunctionContext, []driver.Value) (driver.Value, error) {
			<-hanging
			return int64(0), nil
		})
}

// numbers has 1 at once, and no end.
const numbers = `
	with recursive numbers (n) as (select 1 union all select n + 1 + test_wait() from numbers) `

// endless are statements that do not return.
var endless = map[string]func(context.Context, *sql.Tx) error{
	"statement": func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, numbers+`select count(*) from numbers`)
		return err
	},
	"prepared": func(ctx context.Context, tx *sql.Tx) error {
		query := numbers + `insert into charges select n from numbers where n < 0`
		stmt, err := tx.PrepareContext(ctx, query)
		if err != nil {
			return err
		}
		defer stmt.Close()
		_, err = stmt.ExecContext(ctx)
		return err
	},
	"temporary table": func(ctx context.Context, tx *sql.Tx) error {
		query := `create temporary table batch as ` + numbers + `select n from numbers where n < 0`
		_, err := tx.ExecContext(ctx, query)
		return err
	},
	"second row": func(ctx context.Context, tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, numbers+`select n from numbers where n < 2`)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			continue
		}
		return rows.Err()
	},
}

// A statement of a function of OnCommit that hangs and ignores the context is interrupted. The
// message fails, whether or not others share its transaction, and the others are handled.
func TestAHangingStatementOfOnCommitIsInterrupted(t *testing.T) {
	for name, statement := range endless {
		for shares, first := range map[string]int{"alone": 0, "among others": 2} {
			t.Run(name+" "+shares, func(t *testing.T) {
				path := temp(t)
				synctest.Test(t, func(t *testing.T) { interrupted(t, path, first, statement) })
			})
		}
	}
}

// interrupted completes a message whose function of OnCommit hangs in statement, behind first
// messages that share the transaction, and then another one.
func interrupted(
	t *testing.T, path string, first int, statement func(context.Context, *sql.Tx) error,
) {
	t.Helper()
	conn := dial(t, Transport{Path: path, Lease: time.Hour}, queue, "shipping")
	db := charges(t, conn, path, first+2)
	r := receiver(t, conn, queue)
	returned := make(chan error, 1)
	funcs := make([]func(context.Context, *sql.Tx) error, first, first+2)
	for i := range funcs {
		funcs[i] = charge(string(rune('a' + i)))
	}
	funcs = append(funcs, func(ctx context.Context, tx *sql.Tx) error {
		hanging = ctx.Done()
		err := statement(context.WithoutCancel(ctx), tx)
		for range 3 { // a function that tries again
			err = statement(context.WithoutCancel(ctx), tx)
		}
		returned <- err
		return err
	}, charge("other"))
	gate := make(chan struct{})
	if first > 0 {
		inner := funcs[0]
		funcs[0] = func(ctx context.Context, tx *sql.Tx) error { <-gate; return inner(ctx, tx) }
	}
	var txs []transport.Tx
	for _, f := range funcs { // before the first one runs: a claim is a write too
		tx := begin(t, receive(t, r))
		onCommit(t, tx, f)
		txs = append(txs, tx)
	}
	done := make([]chan error, len(funcs))
	for i, tx := range txs {
		done[i] = make(chan error, 1)
		go func() { done[i] <- tx.Complete(context.WithoutCancel(t.Context()), nil) }()
		synctest.Wait()
	}
	close(gate)
	for i := range funcs {
		hangs := i == first
		if err := <-done[i]; errors.Is(err, errHangs) != hangs || (err != nil) != hangs {
			t.Errorf("message %d: %v", i, err)
		}
	}
	if err := <-returned; err == nil {
		t.Error("the statement of the function has succeeded after its time")
	}
	if n := count(t, db, `select count(*) from charges`); n != first+1 {
		t.Errorf("%d rows were written, want %d", n, first+1)
	}
	execute(t, db, `insert into charges values ('another process')`)
}

// After an interrupt nothing is left of the connection: its rollback may have been interrupted.
func TestAnInterruptedConnectionIsClosed(t *testing.T) {
	s, err := open(t.Context(), temp(t), false)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	tx, err := s.writer.begin()
	if err != nil {
		t.Fatal(err)
	}
	p := &part{
		run: func(*sql.Tx) error { return errHangs }, kind: foreign, done: make(chan struct{}),
	}
	s.writer.carryOut(tx, []*part{p})
	if s.writer.conn != nil || s.writer.interrupter.db != 0 {
		t.Errorf("the connection %v with the handle %d is left", s.writer.conn, s.writer.interrupter.db)
	}
}
