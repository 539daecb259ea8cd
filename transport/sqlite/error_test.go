package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// storing opens a file with the queue "shipping" and a table of the user's, and returns a function
// that executes statements of a handler with an entry that has no key: the handler's are the first
// that write.
func storing(t *testing.T) (s *store, handle func(statements ...string) (transport.OutageDetector, error)) {
	t.Helper()
	s, err := open(t.Context(), temp(t), false)
	if err != nil {
		t.Fatal(err)
	}
	conn := tablequeue.Open(s.parts(), tablequeue.Config{})
	t.Cleanup(func() { _ = conn.Close() })
	install(t, conn, "shipping")
	db := mine(t, s.path)
	execute(t, db, `create table charges (id text primary key, receipt blob)`)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return s, func(statements ...string) (transport.OutageDetector, error) {
		t.Helper()
		tx, err := conn.BeginStore(t.Context(), transport.OutboxEntry{Ops: []transport.Operation{to("shipping", "m")}})
		if err != nil {
			t.Fatal(err)
		}
		onCommit(t, tx, func(ctx context.Context, tx *sql.Tx) error {
			for _, statement := range statements {
				if _, err := tx.ExecContext(ctx, statement); err != nil {
					return fmt.Errorf("charge: %w", err)
				}
			}
			return nil
		})
		return tx.(transport.OutageDetector), tx.Complete(t.Context(), nil)
	}
}

// A handler may find out first that the file takes no writes. The message is not the cause.
func TestAHandlersWriteToAFileThatTakesNoneIsAnOutage(t *testing.T) {
	const write = `insert into charges values ('a', zeroblob(100000))`
	for name, c := range map[string]struct{ begin, end string }{
		"the disk is full": {`pragma max_page_count=1`, `pragma max_page_count=1000000`},
		"read-only":        {`pragma query_only=1`, `pragma query_only=0`},
	} {
		t.Run(name, func(t *testing.T) {
			s, handle := storing(t)
			execute := func(pragma string) {
				t.Helper()
				if _, err := s.writer.conn.ExecContext(t.Context(), pragma); err != nil {
					t.Fatal(err)
				}
			}
			execute(c.begin)
			if tx, err := handle(write); err == nil || !tx.Outage(t.Context(), err) {
				t.Errorf("no outage is the error %v", err)
			}
			execute(c.end)
			if _, err := handle(write); err != nil {
				t.Error("afterwards:", err)
			}
		})
	}
}

func TestAHandlersOtherErrorIsNoOutage(t *testing.T) {
	s, handle := storing(t)
	other, err := sql.Open("sqlite", "file:"+s.path+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	_, readOnly := other.ExecContext(t.Context(), `delete from charges`)
	if primary(readOnly) == 0 {
		t.Fatalf("error %v of a connection that may not write", readOnly)
	}
	if _, err := handle(`insert into charges values ('a', null)`); err != nil {
		t.Fatal(err)
	}
	tx, twice := handle(`insert into charges values ('a', null)`)
	_, missing := handle(`insert into nothing values (1)`)
	for name, err := range map[string]error{
		"a constraint": twice, "a missing table": missing, "a file that this process opened read-only": readOnly,
		"one of the handler": errors.New("no credit"),
	} {
		if err == nil || tx.Outage(t.Context(), fmt.Errorf("charge: %w", err)) {
			t.Errorf("%s is an outage: %v", name, err)
		}
	}
}
