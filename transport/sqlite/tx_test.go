package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/internal/callback"
	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// business opens a file with a queue and a table of the user's.
func business(t *testing.T, messages int) (conn transport.Conn, db *sql.DB) {
	t.Helper()
	path := temp(t)
	conn = dial(t, Transport{Path: path}, queue, "shipping")
	return conn, charges(t, conn, path, messages)
}

func charges(t *testing.T, conn transport.Conn, path string, messages int) *sql.DB {
	t.Helper()
	db := mine(t, path)
	execute(t, db, `create table charges (id text primary key)`)
	for i := range messages {
		send(t, conn, to(queue, fmt.Sprint(i)))
	}
	return db
}

func begin(t *testing.T, d transport.Delivery) transport.Tx {
	t.Helper()
	tx, err := d.(transport.Transactor).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

func onCommit(t *testing.T, tx transport.Tx, f func(ctx context.Context, tx *sql.Tx) error) {
	t.Helper()
	if err := OnCommit(t.Context(), given{tx}, f); err != nil {
		t.Fatal(err)
	}
}

func charge(id string) func(ctx context.Context, tx *sql.Tx) error {
	return func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `insert into charges (id) values (?)`, id)
		return err
	}
}

func TestOnCommitWritesTogetherWithCompletionAndSends(t *testing.T) {
	conn, db := business(t, 1)
	if !conn.Limits().Atomic {
		t.Error("Limits.Atomic is false")
	}
	tx := begin(t, receive(t, receiver(t, conn, queue)))
	onCommit(t, tx, charge("a"))
	onCommit(t, tx, charge("b"))
	send(t, conn, to(queue, "others can write meanwhile"))
	if n := count(t, db, `select count(*) from charges`); n != 0 {
		t.Errorf("%d rows before the commit", n)
	}
	if err := tx.Complete(t.Context(), []transport.Operation{to("shipping", "x")}); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Error("Rollback after Complete:", err)
	}
	if n := count(t, db, `select count(*) from charges`); n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
	want := []transport.QueueStats{{Name: queue, Ready: 1}, {Name: "shipping", Ready: 1}}
	if diff := cmp.Diff(want, withoutAge(inspectAll(t, conn))); diff != "" {
		t.Error("queues (-want +got):\n", diff)
	}
}

func withoutAge(stats []transport.QueueStats) []transport.QueueStats {
	for i := range stats {
		stats[i].Oldest = 0
	}
	return stats
}

func TestRollbackWritesNothingAndLeavesTheMessage(t *testing.T) {
	conn, db := business(t, 1)
	d := receive(t, receiver(t, conn, queue))
	tx := begin(t, d)
	onCommit(t, tx, charge("a"))
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := tx.Complete(t.Context(), nil); err == nil {
		t.Error("Complete after Rollback succeeded")
	}
	if err := OnCommit(t.Context(), given{tx}, charge("b")); err == nil {
		t.Error("OnCommit after Rollback succeeded")
	}
	if n := count(t, db, `select count(*) from charges`); n != 0 {
		t.Errorf("%d rows were written", n)
	}
	if err := d.Retry(t.Context()); err != nil {
		t.Error("the delivery can still be settled:", err)
	}
}

