package transporttest

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast/transport"
)

var joinRules = []rule{
	newRule("join-commit", joinCommit,
		"Messages that are sent in a user's transaction are received after its commit and not before, unchanged and in "+
			"order.", joining, beginning),
	newRule("join-rollback", joinRollback,
		"If a user's transaction is rolled back, the messages that were sent in it are never received.", joining, beginning),
	newRule("join-refused", joinRefused,
		"DispatchIn with a refused operation sends nothing and names the operation in a DispatchError. The transaction can "+
			"continue and be committed.", joining, beginning),
	newRule("join-published", joinPublished,
		"A message that is published in a user's transaction reaches every subscriber after the commit, and no subscriber "+
			"without it.", joining, beginning, publishing),
	newRule("join-delayed", joinDelayed,
		"A delayed message that is sent in a user's transaction arrives when it is due, and not "+
			"earlier.", joining, beginning, delays),
	newRule("join-receipt", joinReceipt,
		"The receipt of a delayed message that is sent in a user's transaction cancels the message after the "+
			"commit.", joining, beginning, delays, cancelling),
	newRule("join-wrong", joinWrong,
		"DispatchIn fails for a value that is not a transaction, also if the published type has no subscribers, and sends "+
			"nothing.", joining),
	newRule("join-many", joinMany,
		"If many users' transactions run concurrently, each message of a committed transaction is received once, and no "+
			"other message is received.", joining, beginning),
	newRule("join-closed", joinClosed,
		"After Close, DispatchIn fails with ErrClosed, and the transaction can continue.", joining, beginning),
}

// usersTx begins a user's transaction, which ends with the rule.
func (t *test) usersTx() UserTx {
	t.Helper()
	tx := t.harness.Begin(t.TB, t.tr)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // after a Commit it does nothing, or fails
	return tx
}

func (t *test) dispatchIn(c transport.Conn, tx UserTx, ops ...transport.Operation) []transport.Receipt {
	t.Helper()
	receipts, err := as[transport.TxDispatcher](t, c).DispatchIn(t.ctx(), tx.Tx, ops)
	t.must("DispatchIn", err)
	return receipts
}

// notBefore receives n messages while event happens, and checks that none arrives for a while
// before it. One Receive spans the event: a Receive that is cancelled may have claimed messages,
// which then come back later and out of order.
func (t *test) notBefore(event func(), r transport.Receiver, n int) []transport.Delivery {
	t.Helper()
	type result struct {
		ds  []transport.Delivery
		err error
	}
	received := make(chan result, 1)
	ctx := t.ctx()
	go func() {
		ds, err := gather(ctx, r, n)
		received <- result{ds, err}
	}()
	select {
	case res := <-received:
		t.Fatalf("received %s before the transaction was committed: %v", idsOf(res.ds), res.err)
	case <-t.shortly(shortDelay).Done():
	}
	event()
	res := <-received
	if res.err != nil {
		t.Fatalf("Receive, after %d of %d messages: %v", len(res.ds), n, res.err)
	}
	return res.ds
}

func joinCommit(t *test) {
	c, q, r := t.receiverOf(t.open())
	tx := t.usersTx()
	want := message("m-2")
	t.dispatchIn(c, tx, to(q, "m-1"), transport.Operation{Message: want, Queue: q})
	t.dispatchIn(c, tx)
	t.dispatchIn(c, tx, to(q, "m-3"))
	ds := t.notBefore(func() { t.do("Commit", tx.Commit) }, r, 3)
	t.complete(ds...)
	// A driver may find the rows of a statement late that was made long before the commit, those of
	// an earlier call after those of a later one.
	if ds[0].Message().ID == "m-3" {
		ds = append(ds[1:], ds[0])
	}
	t.sameOrder(idsOf(ds), []string{"m-1", "m-2", "m-3"})
	t.sameMessage(ds[1].Message(), want)
	t.empty(c, q)
}

func joinRollback(t *test) {
	c, q := t.queueOf(t.open())
	tx := t.usersTx()
	t.dispatchIn(c, tx, toAll(q, ids("m", 3))...)
	t.do("Rollback", tx.Rollback)
	t.empty(c, q)
}

