package postgres

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/transport"
)

// begun is the transaction of the next message, and what a handler gets of it.
func begun(t testing.TB, d transport.Delivery) (transport.Tx, pgx.Tx) {
	t.Helper()
	tx, err := d.(transport.Transactor).Begin(t.Context())
	ok(t, err)
	user, err := Tx(t.Context(), session{tx})
	ok(t, err)
	return tx, user
}

func newBiz(t testing.TB) *world {
	w := newWorld(t, "in", "out")
	w.exec(`CREATE TABLE %sbiz (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)`)
	return w
}

func (w *world) write(tx pgx.Tx, id int) error {
	_, err := tx.Exec(w.t.Context(), `INSERT INTO `+w.schema+`.biz VALUES ($1)`, id)
	return err
}

// wantRows fails unless the input, the output and the handler's table have that many.
func (w *world) wantRows(in, out, biz int) {
	w.t.Helper()
	if got, want := [3]int{w.count("in"), w.count("out"), w.count("biz")}, [3]int{in, out, biz}; got != want {
		w.t.Errorf("rows in the input, the output and the handler's table: %v, want %v", got, want)
	}
}

func TestWritesSendsAndCompletionCommitTogether(t *testing.T) {
	t.Parallel()
	w := newBiz(t)
	c := w.open()
	send(t, c, to("in", msg("1")))
	d := receive(t, receiver(t, c, "in"), 1)[0]
	tx, user := begun(t, d)
	ok(t, w.write(user, 1))
	ok(t, w.write(user, 2))
	w.wantRows(1, 0, 0)
	later := to("out", msg("later"))
	later.After = 3600e9
	ok(t, tx.Complete(t.Context(), []transport.Operation{to("out", msg("2")), later, to("in", msg("3"))}))
	w.wantRows(1, 2, 2)
	ok(t, tx.Rollback(t.Context()))
	w.wantRows(1, 2, 2)
	if id := receive(t, receiver(t, c, "in"), 1)[0].Message().ID; id != "3" {
		t.Errorf("left in the input: %q", id)
	}
}

func TestARollbackUndoesTheWritesAndKeepsTheCount(t *testing.T) {
	t.Parallel()
	w := newBiz(t)
	c := w.open()
	send(t, c, to("in", msg("1")))
	r := receiver(t, c, "in")
	d := receive(t, r, 1)[0]
	tx, user := begun(t, d)
	ok(t, w.write(user, 1))
	ok(t, tx.Rollback(t.Context()))
	w.wantRows(1, 0, 0)
	if err := w.write(user, 2); err == nil {
		t.Error("a write after the end of the transaction went through")
	}
	ok(t, d.Retry(t.Context()))
	if n := receive(t, r, 1)[0].Attempt().N; n != 2 {
		t.Errorf("attempt %d, want 2", n)
	}
}

func TestALostLeaseRollsTheWholeTransactionBack(t *testing.T) {
	t.Parallel()
	for _, writes := range []int{0, 1, 2} {
		w := newBiz(t)
		c := w.open()
		send(t, c, to("in", msg("1")))
		d := receive(t, receiver(t, c, "in"), 1)[0]
		tx, user := begun(t, d)
		for i := range writes {
			ok(t, w.write(user, i))
		}
		w.exec(`UPDATE %sin SET lease_id = -1`)
		isErr(t, tx.Complete(t.Context(), []transport.Operation{to("out", msg("2"))}), transport.ErrLeaseLost)
		w.wantRows(1, 0, 0)
	}
}

func TestARefusedOperationRollsTheWholeTransactionBack(t *testing.T) {
	t.Parallel()
	for _, queue := range []string{"missing", ""} {
		w := newBiz(t)
		c := w.open()
		send(t, c, to("in", msg("1")))
		d := receive(t, receiver(t, c, "in"), 1)[0]
		tx, user := begun(t, d)
		ok(t, w.write(user, 1))
		err := tx.Complete(t.Context(), []transport.Operation{to("out", msg("2")), to(queue, msg("3"))})
		if got := failedOps(t, err); len(got) != 1 || got[0] != 1 {
			t.Errorf("failed operations %v, want 1", got)
		}
		w.wantRows(1, 0, 0)
		ok(t, completeWith(t, d, to("out", msg("verdict")))) // carried out apart
		w.wantRows(0, 1, 0)
	}
}

