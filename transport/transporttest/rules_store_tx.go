package transporttest

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/transport"
)

var storeTxRules = []rule{
	newRule("store-tx-commit", storeTxCommit,
		"Complete of a transaction of BeginStore records the key and sends the operations of the entry, then those of "+
			"Complete. A later Rollback does nothing.", storing),
	newRule("store-tx-rollback", storeTxRollback,
		"Rollback of a transaction of BeginStore records and sends nothing. A second Rollback does nothing, and Complete "+
			"fails.", storing),
	newRule("store-tx-refused", storeTxRefused,
		"A transaction of BeginStore with a refused operation commits nothing. The DispatchError counts the operations of "+
			"the entry first.", storing),
	newRule("store-tx-handled", storeTxHandled,
		"If the id is in the inbox already, BeginStore or Complete fails with ErrAlreadyHandled and sends "+
			"nothing.", storing),
	newRule("store-tx-rival", storeTxRival,
		"If Store and a transaction with the same key run concurrently, one succeeds and the other fails with "+
			"ErrAlreadyHandled. If the transaction is rolled back, Store succeeds.", storing),
	newRule("store-tx-writes", storeTxWrites,
		"A handler's writes are committed together with the key and the operations. They are rolled back if an operation "+
			"is refused, if the id is in the inbox already, and by Rollback.", storing, writing),
	newRule("store-tx-closed", storeTxClosed,
		"A transaction of BeginStore that is open when its connection closes commits nothing.", storing),
	newRule("store-tx-outage", storeTxOutage,
		"Outage reports false for nil, for errors that the database did not return, and for those of a Complete that "+
			"failed because of its entry, during the transaction and afterwards.", storing, detecting),
}

func storeTxCommit(t *test) {
	o := t.outbox(t.open())
	tx := o.begin(o.entry(key(1), "m-1", "m-2"))
	t.must("Complete", tx.Complete(t.ctx(), toAll(o.queue, []string{"m-3", "m-4"})))
	t.do("Rollback", tx.Rollback)
	if tx.Complete(t.ctx(), nil) == nil {
		t.Error("a second Complete succeeded")
	}
	o.are(transport.Handled, key(1))
	t.must("a transaction", o.inTx(t.ctx(), o.entry(key(2)), nothingWritten))
	o.are(transport.Handled, key(2))
	t.inOrder(t.receiver(o.conn, o.queue), "m-1", "m-2", "m-3", "m-4")
	t.empty(o.conn, o.queue)
}

func storeTxRollback(t *test) {
	o := t.outbox(t.open())
	tx := o.begin(o.entry(key(1), "m"))
	t.do("Rollback", tx.Rollback)
	t.do("Rollback", tx.Rollback)
	if tx.Complete(t.ctx(), nil) == nil {
		t.Error("Complete after Rollback succeeded")
	}
	o.are(transport.NotHandled, key(1))
	t.empty(o.conn, o.queue)
	o.store(key(1))
}

func storeTxRefused(t *test) {
	o := t.outbox(t.open())
	missing := to(t.name("missing"), "m-3")
	for _, more := range [][]transport.Operation{{missing}, {missing, to(o.queue, "m-4")}} {
		err := o.inTx(t.ctx(), o.entry(key(1), "m-1", "m-2"), nothingWritten, more...)
		t.failedOps(err, 2+len(more), 2)
		t.fails("Complete", err, transport.ErrNoQueue)
	}
	o.are(transport.NotHandled, key(1))
	t.empty(o.conn, o.queue)
	t.must("a transaction", o.inTx(t.ctx(), o.entry(key(1), "m"), nothingWritten))
	t.holds(o.conn, o.queue, "m")
}

func storeTxHandled(t *test) {
	o := t.outbox(t.open())
	o.store(key(1))
	for range 2 {
		err := o.inTx(t.ctx(), o.entry(key(1), "m-1"), nothingWritten, to(o.queue, "m-2"))
		t.fails("a transaction", err, transport.ErrAlreadyHandled)
	}
	t.empty(o.conn, o.queue)
}

