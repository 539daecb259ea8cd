package sqlserver

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	_ "modernc.org/sqlite" // another database system

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

// begun is a delivery's transaction in which a handler has written.
func begun(t *testing.T, s *store) (*handlerTx, *sql.Tx) {
	t.Helper()
	inner, err := s.Begin(t.Context())
	ok(t, err)
	own := inner.(*handlerTx)
	tx, err := own.begun(t.Context())
	ok(t, err)
	_, err = tx.ExecContext(t.Context(), "INSERT charges")
	ok(t, err)
	return own, tx
}

func completed() *tablequeue.Unit {
	return &tablequeue.Unit{
		Verb: tablequeue.Delete, Queue: "q", Lease: tablequeue.Lease{Seq: 1, ID: 10},
		Rows: []tablequeue.Row{{Queue: "out", ID: "a", Headers: []byte("{}")}},
	}
}

// The handler's writes and the end of the message are one transaction.
func TestHandlersTransaction(t *testing.T) {
	f, s := newFake(t, map[string]answer{removePart: numbers(0), "[out]": numbers(1)})
	own, first := begun(t, s)
	again, err := own.begun(t.Context())
	ok(t, err)
	if again != first {
		t.Error("the second handler got another transaction")
	}
	ok(t, own.Complete(t.Context(), completed()))
	calls := f.take()
	if len(calls) != 5 || calls[0].text != "begin" || calls[4].text != "commit" {
		t.Fatalf("%+v", calls)
	}
	for _, c := range calls[1:4] {
		if !c.tx {
			t.Errorf("outside the transaction: %s", c.text)
		}
	}
	ok(t, own.Rollback(t.Context())) // nothing any more
	if _, err := own.begun(t.Context()); !errors.Is(err, errEnded) {
		t.Errorf("after the end: %v", err)
	}
}

func TestLostLeaseRollsTheHandlersWritesBack(t *testing.T) {
	f, s := newFake(t, map[string]answer{removePart: numbers()})
	own, _ := begun(t, s)
	u := completed()
	ok(t, own.Complete(t.Context(), u))
	if got := f.texts(); !u.Lost || got[len(got)-1] != "rollback" || slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, "[out]") }) {
		t.Errorf("lost %v, asked %q", u.Lost, got)
	}
}

func TestFailedCompletionRollsBack(t *testing.T) {
	for name, test := range map[string]struct {
		answers map[string]answer
		want    tablequeue.Class
	}{
		"no queue": {map[string]answer{removePart: numbers(0), "[out]": serverError(208, 16)}, tablequeue.Refused},
		"deadlock": {map[string]answer{removePart: serverError(1205, 13)}, tablequeue.Conflict},
		"cut":      {map[string]answer{removePart: {err: errors.New("cut")}}, tablequeue.Unavailable},
	} {
		f, s := newFake(t, test.answers)
		own, _ := begun(t, s)
		err := own.Complete(t.Context(), completed())
		if err == nil || s.Classify(err) != test.want {
			t.Errorf("%s: class %v of %v", name, s.Classify(err), err)
		}
		if got := f.texts(); got[len(got)-1] != "rollback" {
			t.Errorf("%s: asked %q", name, got)
		}
	}
}

// A handler that ignores a deadlock would have its message removed and its writes gone.
func TestTransactionThatTheServerEndedIsNotCompleted(t *testing.T) {
	f, s := newFake(t, map[string]answer{removePart: numbers(0)})
	own, _ := begun(t, s)
	f.aborted = true
	err := own.Complete(t.Context(), completed())
	if err == nil || s.Classify(err) != tablequeue.Failed {
		t.Errorf("class %v of %v", s.Classify(err), err)
	}
	for _, c := range f.take() {
		if c.text == "commit" {
			t.Error("committed")
		}
	}
}

// The endpoint repeats an attempt whose transaction lost a conflict, wherever in it that was.
func TestDeadlockInAHandlerIsAConflict(t *testing.T) {
	f, s := newFake(t, map[string]answer{"UPDATE stock": serverError(1205, 13)})
	own, tx := begun(t, s)
	_, err := tx.ExecContext(t.Context(), "UPDATE stock")
	if got := s.Classify(fmt.Errorf("reserve: %w", err)); got != tablequeue.Conflict {
		t.Errorf("class %v of %v", got, err)
	}
	ok(t, own.Rollback(t.Context()))
	if got := f.texts(); got[len(got)-1] != "rollback" {
		t.Errorf("asked %q", got)
	}
}

func TestTransactionThatAHandlerEndedFailsItsMessage(t *testing.T) {
	f, s := newFake(t, map[string]answer{removePart: numbers(0)})
	own, tx := begun(t, s)
	ok(t, tx.Commit())
	f.take()
	err := own.Complete(t.Context(), completed())
	isErr(t, err, errEnded)
	if got := f.take(); len(got) != 0 || s.Classify(err) != tablequeue.Failed {
		t.Errorf("class %v, asked %+v", s.Classify(err), got)
	}
}

func TestMessageWithoutWritesIsCompletedLikeAnyOther(t *testing.T) {
	f, s := newFake(t, map[string]answer{removePart: numbers(0)})
	inner, err := s.Begin(t.Context())
	ok(t, err)
	if got := f.take(); len(got) != 0 {
		t.Fatalf("asked %+v for a transaction without statements", got)
	}
	u := &tablequeue.Unit{Verb: tablequeue.Delete, Queue: "q"}
	ok(t, inner.Complete(t.Context(), u))
	if got := f.take(); len(got) != 1 || got[0].tx || u.Lost {
		t.Errorf("lost %v, asked %+v", u.Lost, got)
	}
}