func TestAFailedStatementOfTheHandlerCannotBeCommitted(t *testing.T) {
	t.Parallel()
	w := newBiz(t)
	c := w.open()
	w.exec(`CREATE TABLE %sshares (of int)`)
	w.exec(`CREATE FUNCTION %sshare() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM 1 / NEW.of; RETURN NULL; END'`)
	w.exec(`CREATE CONSTRAINT TRIGGER share AFTER INSERT ON %sshares DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION %sshare()`)
	send(t, c, to("in", msg("1")))
	d := receive(t, receiver(t, c, "in"), 1)[0]
	for name, fail := range map[string]func(pgx.Tx){
		"deferred division":  func(tx pgx.Tx) { _, _ = tx.Exec(t.Context(), `INSERT INTO `+w.schema+`.shares VALUES (0)`) },
		"first statement":    func(tx pgx.Tx) { _, _ = tx.Exec(t.Context(), `SELECT 1/0`) },
		"unknown table":      func(tx pgx.Tx) { _, _ = tx.Exec(t.Context(), `INSERT INTO nowhere VALUES (1)`) },
		"second statement":   func(tx pgx.Tx) { _ = w.write(tx, 1); _, _ = tx.Exec(t.Context(), `SELECT 1/0`) },
		"deferred violation": func(tx pgx.Tx) { _ = w.write(tx, 1); _ = w.write(tx, 1) },
	} {
		tx, user := begun(t, d)
		fail(user)
		err := tx.Complete(t.Context(), []transport.Operation{to("out", msg("2"))})
		var blamed *transport.DispatchError
		if err == nil || errors.Is(err, transport.ErrLeaseLost) || errors.As(err, &blamed) {
			t.Errorf("%s: Complete = %v, want what failed", name, err)
		}
		w.wantRows(1, 0, 0)
	}
	tx, user := begun(t, d)
	ok(t, w.write(user, 1))
	ok(t, tx.Complete(t.Context(), nil))
	w.wantRows(0, 0, 1)
}

func TestTheHandlerHasAWholeTransaction(t *testing.T) {
	t.Parallel()
	w := newBiz(t)
	c := w.open()
	send(t, c, to("in", msg("1")))
	ctx := t.Context()
	tx, user := begun(t, receive(t, receiver(t, c, "in"), 1)[0])
	var n int
	ok(t, user.QueryRow(ctx, `SELECT 7`).Scan(&n))
	rows, err := user.Query(ctx, `SELECT 7`)
	ok(t, err)
	rows.Close()
	ok(t, pgx.BeginFunc(ctx, user, func(sp pgx.Tx) error { return w.write(sp, 1) }))
	_ = pgx.BeginFunc(ctx, user, func(sp pgx.Tx) error { return errors.Join(w.write(sp, 2), errors.New("undo")) })
	var b pgx.Batch
	b.Queue(`INSERT INTO ` + w.schema + `.biz VALUES (3)`)
	ok(t, user.SendBatch(ctx, &b).Close())
	_, err = user.CopyFrom(ctx, pgx.Identifier{w.schema, "biz"}, []string{"id"}, pgx.CopyFromRows([][]any{{4}}))
	ok(t, err)
	_, err = user.Exec(ctx, `INSERT INTO `+w.schema+`.biz VALUES ($1)`, pgx.QueryExecModeSimpleProtocol, 5)
	ok(t, err)
	if user.Commit(ctx) == nil || user.Rollback(ctx) == nil {
		t.Error("a handler could end the transaction")
	}
	ok(t, tx.Complete(ctx, nil))
	w.wantRows(0, 0, 4)
	after(t, user)
}

