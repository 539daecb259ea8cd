package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

const inbox = "billing.handled"

// outbox opens a file with an inbox, the queues "billing" and "shipping", and a table of the
// user's.
func outbox(t *testing.T) (*outboxConn, *sql.DB) {
	t.Helper()
	path := temp(t)
	c := openOutbox(t, path)
	db := mine(t, path)
	execute(t, db, `create table charges (id text primary key)`)
	return c, db
}

// openOutbox opens a file as a further process does.
func openOutbox(t *testing.T, path string) *outboxConn {
	t.Helper()
	conn := dial(t, Transport{Path: path}, queue, "shipping")
	if err := conn.(transport.Installer).Install(t.Context(), transport.Plan{Inboxes: []string{inbox}}); err != nil {
		t.Fatal(err)
	}
	return &outboxConn{conn.(transport.OutboxStore), conn, path, t}
}

type outboxConn struct {
	transport.OutboxStore
	conn transport.Conn
	path string
	t    *testing.T
}

func entry(n byte, ops ...transport.Operation) transport.OutboxEntry {
	return transport.OutboxEntry{Inbox: inbox, Key: &transport.HandledKey{ID: [16]byte{15: n}, Sum: 0xfffffff0 + uint32(n)}, Ops: ops}
}

func (c *outboxConn) begin(e transport.OutboxEntry) transport.Tx {
	c.t.Helper()
	tx, err := c.BeginStore(c.t.Context(), e)
	if err != nil {
		c.t.Fatal(err)
	}
	return tx
}

// state returns the state of the key of e.
func (c *outboxConn) state(e transport.OutboxEntry) transport.HandledState {
	c.t.Helper()
	states, err := c.FindHandled(c.t.Context(), inbox, []transport.HandledKey{*e.Key})
	if err != nil {
		c.t.Fatal(err)
	}
	return states[0]
}

func sentTo(t *testing.T, db *sql.DB, queue string) int {
	t.Helper()
	return count(t, db, `select count(*) from holdfast_messages where queue = ?`, queue)
}

