package transporttest

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/transport"
)

var recordRules = []rule{
	newRule("record-completed", recordCompleted,
		"After RecordHandled, Complete, CompleteWith and a transaction that began before record the key, complete the "+
			"delivery and send the operations.", storing, recording),
	newRule("record-duplicate", recordDuplicate,
		"If the id is in the inbox already, the completion fails with ErrAlreadyHandled, sends nothing and does not settle "+
			"the delivery: it can be retried, or completed after RecordHandled with nil.", storing, recording),
	newRule("record-at-once", recordAtOnce,
		"If several deliveries that record one key are completed concurrently, one succeeds, and the others fail with "+
			"ErrAlreadyHandled.", storing, recording),
	newRule("record-none", recordNone,
		"Retry, Release, a Rollback and, after RecordHandled with nil, Complete record no key. A later delivery of the "+
			"message does not have the key.", storing, recording),
	newRule("record-refused", recordRefused,
		"CompleteWith with a refused operation does not record the key. The next CompleteWith of the delivery "+
			"does.", storing, recording, completing),
	newRule("record-missing", recordMissing,
		"If the inbox does not exist, the completion fails with ErrNoQueue and does not settle the "+
			"delivery.", storing, recording),
	newRule("record-lease-lost", recordLeaseLost,
		"If a message was delivered again, the completion of the older delivery fails with ErrLeaseLost and records no "+
			"key.", storing, recording, leases),
}

// completion is a way to complete a delivery.
type completion struct {
	name  string
	sends bool
	begin func(t *test, d transport.Delivery) completeFunc // called before RecordHandled
}

// completeFunc completes a delivery and sends operations.
type completeFunc func(context.Context, []transport.Operation) error

// completions returns the ways to complete a delivery that the driver offers.
func completions(d transport.Delivery) []completion {
	all := []completion{{"Complete", false, func(_ *test, d transport.Delivery) completeFunc {
		return func(ctx context.Context, _ []transport.Operation) error { return d.Complete(ctx) }
	}}}
	if is[transport.Completer](d) {
		all = append(all, completion{"CompleteWith", true, func(t *test, d transport.Delivery) completeFunc {
			return as[transport.Completer](t, d).CompleteWith
		}})
	}
	if is[transport.Transactor](d) {
		all = append(all, completion{"a transaction", true, func(t *test, d transport.Delivery) completeFunc {
			return t.begin(d).Complete
		}})
	}
	return all
}

// recorded has the completion of d record a key.
func (o outbox) recorded(d transport.Delivery, k *transport.HandledKey) {
	o.t.Helper()
	as[transport.HandledRecorder](o.t, d).RecordHandled(o.inbox, k)
}

func recordCompleted(t *test) {
	o := t.outbox(t.open())
	_, in, r := t.receiverOf(o.conn, "probe")
	d := t.one(r, "probe")
	ways := completions(d)
	t.complete(d)
	var want []string
	for i, way := range ways {
		t.send(o.conn, in, way.name)
		d := t.one(r, way.name)
		complete := way.begin(t, d)
		k := key(i)
		o.recorded(d, &k)
		t.must(way.name, complete(t.ctx(), toAll(o.queue, []string{"of " + way.name})))
		o.are(transport.Handled, k)
		if way.sends {
			want = append(want, "of "+way.name)
		}
	}
	t.holds(o.conn, o.queue, want...)
	t.empty(o.conn, in)
}

func recordDuplicate(t *test) {
	o := t.outbox(t.open())
	_, in, r := t.receiverOf(o.conn, "m")
	k := key(1)
	o.store(k)
	d := t.one(r, "m")
	for _, way := range completions(d) {
		complete := way.begin(t, d)
		o.recorded(d, &k)
		t.fails(way.name, complete(t.ctx(), toAll(o.queue, []string{"of a duplicate"})), transport.ErrAlreadyHandled)
		t.do("Retry", d.Retry)
		d = t.one(r, "m")
	}
	o.recorded(d, &k)
	t.fails("Complete", d.Complete(t.ctx()), transport.ErrAlreadyHandled)
	o.recorded(d, nil)
	t.complete(d)
	o.are(transport.Handled, k)
	t.empty(o.conn, o.queue)
	t.empty(o.conn, in)
}