func storeTxRival(t *test) {
	o := t.outbox(t.open())
	rival := o.over(t.open())
	tx := o.begin(o.entry(key(1), "m"))
	store := calling(func() error { return rival.Store(t.ctx(), rival.entry(key(1), "m")) })
	errs := []error{tx.Complete(t.ctx(), nil), await(t, "Store returns", store)}
	if errs[0] == nil {
		errs[0], errs[1] = errs[1], errs[0]
	}
	t.ok("the first of Store and Complete", errs[1])
	t.fails("the other", errs[0], transport.ErrAlreadyHandled)
	tx = o.begin(o.entry(key(2), "rolled back"))
	store = calling(func() error { return rival.Store(t.ctx(), rival.entry(key(2), "m-2")) })
	t.do("Rollback", tx.Rollback)
	t.must("Store", await(t, "Store returns", store))
	t.holds(o.conn, o.queue, "m", "m-2")
}

func storeTxWrites(t *test) {
	o := t.outbox(t.open())
	o.store(key(0))
	refused := o.entry(key(1), "refused")
	refused.Ops[0].Queue = t.name("missing")
	for _, attempt := range []struct {
		entry transport.OutboxEntry
		want  error
	}{
		{o.entry(key(0), "duplicate"), transport.ErrAlreadyHandled},
		{refused, transport.ErrNoQueue},
		{o.entry(key(1), "m"), nil},
		{o.entry(key(1), "duplicate"), transport.ErrAlreadyHandled},
	} {
		committed := func() bool { return false }
		err := o.inTx(t.ctx(), attempt.entry, func(tx transport.Tx) {
			committed = t.harness.Write(t.TB, t.tr, transport.NewHandlerTx(tx))
		})
		t.fails("a transaction", err, attempt.want)
		if is := committed(); is != (attempt.want == nil) {
			t.Errorf("that the transaction's write is committed is %v, after the error %v", is, err)
		}
	}
	tx := o.begin(o.entry(key(2), "rolled back"))
	committed := t.harness.Write(t.TB, t.tr, transport.NewHandlerTx(tx))
	t.do("Rollback", tx.Rollback)
	if committed() {
		t.Error("the write is committed after Rollback")
	}
	t.holds(o.conn, o.queue, "m")
}

func storeTxClosed(t *test) {
	o := t.outbox(t.open())
	tx := o.begin(o.entry(key(1), "m"))
	t.close(o.conn)
	if tx.Complete(t.ctx(), nil) == nil {
		t.Error("Complete on a closed connection succeeded")
	}
	t.do("Rollback", tx.Rollback)
	o = o.over(t.open())
	o.are(transport.NotHandled, key(1))
	t.empty(o.conn, o.queue)
}

func storeTxOutage(t *test) {
	o := t.outbox(t.open())
	o.store(key(0))
	errs := []error{nil, errors.New("a handler's own"), fmt.Errorf("find: %w", context.DeadlineExceeded), transport.ErrNoQueue}
	for _, e := range []transport.OutboxEntry{o.entry(key(0), "duplicate"), {Ops: toAll(t.name("missing"), []string{"refused"})}} {
		err := o.inTx(t.ctx(), e, nothingWritten)
		if err == nil {
			t.Error("the transaction of an entry that cannot be stored succeeded")
		}
		errs = append(errs, err)
	}
	tx := o.begin(o.entry(key(1), "m"))
	d := as[transport.OutageDetector](t, tx)
	for _, when := range []string{"in a transaction", "after Complete"} {
		for _, err := range errs {
			if d.Outage(t.ctx(), err) {
				t.Errorf("%s Outage reports true for the error %v", when, err)
			}
		}
		if when == "in a transaction" {
			t.must("Complete", tx.Complete(t.ctx(), nil))
		}
	}
	t.holds(o.conn, o.queue, "m")
}