func joinRefused(t *test) {
	c, q := t.queueOf(t.open())
	tx := t.usersTx()
	t.dispatchIn(c, tx, to(q, "before"))
	ops := []transport.Operation{to(q, "m-1"), to(t.name("missing"), "m-2"), to(q, "m-3")}
	_, err := as[transport.TxDispatcher](t, c).DispatchIn(t.ctx(), tx.Tx, ops)
	t.failedOps(err, 3, 1)
	t.fails("DispatchIn", err, transport.ErrNoQueue)
	t.dispatchIn(c, tx, to(q, "after"))
	t.do("Commit", tx.Commit)
	t.holds(c, q, "before", "after")
}

func joinPublished(t *test) {
	c := t.open()
	kind, base := t.kind("Ordered"), t.kind("Base")
	one, two := t.subscriber(c, "one", kind), t.subscriber(c, "two", kind, base)
	none := t.subscriber(c, "none", t.kind("Other"))
	tx := t.usersTx()
	t.dispatchIn(c, tx, publish("m", kind, base), publish("unknown", t.kind("Unknown")))
	t.do("Commit", tx.Commit)
	tx = t.usersTx()
	t.dispatchIn(c, tx, publish("rolled back", kind, base))
	t.do("Rollback", tx.Rollback)
	t.holds(c, one, "m")
	t.holds(c, two, "m")
	t.empty(c, none)
}

func joinDelayed(t *test) {
	c, q, r := t.receiverOf(t.open())
	tx := t.usersTx()
	op, due := delayed(to(q, "m"))
	t.dispatchIn(c, tx, op)
	t.do("Commit", tx.Commit)
	t.arrives(r, due)
	t.empty(c, q)
}

func joinReceipt(t *test) {
	c, q := t.queueOf(t.open())
	t.cancels(c, q, func(ops []transport.Operation) []transport.Receipt {
		tx := t.usersTx()
		receipts := t.dispatchIn(c, tx, ops...)
		t.do("Commit", tx.Commit)
		return receipts
	})
}

func joinWrong(t *test) {
	c, q := t.queueOf(t.open())
	for _, tx := range []any{nil, struct{}{}, "begin", c} {
		for _, op := range []transport.Operation{to(q, "m"), publish("m", t.kind("Unknown"))} {
			if op.Queue == "" && !is[transport.Subscriber](c) {
				continue
			}
			_, err := as[transport.TxDispatcher](t, c).DispatchIn(t.ctx(), tx, []transport.Operation{op})
			if err == nil {
				t.Errorf("DispatchIn in a transaction that is a %T succeeded", tx)
			}
		}
	}
	t.empty(c, q)
}

func joinMany(t *test) {
	c, q := t.queueOf(t.open())
	joiner := as[transport.TxDispatcher](t, c)
	var want []string
	var wg sync.WaitGroup
	for some := range slices.Chunk(ids("m", 32), 4) {
		want = append(want, some[0], some[2])
		wg.Go(func() {
			for i, id := range some {
				tx := t.harness.Begin(t.TB, t.tr)
				_, err := joiner.DispatchIn(t.ctx(), tx.Tx, []transport.Operation{to(q, id)})
				end := tx.Rollback
				if i%2 == 0 {
					end = tx.Commit
				}
				t.ok("a transaction", errors.Join(err, end(t.ctx())))
			}
		})
	}
	wg.Wait()
	t.holds(c, q, want...)
}

func joinClosed(t *test) {
	c, q := t.queueOf(t.open())
	tx := t.usersTx()
	t.dispatchIn(c, tx, to(q, "before"))
	t.close(c)
	_, err := as[transport.TxDispatcher](t, c).DispatchIn(t.ctx(), tx.Tx, []transport.Operation{to(q, "after")})
	t.fails("DispatchIn", err, transport.ErrClosed)
	t.do("Commit", tx.Commit)
	t.holds(t.open(), q, "before")
}