func TestBeginWaitsForAConnectionUntilItsContextEnds(t *testing.T) {
	_, s := newFake(t, nil)
	one, _ := begun(t, s)
	two, _ := begun(t, s) // MaxTx is 2
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	third := &handlerTx{of: s.transactions}
	if _, err := third.begun(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a third of two: %v", err)
	}
	if err := third.Complete(t.Context(), completed()); err == nil {
		t.Error("completed what was not begun")
	}
	ok(t, one.Rollback(t.Context()))
	ok(t, two.Rollback(t.Context()))
}

func TestCloseRollsOpenTransactionsBack(t *testing.T) {
	f := &fakeServer{}
	s := newStore(connector{f}, dialect.Settings{Schema: "dbo", MaxTx: 1})
	own, tx := begun(t, s)
	ok(t, s.Close())
	if err := tx.Commit(); err == nil {
		t.Error("committed after the end")
	}
	ok(t, own.Rollback(t.Context()))
}

func TestTxIsTheTransactionOfTheMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s := newFake(t, map[string]answer{
			columnsPart: column("seq", "lease_id"), removePart: numbers(0),
			claimPart: rowsOf([]driver.Value{int64(7), "a", "{}", nil, int64(1), int64(0)}),
		})
		c := tablequeue.Open(s.parts(), tablequeue.Config{})
		defer func() { ok(t, c.Close()) }()
		r, err := c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: "q"})
		ok(t, err)
		ds, err := r.Receive(t.Context(), 1)
		ok(t, err)
		tx, err := ds[0].(transport.Transactor).Begin(t.Context())
		ok(t, err)
		own, err := Tx(t.Context(), session{tx})
		ok(t, err)
		_, err = own.ExecContext(t.Context(), "INSERT charges")
		ok(t, err)
		synctest.Wait() // the receiver has looked for a table of delayed messages, on another connection
		f.take()
		ok(t, tx.Complete(t.Context(), nil))
		if got := f.take(); len(got) != 2 || !got[0].tx || got[1].text != "commit" {
			t.Errorf("completed by %+v", got)
		}
	})
}

func TestTxIsForMessagesFromSQLServer(t *testing.T) {
	_, err := Tx(t.Context(), session{})
	isErr(t, err, errNotOurs)
}

func TestSendsInACallersTransaction(t *testing.T) {
	f, s := newFake(t, map[string]answer{"db_name": rowsOf([]driver.Value{"shop"}), "[out]": numbers(77)})
	foreign, err := s.engine.BeginTx(t.Context(), nil)
	ok(t, err)
	rows := []tablequeue.Row{{Queue: "out", ID: "a", Headers: []byte("{}"), WantSeq: true}}
	ok(t, s.InsertIn(t.Context(), foreign, rows))
	if rows[0].Seq != 77 {
		t.Errorf("key %d", rows[0].Seq)
	}
	want := []string{"begin", databaseName, setSavepoint, "INSERT INTO [dbo].[out] (Headers, Body, visible_at, Expires)"}
	if diff := cmp.Diff(want, f.texts()); diff != "" {
		t.Error(diff)
	}
	f.answers["[out]"] = serverError(208, 16)
	isErr(t, s.InsertIn(t.Context(), foreign, rows), transport.ErrNoQueue)
	if got := f.texts(); got[len(got)-1] != undoSavepoint {
		t.Errorf("asked %q", got)
	}
	f.answers[undoSavepoint] = serverError(3931, 16) // the transaction can only be rolled back
	if err := s.InsertIn(t.Context(), foreign, rows); err == nil || !strings.Contains(err.Error(), "cannot go on") {
		t.Errorf("in a doomed one: %v", err)
	}
	ok(t, foreign.Rollback())
}

func TestRefusesTransactionsOfOthers(t *testing.T) {
	_, s := newFake(t, map[string]answer{"db_name": rowsOf([]driver.Value{"accounts"})})
	foreign, err := s.engine.BeginTx(t.Context(), nil)
	ok(t, err)
	for want, tx := range map[string]any{
		"want a *sql.Tx": "a string",
		"it is a <nil>":  nil,
		`it is one of database "accounts" and the queues are in "shop"`: foreign,
	} {
		if err := s.InsertIn(t.Context(), tx, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", tx, err, want)
		}
	}
	if err := s.InsertIn(t.Context(), (*sql.Tx)(nil), nil); err == nil {
		t.Error("a nil *sql.Tx was taken")
	}
	ok(t, foreign.Rollback())
	other, err := sql.Open("sqlite", ":memory:")
	ok(t, err)
	defer other.Close()
	tx, err := other.BeginTx(t.Context(), nil)
	ok(t, err)
	err = s.InsertIn(t.Context(), tx, nil)
	if want := "the *sql.Tx has to be one of SQL Server"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a transaction of SQLite: %v, want %q", err, want)
	}
	ok(t, tx.Rollback())
	if err := s.InsertIn(t.Context(), tx, nil); !errors.Is(err, sql.ErrTxDone) || strings.Contains(err.Error(), "has to be") {
		t.Errorf("a transaction that is over: %v", err)
	}
}