// after fails unless everything about a transaction that is over returns an error.
func after(t *testing.T, user pgx.Tx) {
	t.Helper()
	ctx := t.Context()
	rows, err := user.Query(ctx, `SELECT 1`)
	if err == nil || rows.Next() || rows.Err() == nil {
		t.Error("Query after the end went through")
	}
	var b pgx.Batch
	b.Queue(`SELECT 1`)
	results := user.SendBatch(ctx, &b)
	var n int
	_, execErr := results.Exec()
	_, queryErr := results.Query()
	_, copyErr := user.CopyFrom(ctx, pgx.Identifier{"x"}, nil, pgx.CopyFromRows(nil))
	_, beginErr := user.Begin(ctx)
	_, prepareErr := user.Prepare(ctx, "x", `SELECT 1`)
	for name, err := range map[string]error{
		"QueryRow": user.QueryRow(ctx, `SELECT 1`).Scan(&n), "Begin": beginErr, "CopyFrom": copyErr, "Prepare": prepareErr,
		"batch Exec": execErr, "batch Query": queryErr, "batch QueryRow": results.QueryRow().Scan(&n), "batch Close": results.Close(),
	} {
		if err == nil {
			t.Errorf("%s after the end went through", name)
		}
	}
}

// pgx closes the connection that a statement was broken off on.
func TestATransactionThatWasCutIsRolledBackAlready(t *testing.T) {
	t.Parallel()
	w := newBiz(t)
	c := w.open()
	send(t, c, to("in", msg("1")))
	tx, user := begun(t, receive(t, receiver(t, c, "in"), 1)[0])
	ok(t, w.write(user, 1))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := user.Exec(ctx, `SELECT pg_sleep(60)`); err == nil {
		t.Fatal("the statement was not broken off")
	}
	ok(t, tx.Rollback(t.Context()))
	w.wantRows(1, 0, 0)
}

func TestCloseEndsTransactionsThatAreOpen(t *testing.T) {
	t.Parallel()
	w := newBiz(t)
	c := w.open()
	send(t, c, to("in", msg("1")), to("in", msg("2")))
	ds := receive(t, receiver(t, c, "in"), 2)
	tx, user := begun(t, ds[0])
	ok(t, w.write(user, 1))
	var handler sync.WaitGroup
	_, busy := begun(t, ds[1])
	handler.Go(func() { _, _ = busy.Exec(t.Context(), `SELECT pg_sleep(60)`) })
	ok(t, c.Close())
	handler.Wait()
	isErr(t, tx.Complete(t.Context(), nil), transport.ErrClosed)
	ok(t, tx.Rollback(t.Context()))
	w.wantRows(2, 0, 0)
}

func TestAForeignTransactionIsNotOurs(t *testing.T) {
	t.Parallel()
	_, err := Tx(t.Context(), session{nil})
	isErr(t, err, ErrNotOurs)
}

// A handler that ends its transaction by text has lost its writes, or has written twice when the
// message is repeated: its messages are not sent, and the error says why.
func TestATransactionThatItsHandlerEnds(t *testing.T) {
	t.Parallel()
	for _, statements := range [][]string{
		{"ROLLBACK"},
		{"COMMIT"},
		{"ROLLBACK", "BEGIN"},
		{"end", "BEGIN"},
		{"ROLLBACK; BEGIN"},
		{"abort work and chain"},
		{"SELECT 1; COMMIT AND CHAIN"},
		{"/* done */ ROLLBACK AND CHAIN"},
	} {
		for _, p := range []Transport{{}, {Pooled: true}} {
			w := newBiz(t)
			c := w.openAs(p)
			send(t, c, to("in", msg("1")))
			tx, user := begun(t, receive(t, receiver(t, c, "in"), 1)[0])
			ok(t, w.write(user, 1))
			for _, statement := range statements {
				_, err := user.Exec(t.Context(), statement)
				ok(t, err)
			}
			err := tx.Complete(t.Context(), []transport.Operation{to("out", msg("2"))})
			if err == nil || errors.Is(err, transport.ErrOutcomeUnknown) || !strings.Contains(err.Error(), "COMMIT or ROLLBACK") {
				t.Errorf("%q: %v", statements, err)
			}
			if in, out := w.count("in"), w.count("out"); in != 1 || out != 0 {
				t.Errorf("%q: %d messages in, %d out, want 1 and 0", statements, in, out)
			}
		}
	}
}