func TestOnCommitWritesTogetherWithAnOutboxEntry(t *testing.T) {
	c, db := outbox(t)
	e := entry(1, to("shipping", "of the entry"))
	tx := c.begin(e)
	onCommit(t, tx, charge("a"))
	if err := tx.Complete(t.Context(), []transport.Operation{to("shipping", "more")}); err != nil {
		t.Fatal(err)
	}
	if n := count(t, db, `select count(*) from charges`); n != 1 || sentTo(t, db, "shipping") != 2 || c.state(e) != transport.Handled {
		t.Errorf("%d rows, %d messages, key %v", n, sentTo(t, db, "shipping"), c.state(e))
	}

	again := c.begin(e)
	onCommit(t, again, charge("b"))
	if err := again.Complete(t.Context(), nil); !errors.Is(err, transport.ErrAlreadyHandled) {
		t.Errorf("error %v, want ErrAlreadyHandled", err)
	}
	if n := count(t, db, `select count(*) from charges`); n != 1 || sentTo(t, db, "shipping") != 2 {
		t.Errorf("%d rows and %d messages after a key that is known", n, sentTo(t, db, "shipping"))
	}

	none := c.begin(transport.OutboxEntry{Ops: []transport.Operation{to("shipping", "without a key")}})
	onCommit(t, none, charge("c"))
	if err := none.Complete(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if n := count(t, db, `select count(*) from charges`); n != 2 || sentTo(t, db, "shipping") != 3 {
		t.Errorf("%d rows and %d messages after an entry without a key", n, sentTo(t, db, "shipping"))
	}
}

func TestAnEntryThatFailsRecordsNoKey(t *testing.T) {
	c, db := outbox(t)
	boom := errors.New("no credit")
	failing := c.begin(entry(1, to("shipping", "x")))
	onCommit(t, failing, charge("a"))
	onCommit(t, failing, func(context.Context, *sql.Tx) error { return boom })
	if err := failing.Complete(t.Context(), nil); !errors.Is(err, boom) {
		t.Errorf("error %v, want that of the function", err)
	}
	refused := c.begin(entry(2, to("shipping", "x")))
	onCommit(t, refused, charge("b"))
	err := refused.Complete(t.Context(), []transport.Operation{to("nowhere", "y")})
	var failed *transport.DispatchError
	if !errors.As(err, &failed) || len(failed.Ops) != 1 || failed.Ops[0].Index != 1 || !errors.Is(err, transport.ErrNoQueue) {
		t.Errorf("error %v, want ErrNoQueue for operation 1", err)
	}
	rolledBack := c.begin(entry(3, to("shipping", "x")))
	onCommit(t, rolledBack, charge("c"))
	if err := rolledBack.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
	if n := count(t, db, `select count(*) from charges`); n != 0 || sentTo(t, db, "shipping") != 0 {
		t.Errorf("%d rows were written and %d messages sent", n, sentTo(t, db, "shipping"))
	}
	for n := range byte(3) {
		if got := c.state(entry(n + 1)); got != transport.NotHandled {
			t.Errorf("key %d is %v, though its entry failed", n+1, got)
		}
	}
}

func TestAnEntryLeavesOutASubscriberThatIsGone(t *testing.T) {
	c, db := outbox(t)
	if err := c.conn.(transport.Subscriber).Subscribe(t.Context(), "shipping", []string{"Shop.Charged"}); err != nil {
		t.Fatal(err)
	}
	event := func(id string) transport.Operation {
		return transport.Operation{Types: []string{"Shop.Charged"}, Message: message(id)}
	}
	if err := c.Store(t.Context(), entry(1, event("a"))); err != nil {
		t.Fatal(err)
	}
	other := openOutbox(t, c.path)
	if err := other.conn.(transport.Remover).Remove(t.Context(), "shipping"); err != nil {
		t.Fatal(err)
	}
	if err := c.Store(t.Context(), entry(2, event("b"), to(queue, "c"))); err != nil {
		t.Error("stored at once:", err)
	}
	if n := sentTo(t, db, queue); n != 1 {
		t.Errorf("%d messages were sent, want 1", n)
	}
}

func TestAKnownKeySkipsItsEntryAlone(t *testing.T) {
	c, db := outbox(t)
	if err := c.Store(t.Context(), entry(3)); err != nil {
		t.Fatal(err)
	}
	other := openOutbox(t, c.path)
	var fresh, known atomic.Int32
	var storing sync.WaitGroup
	for i := range 20 {
		conn := []transport.OutboxStore{c, other}[i%2]
		storing.Go(func() {
			e := entry(byte(i/2), to("shipping", fmt.Sprint(i)))
			err := conn.Store(t.Context(), e)
			if i%4 < 2 {
				err = storeInTx(t, conn, e, err)
			}
			switch {
			case err == nil:
				fresh.Add(1)
			case errors.Is(err, transport.ErrAlreadyHandled):
				known.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	storing.Wait()
	if fresh.Load() != 9 || known.Load() != 11 || sentTo(t, db, "shipping") != 9 {
		t.Errorf("%d entries were stored, %d were known, %d messages were sent", fresh.Load(), known.Load(), sentTo(t, db, "shipping"))
	}
}

// storeInTx stores an entry again, whose first attempt had an error: it returns that error, or one
// if it is stored twice.
func storeInTx(t *testing.T, conn transport.OutboxStore, e transport.OutboxEntry, first error) error {
	tx, err := conn.BeginStore(t.Context(), e)
	if err != nil {
		return err
	}
	if err := tx.Complete(t.Context(), nil); !errors.Is(err, transport.ErrAlreadyHandled) {
		return fmt.Errorf("stored again: %w", err)
	}
	return first
}

func TestACompletionRecordsItsKey(t *testing.T) {
	c, db := outbox(t)
	send(t, c.conn, to(queue, "a"), to(queue, "b"))
	r := receiver(t, c.conn, queue)
	e := entry(1)
	for i, want := range []error{nil, transport.ErrAlreadyHandled} {
		d := receive(t, r)
		d.(transport.HandledRecorder).RecordHandled(inbox, e.Key)
		tx := begin(t, d)
		onCommit(t, tx, charge(fmt.Sprint(i)))
		if err := tx.Complete(t.Context(), []transport.Operation{to("shipping", "x")}); !errors.Is(err, want) {
			t.Errorf("error %v of completion %d, want %v", err, i+1, want)
		}
		if want != nil {
			d.(transport.HandledRecorder).RecordHandled(inbox, nil)
			if err := d.Complete(t.Context()); err != nil {
				t.Error("the duplicate cannot be removed:", err)
			}
		}
	}
	if n := count(t, db, `select count(*) from charges`); n != 1 || sentTo(t, db, "shipping") != 1 || sentTo(t, db, queue) != 0 {
		t.Errorf("%d rows, %d messages sent, %d left", n, sentTo(t, db, "shipping"), sentTo(t, db, queue))
	}
}

func TestAFileOfTheVersionBeforeGetsInboxes(t *testing.T) {
	path := temp(t)
	if err := dial(t, Transport{Path: path}, queue).Close(); err != nil {
		t.Fatal(err)
	}
	db := mine(t, path)
	execute(t, db, `drop table holdfast_handled; drop table holdfast_inboxes`)
	c := openOutbox(t, path)
	if err := c.Store(t.Context(), entry(1)); err != nil {
		t.Fatal(err)
	}
	if v := count(t, db, `select version from holdfast_schema`); v != 1 {
		t.Errorf("version %d: programs of version 1 cannot open the file any more", v)
	}
}

func TestAClockThatWasAheadDelaysNoRemoval(t *testing.T) {
	c, db := outbox(t)
	execute(t, db, `update holdfast_inboxes set forgotten_at = ?`, micros(time.Now().Add(time.Hour)))
	s, err := open(t.Context(), c.path, false)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, want := range []bool{true, false} {
		if due, err := s.DueForForgetting(t.Context(), inbox, time.Minute); err != nil || due != want {
			t.Errorf("due is %t (%v), want %t", due, err, want)
		}
	}
}

func TestOldIdsAreRemovedFromAnInbox(t *testing.T) {
	path := temp(t)
	synctest.Test(t, func(t *testing.T) {
		conn, err := (&Transport{Path: path}).Open(t.Context(), transport.Env{Remember: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		plan := transport.Plan{Inboxes: []string{inbox, "other.handled"}}
		if err := conn.(transport.Installer).Install(t.Context(), plan); err != nil {
			t.Fatal(err)
		}
		c := &outboxConn{conn.(transport.OutboxStore), conn, path, t}
		other := entry(1)
		other.Inbox = "other.handled"
		for _, e := range []transport.OutboxEntry{entry(1), other} {
			if err := c.Store(t.Context(), e); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(30 * time.Minute)
		if err := c.Store(t.Context(), entry(2)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(32 * time.Minute)
		if old, young := c.state(entry(1)), c.state(entry(2)); old != transport.NotHandled || young != transport.Handled {
			t.Errorf("a key of 62 minutes is %v, one of 32 minutes %v", old, young)
		}
		for _, name := range plan.Inboxes {
			want := map[string]int64{inbox: 1}[name]
			stats, err := conn.(transport.InboxInspector).InspectInbox(t.Context(), name)
			if err != nil || stats.Rows != want || stats.Oldest > 33*time.Minute {
				t.Errorf("%+v (%v), want %d rows", stats, err, want)
			}
		}
	})
}
