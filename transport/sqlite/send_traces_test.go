package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// leaving are statements that leave something on their connection.
var leaving = []string{
	`create temp table batch (n int)`,
	`attach ':memory:' as other`,
	`pragma query_only = 1`,
	`pragma locking_mode = exclusive`,
	`pragma ignore_check_constraints = 1`,
	`pragma busy_timeout = 60000`,
	`pragma max_page_count = 100`,
}

// executing returns a function of OnCommit that writes a row and executes a statement.
func executing(id, statement string) func(ctx context.Context, tx *sql.Tx) error {
	return func(ctx context.Context, tx *sql.Tx) error {
		if err := charge(id)(ctx, tx); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, statement)
		return err
	}
}

// What a function of OnCommit leaves on the connection reaches no other one, of the same
// transaction or of the next, and nothing of the engine.
func TestWhatAFunctionLeavesReachesNoOther(t *testing.T) {
	for _, statement := range leaving {
		t.Run(statement, func(t *testing.T) {
			path := temp(t)
			var log bytes.Buffer
			s, err := open(t.Context(), path, false)
			if err != nil {
				t.Fatal(err)
			}
			s.writer.log = slog.New(slog.NewTextHandler(&log, nil))
			conn := tablequeue.Open(s.parts(), tablequeue.Config{})
			install(t, conn, queue, "shipping")
			const n = 6
			db := charges(t, conn, path, n)
			r := receiver(t, conn, queue)
			var ds []transport.Delivery
			for range n {
				ds = append(ds, receive(t, r))
			}
			var all sync.WaitGroup
			release := hold(t, s.writer, db)
			for i, d := range ds {
				tx := begin(t, d)
				onCommit(t, tx, executing(fmt.Sprint(i), statement))
				all.Go(func() {
					if err := tx.Complete(t.Context(), nil); err != nil {
						t.Errorf("transaction %d: %v", i, err)
					}
				})
			}
			release(n)
			all.Wait()
			execute(t, db, `insert into charges values ('another process')`)
			send(t, conn, to("shipping", "another message"))
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
			if n := count(t, db, `select count(*) from charges`); n != 7 {
				t.Errorf("%d rows, want 7", n)
			}
			if n := strings.Count(log.String(), "a function of OnCommit leaves"); n != 1 || !strings.Contains(log.String(), ".executing") {
				t.Errorf("%d warnings:\n%s", n, &log)
			}
		})
	}
}

// A function that leaves nothing keeps the connection.
func TestAFunctionThatLeavesNothingKeepsItsSession(t *testing.T) {
	s, handle := storing(t)
	first := s.writer.conn
	if _, err := handle(`create temp table batch (n int)`, `insert into charges values ('a', null)`, `drop table batch`); err != nil {
		t.Fatal(err)
	}
	if _, err := handle(`insert into nothing values (1)`); err == nil {
		t.Fatal("no error")
	}
	if s.writer.conn != first {
		t.Error("the connection was replaced")
	}
}
