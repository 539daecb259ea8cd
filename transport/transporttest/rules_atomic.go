package transporttest

import (
	"context"
	"fmt"
	"sync"

	"github.com/holdfast-go/holdfast/transport"
)

var atomicRules = []rule{
	newRule("atomic-crash", atomicCrash,
		"A crash after a copy is dispatched and before the original is completed loses neither: both exist, with one id."),
	newRule("atomic-both", atomicBoth,
		"CompleteWith completes the delivery and sends the operations in their order.", completing),
	newRule("atomic-published", atomicPublished,
		"CompleteWith also publishes messages, with delays if the driver offers delays.", completing, publishing),
	newRule("atomic-neither", atomicNeither,
		"CompleteWith with a refused operation sends nothing, names the operation in a DispatchError, and does not settle "+
			"the delivery.", completing),
	newRule("atomic-too-large", atomicTooLarge,
		"CompleteWith with a message that is too large sends nothing and does not settle the "+
			"delivery.", completing, boundBody),
	newRule("atomic-contended", atomicContended,
		"If many goroutines move messages by CompleteWith, some after a retry, each message arrives exactly "+
			"once.", completing),
	newRule("atomic-limits", atomicLimits, "Limits.Atomic is true if and only if deliveries are Transactors."),
	newRule("tx-commit", txCommit,
		"Complete of a transaction completes the delivery and sends the operations. A later Rollback does "+
			"nothing.", transacting),
	newRule("tx-rollback", txRollback,
		"Rollback neither settles the delivery nor sends anything, so the delivery can still be settled. A second Rollback "+
			"does nothing.", transacting),
	newRule("tx-refused", txRefused,
		"A transaction with a refused operation commits nothing and has ended. The delivery can still be "+
			"settled.", transacting),
	newRule("tx-closed", txClosed,
		"A transaction that is open when its connection closes commits nothing, and the message is delivered "+
			"again.", transacting),
}

func atomicCrash(t *test) {
	c, in, r := t.receiverOf(t.open(), "m")
	out := t.queue(c, "out")
	t.dispatch(c, transport.Operation{Message: t.one(r, "m").Message(), Queue: out})
	c = t.reopen(c)
	t.holds(c, out, "m")
	t.holds(c, in, "m")
}

func (t *test) completeWith(d transport.Delivery, ops ...transport.Operation) {
	t.Helper()
	t.do("CompleteWith", func(ctx context.Context) error { return completeWith(ctx, d, ops...) })
}

// completeWith calls CompleteWith.
func completeWith(ctx context.Context, d transport.Delivery, ops ...transport.Operation) error {
	whole, ok := d.(transport.Completer)
	if !ok {
		return fmt.Errorf("this delivery is no Completer, others are: %T", d)
	}
	return whole.CompleteWith(ctx, ops)
}

func atomicBoth(t *test) {
	c, in, r := t.receiverOf(t.open(), "m", "alone")
	out := t.queue(c, "out")
	want := message("m-2")
	t.completeWith(t.one(r, "m"), to(out, "m-1"), transport.Operation{Message: want, Queue: out}, to(out, "m-3"))
	t.completeWith(t.one(r, "alone"))
	ds := t.inOrder(t.receiver(c, out), "m-1", "m-2", "m-3")
	t.sameMessage(ds[1].Message(), want)
	t.empty(c, in)
	t.empty(c, out)
}

func atomicPublished(t *test) {
	c, in, r := t.receiverOf(t.open(), "m")
	kind := t.kind("Ordered")
	out := t.subscriber(c, "out", kind)
	delayed := to(out, "delayed")
	if c.Limits().MaxDelay > 0 {
		delayed.After = shortDelay
	}
	t.completeWith(t.one(r, "m"), delayed, publish("published", kind))
	t.holds(c, out, "published", "delayed")
	t.empty(c, in)
}

func atomicNeither(t *test) {
	c, in, r := t.receiverOf(t.open(), "m")
	out, d := t.queue(c, "out"), t.one(r, "m")
	err := completeWith(t.ctx(), d, to(out, "m-1"), to(t.name("missing"), "m-2"), to(out, "m-3"))
	t.failedOps(err, 3, 1)
	t.fails("CompleteWith", err, transport.ErrNoQueue)
	t.empty(c, out)
	t.do("Retry", d.Retry)
	t.completeWith(t.one(r, "m"), to(out, "m-4"))
	t.holds(c, out, "m-4")
	t.empty(c, in)
}

