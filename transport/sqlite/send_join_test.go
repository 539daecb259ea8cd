package sqlite

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/transport"
)

// users opens the file as its users do.
func users(t testing.TB, path, params string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?"+params)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func beginFor(t testing.TB, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(context.WithoutCancel(t.Context()), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

func mustExec(t testing.TB, on interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}, query string,
) {
	t.Helper()
	if _, err := on.ExecContext(t.Context(), query); err != nil {
		t.Fatal(err)
	}
}

func join(ctx context.Context, conn transport.Conn, tx any, ops ...transport.Operation) error {
	_, err := conn.(transport.TxDispatcher).DispatchIn(ctx, tx, ops)
	return err
}

// The user's writes and the messages of the same transaction commit together.
// The user's row and the messages of the same transaction commit together.
func TestJoinedSendCommitsWithTheRow(t *testing.T) {
	path := temp(t)
	conn := dial(t, Transport{Path: path}, queue)
	db := users(t, path, "_txlock=immediate&_busy_timeout=20000")
	mustExec(t, db, "create table orders (id text)")
	for _, commit := range []bool{true, false} {
		tx := beginFor(t, db)
		mustExec(t, tx, "insert into orders values ('1')")
		if err := join(t.Context(), conn, tx, to(queue, "1")); err != nil {
			t.Fatal(err)
		}
		end := tx.Rollback
		if commit {
			end = tx.Commit
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
	}
	var orders, messages int
	err := db.QueryRowContext(t.Context(),
		"select (select count(*) from orders), (select count(*) from holdfast_messages)").Scan(&orders, &messages)
	if err != nil || orders != 1 || messages != 1 {
		t.Errorf("%d orders and %d messages (%v), want one of each", orders, messages, err)
	}
}

// A transaction of another file is refused with a reason.
func TestJoinAnotherFile(t *testing.T) {
	conn := dial(t, Transport{Path: temp(t)}, queue)
	elsewhere := temp(t)
	dial(t, Transport{Path: elsewhere}, queue) // it has the same tables
	over := beginFor(t, users(t, elsewhere, ""))
	_ = over.Rollback()
	for want, tx := range map[string]any{
		"it is a <nil>: want a *sql.Tx":   nil,
		"it is a *sql.DB: want a *sql.Tx": users(t, elsewhere, ""),
		"it is a *sql.Tx: want a *sql.Tx": (*sql.Tx)(nil),
		"and the queues are in":           beginFor(t, users(t, elsewhere, "")),
		"already been committed":          over,
	} {
		err := join(t.Context(), conn, tx, to(queue, "1"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%T: error %v, want %q in it", tx, err, want)
		}
	}
}

func TestATransactionOfMemoryIsRefused(t *testing.T) {
	conn := dial(t, Transport{Path: temp(t)}, queue)
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := join(t.Context(), conn, beginFor(t, db), to(queue, "1")); err == nil {
		t.Error("it was sent")
	}
}

func TestATransactionThatCannotHaveTheLockSaysSo(t *testing.T) {
	path := temp(t)
	conn := dial(t, Transport{Path: path}, queue)
	holder := beginFor(t, users(t, path, "_txlock=immediate"))
	deferred := beginFor(t, users(t, path, "_busy_timeout=0"))
	err := join(t.Context(), conn, deferred, to(queue, "1"))
	if err == nil || !strings.Contains(err.Error(), "_txlock=immediate") {
		t.Errorf("error %v, want advice", err)
	}
	if err := holder.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := join(t.Context(), conn, deferred, to(queue, "2")); err != nil {
		t.Fatal(err)
	}
	if err := deferred.Commit(); err != nil {
		t.Fatal(err)
	}
	if id := receive(t, receiver(t, conn, queue)).Message().ID; id != "2" {
		t.Errorf("received %q", id)
	}
}

func TestAnEndedContextLeavesAUsersTransactionAlone(t *testing.T) {
	path := temp(t)
	conn := dial(t, Transport{Path: path}, queue)
	tx := beginFor(t, users(t, path, "_txlock=immediate"))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := join(ended, conn, tx, to(queue, "late")); err == nil {
		t.Error("it was sent although its context had ended")
	}
	if err := join(t.Context(), conn, tx, to(queue, "in time")); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if id := receive(t, receiver(t, conn, queue)).Message().ID; id != "in time" {
		t.Errorf("received %q", id)
	}
}
