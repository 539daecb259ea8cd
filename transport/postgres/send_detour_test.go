package postgres

import (
	"errors"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// impede has a trigger of a queue's table execute statements.
func (w *world) impede(queue, statements string) {
	w.t.Helper()
	function := quote(w.schema, "impede "+queue)
	_, err := w.sql.Exec(w.t.Context(), `CREATE FUNCTION `+function+`() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN `+statements+` RETURN NEW; END $$;
CREATE TRIGGER impede BEFORE INSERT ON `+quote(w.schema, queue)+` FOR EACH ROW EXECUTE FUNCTION `+function+`()`)
	ok(w.t, err)
}

const full = `RAISE EXCEPTION 'could not extend file: no space left' USING ERRCODE = '53100';`

// The engine diverts the units of the statement that a [tablequeue.StatementError] names.
func TestAnErrorNamesItsStatement(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in", "a", "b", "full")
	w.impede("full", full)
	row := func(queue string) tablequeue.Row {
		return tablequeue.Row{Queue: queue, ID: "x", Headers: []byte("{}")}
	}
	sends := func(queues ...string) *tablequeue.Unit {
		u := &tablequeue.Unit{Verb: tablequeue.Send}
		for _, q := range queues {
			u.Rows = append(u.Rows, row(q))
		}
		return u
	}
	first := w.store()
	ok(t, first.Flush(t.Context(), []*tablequeue.Unit{sends("in", "in", "in")}))
	claimed, _, err := first.Claim(t.Context(), claimOf("in", 7, 3), nil)
	ok(t, err)
	completes := func(i int, queues ...string) *tablequeue.Unit {
		u := sends(queues...)
		u.Verb, u.Queue, u.Lease = tablequeue.Delete, "in", tablequeue.Lease{Seq: claimed[i].Seq, ID: 7}
		return u
	}
	for name, s := range map[string]*store{"prepared": w.store(), "pooled": w.pooled(), "on a caller's pool": w.onPool()} {
		for range 2 { // the first prepares the statements
			send, complete := sends("a", "full"), completes(1, "b", "full")
			for _, units := range [][]*tablequeue.Unit{{completes(0, "a"), sends("b"), send}, {sends("a"), completes(0, "b"), complete, completes(2, "a")}} {
				err := s.Flush(t.Context(), units)
				failed, known := errors.AsType[*tablequeue.StatementError](err)
				if !known {
					t.Fatalf("%s: %v names no statement", name, err)
				}
				isSend := units[2] == send
				if isSend && failed.Queue != "full" || !isSend && !slices.Equal(failed.Units, []*tablequeue.Unit{complete}) {
					t.Errorf("%s: the error names %d units and queue %q", name, len(failed.Units), failed.Queue)
				}
				if class := s.Classify(failed); class != tablequeue.Impeded {
					t.Errorf("%s: class %v, want Impeded", name, class)
				}
			}
		}
		if queue := s.FailingQueue(t.Context(), []*tablequeue.Unit{completes(0, "a", "full"), completes(1, "b")}); queue != "full" {
			t.Errorf("%s: %q is named as the failing queue, want full", name, queue)
		}
		if queue := s.FailingQueue(t.Context(), []*tablequeue.Unit{completes(0, "a", "b")}); queue != "" {
			t.Errorf("%s: %q is named as the failing queue, and does not fail", name, queue)
		}
	}
	if n := w.rows("a") + w.rows("b"); n != 0 {
		t.Errorf("%d rows were inserted", n)
	}
}

// rows returns the number of rows of a queue.
func (w *world) rows(queue string) (n int) {
	w.t.Helper()
	ok(w.t, w.sql.QueryRow(w.t.Context(), `SELECT count(*) FROM `+quote(w.schema, queue)).Scan(&n))
	return n
}

// A destination whose disk is full, or whose trigger waits for a row, fails its own messages only.
func TestAnImpededTableFailsOnlyItsOwnMessages(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in", "out", "full", "slow")
	w.impede("full", full)
	_, err := w.sql.Exec(t.Context(), `CREATE TABLE `+quote(w.schema, "stock")+` AS SELECT 1 AS n`)
	ok(t, err)
	w.impede("slow", `PERFORM 1 FROM `+quote(w.schema, "stock")+` FOR UPDATE;`)
	c := w.open()
	other, err := pgx.Connect(t.Context(), w.url)
	ok(t, err)
	t.Cleanup(func() { closeSoon(other) })
	lock, err := other.Begin(t.Context())
	ok(t, err)
	_, err = lock.Exec(t.Context(), `UPDATE `+quote(w.schema, "stock")+` SET n = 2`)
	ok(t, err)

	const n = 60
	var all []transport.Operation
	for range n {
		all = append(all, to("in", msg("x")))
	}
	send(t, c, all...)
	ds := receive(t, receiver(t, c, "in"), n)
	errs := make(chan error, n)
	destinations := []string{"full", "slow", "out", "out", "out"}
	for i, d := range ds {
		go func() {
			errs <- wantBusy(destinations[i%len(destinations)], completeWith(t, d, to("out", msg("y")), to(destinations[i%len(destinations)], msg("z"))))
		}()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if got := w.rows("out"); got != 2*n*3/5 {
		t.Errorf("%d messages arrived at the queue that takes messages, want %d", got, 2*n*3/5)
	}
	ok(t, lock.Commit(t.Context()))
	eventually(t, "the queue takes messages after the lock", func() string {
		if _, err := c.Dispatch(t.Context(), []transport.Operation{to("slow", msg("z"))}); err != nil {
			return err.Error()
		}
		return ""
	})
}

// wantBusy returns an error unless err says that queue takes no messages, or is nil for the queue
// out.
func wantBusy(queue string, err error) error {
	busy, is := errors.AsType[*transport.BusyError](err)
	switch {
	case queue == "out":
		return err
	case !is || busy.Queue != queue:
		return errors.Join(errors.New("queue "+queue+" is not named"), err)
	}
	return nil
}