func recordAtOnce(t *test) {
	const n = 10
	o := t.outbox(t.open())
	_, in, r := t.receiverOf(o.conn, ids("m", n)...)
	k := key(1)
	var completed atomic.Int64
	var wg sync.WaitGroup
	for _, d := range t.take(r, n) {
		recorder := as[transport.HandledRecorder](t, d)
		recorder.RecordHandled(o.inbox, &k)
		wg.Go(func() {
			err := d.Complete(t.ctx())
			if err == nil {
				completed.Add(1)
				return
			}
			t.fails("Complete", err, transport.ErrAlreadyHandled)
			recorder.RecordHandled(o.inbox, nil)
			t.ok("Complete", d.Complete(t.ctx()))
		})
	}
	wg.Wait()
	if got := completed.Load(); got != 1 {
		t.Errorf("%d deliveries recorded one key, want 1", got)
	}
	o.are(transport.Handled, k)
	t.empty(o.conn, in)
}

func recordNone(t *test) {
	o := t.outbox(t.open())
	_, in, r := t.receiverOf(o.conn, "m")
	all := keys(4)
	d := t.one(r, "m")
	o.recorded(d, &all[0])
	t.do("Retry", d.Retry)
	d = t.one(r, "m")
	o.recorded(d, &all[1])
	t.do("Release", d.Release)
	d = t.one(r, "m")
	if is[transport.Transactor](d) {
		tx := t.begin(d)
		o.recorded(d, &all[2])
		t.do("Rollback", tx.Rollback)
	}
	o.recorded(d, &all[3])
	o.recorded(d, nil)
	t.complete(d)
	o.are(transport.NotHandled, all...)
	t.send(o.conn, in, "m-2")
	t.complete(t.one(r, "m-2"))
	o.are(transport.NotHandled, all...)
	t.empty(o.conn, in)
}

func recordRefused(t *test) {
	o := t.outbox(t.open())
	_, in, r := t.receiverOf(o.conn, "m")
	d, k := t.one(r, "m"), key(1)
	o.recorded(d, &k)
	err := completeWith(t.ctx(), d, to(o.queue, "refused"), to(t.name("missing"), "m"))
	t.failedOps(err, 2, 1)
	o.are(transport.NotHandled, k)
	t.completeWith(d, to(o.queue, "m"))
	o.are(transport.Handled, k)
	t.holds(o.conn, o.queue, "m")
	t.empty(o.conn, in)
}

func recordMissing(t *test) {
	o := t.outbox(t.open())
	_, in, r := t.receiverOf(o.conn, "m")
	missing, k := o, key(1)
	missing.inbox = t.name("missing")
	d := t.one(r, "m")
	for _, way := range completions(d) {
		complete := way.begin(t, d)
		missing.recorded(d, &k)
		t.fails(way.name, complete(t.ctx(), toAll(o.queue, []string{"unrecorded"})), transport.ErrNoQueue)
		t.do("Retry", d.Retry)
		d = t.one(r, "m")
	}
	t.complete(d)
	t.empty(o.conn, o.queue)
	t.empty(o.conn, in)
}

func recordLeaseLost(t *test) {
	o := t.outbox(t.leased())
	_, in, r := t.receiverOf(o.conn, "m")
	old := t.one(r, "m")
	all := keys(3)
	ways := completions(old)
	begun := make([]completeFunc, len(ways))
	for i, way := range ways {
		begun[i] = way.begin(t, old)
	}
	current := t.one(r, "m")
	for i, way := range ways {
		o.recorded(old, &all[i])
		t.fails(way.name, begun[i](t.ctx(), toAll(o.queue, []string{"sent too late"})), transport.ErrLeaseLost)
	}
	t.complete(current)
	o.are(transport.NotHandled, all...)
	t.empty(o.conn, o.queue)
	t.empty(o.conn, in)
}