func atomicTooLarge(t *test) {
	c, in, r := t.receiverOf(t.open(), "m")
	out, d := t.queue(c, "out"), t.one(r, "m")
	large := to(out, "large")
	large.Message.Body = make([]byte, c.Limits().MaxBody+1)
	err := completeWith(t.ctx(), d, to(out, "m-1"), large)
	t.failedOps(err, 2, 1)
	t.fails("CompleteWith", err, transport.ErrTooLarge)
	t.empty(c, out)
	t.complete(d)
	t.empty(c, in)
}

func atomicContended(t *test) {
	want := ids("m", 80)
	c, in := t.queueOf(t.open(), want...)
	out := t.queue(c, "out")
	ctx, cancel := context.WithCancel(t.ctx())
	defer cancel()
	var left, wg sync.WaitGroup
	left.Add(len(want))
	move := func(d transport.Delivery) {
		id := d.Message().ID
		if d.Attempt().N == 1 && id[len(id)-1]%3 == 0 {
			t.ok("Retry", d.Retry(ctx))
			return
		}
		t.ok("CompleteWith", completeWith(ctx, d, transport.Operation{Message: d.Message(), Queue: out}))
		left.Done()
	}
	for range 4 {
		r := t.receiver(c, in)
		wg.Go(func() {
			for ctx.Err() == nil {
				ds, _ := r.Receive(ctx, 5)
				for _, d := range ds {
					move(d)
				}
			}
		})
	}
	t.ok("wait until all are moved", await(t, "all are moved", calling(func() error { left.Wait(); return nil })))
	cancel()
	wg.Wait()
	t.holds(c, out, want...)
	t.empty(c, in)
}

func atomicLimits(t *test) {
	c, _, r := t.receiverOf(t.open(), "m")
	d := t.one(r, "m")
	if atomic := c.Limits().Atomic; atomic != is[transport.Transactor](d) {
		t.Errorf("Limits.Atomic is %v, and that the deliveries are Transactors %v", atomic, !atomic)
	}
	t.complete(d)
}

func (t *test) begin(d transport.Delivery) transport.Tx {
	t.Helper()
	tx, err := as[transport.Transactor](t, d).Begin(t.ctx())
	t.must("Begin", err)
	return tx
}

func txCommit(t *test) {
	c, in, r := t.receiverOf(t.open(), "m-1", "m-2")
	out := t.queue(c, "out")
	for _, id := range []string{"m-1", "m-2"} {
		tx := t.begin(t.one(r, id))
		t.must("Complete", tx.Complete(t.ctx(), []transport.Operation{to(out, "of "+id)}))
		t.do("Rollback", tx.Rollback)
	}
	t.holds(c, out, "of m-1", "of m-2")
	t.empty(c, in)
}

func txRollback(t *test) {
	c, in, r := t.receiverOf(t.open(), "m")
	out, d := t.queue(c, "out"), t.one(r, "m")
	tx := t.begin(d)
	t.do("Rollback", tx.Rollback)
	t.do("Rollback", tx.Rollback)
	if tx.Complete(t.ctx(), []transport.Operation{to(out, "sent after the rollback")}) == nil {
		t.Error("Complete after Rollback succeeded")
	}
	t.empty(c, out)
	t.do("Retry", d.Retry)
	t.complete(t.one(r, "m"))
	t.empty(c, in)
}

func txRefused(t *test) {
	c, in, r := t.receiverOf(t.open(), "m")
	out, d := t.queue(c, "out"), t.one(r, "m")
	tx := t.begin(d)
	err := tx.Complete(t.ctx(), []transport.Operation{to(out, "m-1"), to(t.name("missing"), "m-2")})
	t.failedOps(err, 2, 1)
	t.fails("Complete", err, transport.ErrNoQueue)
	t.do("Rollback", tx.Rollback)
	t.empty(c, out)
	t.do("Retry", d.Retry)
	t.complete(t.one(r, "m"))
	t.empty(c, in)
}

func txClosed(t *test) {
	c, in, r := t.receiverOf(t.open(), "m")
	tx := t.begin(t.one(r, "m"))
	t.close(c)
	if tx.Complete(t.ctx(), nil) == nil {
		t.Error("Complete on a closed connection succeeded")
	}
	t.do("Rollback", tx.Rollback)
	t.holds(t.open(), in, "m")
}
