package postgres

import (
	"errors"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/transport"
)

// locked has another session hold what a statement locks, until the returned function is called.
func (w *world) locked(statement string) (release func()) {
	w.t.Helper()
	lock, err := w.connected().Begin(w.t.Context())
	ok(w.t, err)
	_, err = lock.Exec(w.t.Context(), statement)
	ok(w.t, err)
	return func() { ok(w.t, lock.Rollback(w.t.Context())) }
}

// wantUsable fails unless queue "out" takes messages, and no queue is said to take none.
func wantUsable(t *testing.T, c transport.Conn) {
	t.Helper()
	if _, err := c.Dispatch(t.Context(), []transport.Operation{to("out", msg("other"))}); err != nil {
		t.Errorf("the queue takes no other message: %v", err)
	}
	if all := c.(transport.Warner).Warnings(); len(all) > 0 {
		t.Errorf("warnings %q", all)
	}
}

// A handler's transaction whose commit waits for a row, as for a deferred foreign key, says nothing
// about the queue that the handler sends to.
func TestAHandlersOwnLockBlamesNoQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in", "out")
	w.exec(`CREATE TABLE %sstock (id int PRIMARY KEY)`)
	w.exec(`INSERT INTO %sstock VALUES (1)`)
	w.exec(`CREATE TABLE %sbiz (id int, stock int REFERENCES ` + w.schema + `.stock DEFERRABLE INITIALLY DEFERRED)`)
	c := w.open()
	send(t, c, to("in", msg("1")))
	d := receive(t, receiver(t, c, "in"), 1)[0]
	release := w.locked(`SELECT FROM ` + w.schema + `.stock FOR UPDATE`)
	work := func() (transport.Tx, error) {
		tx, user := begun(t, d)
		_, err := user.Exec(t.Context(), `INSERT INTO `+w.schema+`.biz VALUES (1, 1)`)
		ok(t, err)
		return tx, tx.Complete(t.Context(), []transport.Operation{to("out", msg("2"))})
	}
	tx, err := work()
	if busy, is := errors.AsType[*transport.BusyError](err); is || err == nil {
		t.Errorf("error %v blames %+v", err, busy)
	}
	if !tx.(transport.ConflictDetector).Conflict(err) {
		t.Errorf("%v does not have the transaction repeated", err)
	}
	wantUsable(t, c)
	release()
	_, err = work()
	ok(t, err)
}

// A message whose row another session has locked fails alone: not the messages that are completed
// with it, and not the queue that they all send to.
func TestALockedMessageBlamesNoQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in", "out")
	c := w.open()
	const n = 20
	for range n {
		send(t, c, to("in", msg("x")))
	}
	ds := receive(t, receiver(t, c, "in"), n)
	release := w.locked(`SELECT FROM ` + quote(w.schema, "in") + ` WHERE seq = ` + ds[3].Message().NativeID + ` FOR UPDATE`)
	errs := make([]error, n)
	var all sync.WaitGroup
	for i, d := range ds {
		all.Go(func() { errs[i] = completeWith(t, d, to("out", msg("y"))) })
	}
	all.Wait()
	for i, err := range errs {
		busy, is := errors.AsType[*transport.BusyError](err)
		switch {
		case i != 3 && err != nil:
			t.Errorf("message %d: %v", i, err)
		case i == 3 && (!is || busy.Queue != "in"):
			t.Errorf("the locked message: %v", err)
		}
	}
	wantUsable(t, c)
	release()
	ok(t, completeWith(t, ds[3], to("out", msg("y"))))
}