func TestAFailingFunctionUndoesItsMessageOnly(t *testing.T) {
	path := temp(t)
	s, err := open(t.Context(), path, false)
	if err != nil {
		t.Fatal(err)
	}
	conn := tablequeue.Open(s.parts(), tablequeue.Config{})
	defer conn.Close()
	install(t, conn, queue, "shipping")
	db := charges(t, conn, path, 8)
	boom := errors.New("no credit")
	fails := map[string]func(ctx context.Context, tx *sql.Tx) error{
		"1": func(context.Context, *sql.Tx) error { return boom },
		"3": charge("3"), // a duplicate
		"5": func(context.Context, *sql.Tx) error { panic("nil map") },
		"4": func(context.Context, *sql.Tx) error { runtime.Goexit(); return nil }, // as FailNow does in a test
		"6": func(ctx context.Context, tx *sql.Tx) error { // ends the whole transaction
			_, err := tx.ExecContext(ctx, `insert or rollback into charges (id) values ('6'), ('6')`)
			return err
		},
	}
	r := receiver(t, conn, queue)
	deliveries := map[string]transport.Delivery{}
	for range 8 {
		d := receive(t, r)
		deliveries[d.Message().ID] = d
	}
	errs := map[string]error{}
	var mu sync.Mutex
	var completing sync.WaitGroup
	release := hold(t, s.writer, db)
	for id, d := range deliveries {
		tx := begin(t, d)
		onCommit(t, tx, charge(id))
		if f := fails[id]; f != nil {
			onCommit(t, tx, f)
		}
		completing.Go(func() {
			err := tx.Complete(t.Context(), []transport.Operation{to("shipping", id)})
			mu.Lock()
			defer mu.Unlock()
			errs[id] = err
		})
	}
	release(len(deliveries))
	completing.Wait()

	for id := range deliveries {
		written := count(t, db, `select count(*) from charges where id = ?`, id)
		sent := count(t, db, `select count(*) from holdfast_messages where queue = 'shipping' and id = ?`, id)
		kept := count(t, db, `select count(*) from holdfast_messages where queue = 'billing' and id = ?`, id)
		failed := fails[id] != nil
		if failed != (errs[id] != nil) || written != 1-kept || sent != written || failed != (kept == 1) {
			t.Errorf("message %s: error %v, %d written, %d sent, %d kept", id, errs[id], written, sent, kept)
		}
	}
	if !errors.Is(errs["1"], boom) {
		t.Errorf("the function's error came as %v", errs["1"])
	}
	var failed *transport.DispatchError
	if errors.As(errs["1"], &failed) {
		t.Error("the function's error is said to be of a sent message")
	}
	if errors.Is(errs["1"], transport.ErrUnreachable) {
		t.Error("the function's error is said to be of the file")
	}
	if errs["5"] == nil || !strings.Contains(errs["5"].Error(), "nil map") {
		t.Errorf("the function's panic came as %v", errs["5"])
	}
	if !errors.Is(errs["4"], callback.ErrGoexit) {
		t.Errorf("the end of the function's goroutine came as %v", errs["4"])
	}
	if err := deliveries["1"].Retry(t.Context()); err != nil {
		t.Error("the delivery can still be settled:", err)
	}
}

// hold keeps the file locked until release is called and n parts wait to be written, so that
// they share a transaction.
func hold(t *testing.T, w *writer, db *sql.DB) (release func(n int)) {
	t.Helper()
	lock, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return func(n int) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); ; {
			w.mu.Lock()
			waiting := len(w.waiting)
			w.mu.Unlock()
			if waiting >= n {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d of %d parts wait", waiting, n)
			}
		}
		if err := lock.Rollback(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNoFunctionRunsWhenTheLeaseIsLost(t *testing.T) {
	path := temp(t)
	conn := dial(t, Transport{Path: path, Lease: 20 * time.Millisecond}, queue)
	send(t, conn, to(queue, "m"))
	r := receiver(t, conn, queue)
	tx := begin(t, receive(t, r))
	onCommit(t, tx, func(context.Context, *sql.Tx) error {
		t.Error("the function has run")
		return nil
	})
	receive(t, r) // delivered again
	if err := tx.Complete(t.Context(), nil); !errors.Is(err, transport.ErrLeaseLost) {
		t.Errorf("error %v, want ErrLeaseLost", err)
	}
}

func TestAMissingQueueUndoesTheFunctionsWrites(t *testing.T) {
	conn, db := business(t, 1)
	tx := begin(t, receive(t, receiver(t, conn, queue)))
	onCommit(t, tx, charge("a"))
	err := tx.Complete(t.Context(), []transport.Operation{to("shipping", "x"), to("nowhere", "y")})
	var failed *transport.DispatchError
	if !errors.As(err, &failed) || len(failed.Ops) != 1 || failed.Ops[0].Index != 1 || !errors.Is(err, transport.ErrNoQueue) {
		t.Fatalf("error %v, want ErrNoQueue for operation 1", err)
	}
	if n := count(t, db, `select count(*) from charges`); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}

type foreignTx struct{ transport.Tx }

func TestOnCommitRefusesAnotherTransportsTransaction(t *testing.T) {
	if err := OnCommit(t.Context(), given{foreignTx{}}, charge("a")); err == nil {
		t.Error("it was accepted")
	}
	boom := errors.New("wrong mode")
	if err := OnCommit(t.Context(), refusing{boom}, charge("a")); !errors.Is(err, boom) {
		t.Errorf("error %v, want that of the session", err)
	}
}

type refusing struct{ err error }

func (r refusing) Tx(context.Context) (transport.HandlerTx, error) {
	return transport.HandlerTx{}, r.err
}
