package postgres

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

func (w *world) installTimers(c transport.Conn, queue string) {
	w.t.Helper()
	plan := transport.Plan{Queues: []transport.Queue{{Name: queue, Timers: true}}}
	ok(w.t, c.(transport.Installer).Install(w.t.Context(), plan))
}

func timer(queue, name, id string) transport.Operation {
	op := transport.Operation{Queue: queue, Name: name, After: time.Hour}
	if id != "" {
		op.Message = &transport.Message{ID: id, Body: []byte(id)}
	}
	return op
}

// A program of the version before works on a table with the column, and one of this version on a
// table without it.
func TestTimersAreAddedToATableThatIsInUse(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "q")
	before, now := w.open(), w.open()
	send := func(c transport.Conn, ops ...transport.Operation) error {
		_, err := c.Dispatch(t.Context(), ops)
		return err
	}
	plain := func(id string) transport.Operation {
		return transport.Operation{Queue: "q", Message: &transport.Message{ID: id}}
	}
	ok(t, send(before, plain("a")))
	if err := send(now, plain("b"), timer("q", "n", "m")); !errors.Is(err, tablequeue.ErrNoTimers) {
		t.Errorf("error %v of a name without the column", err)
	}
	verify := func() (found []transport.Finding) {
		t.Helper()
		plan := transport.Plan{Queues: []transport.Queue{{Name: "q", Timers: true}}}
		found, err := now.(transport.Verifier).Verify(t.Context(), plan)
		ok(t, err)
		return found
	}
	if found := verify(); len(found) != 1 || found[0].State != transport.Differs {
		t.Errorf("findings %+v without the column", found)
	}
	r := receiver(t, before, "q")
	d := receive(t, r, 1)[0]
	for range 2 {
		w.installTimers(now, "q")
	}
	if found := verify(); len(found) > 0 {
		t.Errorf("findings %+v", found)
	}
	ok(t, d.Complete(t.Context()))
	ok(t, send(before, plain("c")))
	ok(t, send(now, timer("q", "n", "m")))
	ok(t, send(now, timer("q", "n", "m")))
	for _, d := range receive(t, r, 2) {
		ok(t, d.Complete(t.Context()))
	}
	if n := w.count("q"); n != 1 {
		t.Errorf("%d rows are left, want the named one", n)
	}
}

// Two transactions of users set one name: the second waits for the first, and replaces its row.
func TestUsersTransactionsSetOneName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.open()
	w.installTimers(c, "q")
	in := func(tx pgx.Tx, id string) error {
		_, err := c.(transport.TxDispatcher).DispatchIn(t.Context(), tx, []transport.Operation{timer("q", "n", id), timer("q", "other", "")})
		return err
	}
	begin := func() pgx.Tx {
		conn, err := pgx.Connect(t.Context(), testURL())
		ok(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		tx, err := conn.Begin(t.Context())
		ok(t, err)
		return tx
	}
	for range 3 {
		first, second := begin(), begin()
		ok(t, in(first, "first"))
		done := make(chan error, 1)
		go func() { done <- in(second, "second") }()
		ok(t, first.Commit(t.Context()))
		ok(t, <-done)
		ok(t, second.Commit(t.Context()))
		var n int
		var body string
		ok(t, w.sql.QueryRow(t.Context(), fmt.Sprintf(
			`SELECT count(*), max(convert_from(body, 'UTF8')) FROM %s WHERE expires IS NULL`, quote(w.schema, "q"))).Scan(&n, &body))
		if n != 1 || body != "second" {
			t.Errorf("%d rows, the last is %q", n, body)
		}
	}
}
