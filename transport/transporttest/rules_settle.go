package transporttest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/transport"
)

var settleRules = []rule{
	newRule("settle-complete", settleComplete,
		"A completed message is deleted, also for connections that are opened later."),
	newRule("settle-retry", settleRetry, "A retried message is delivered again at once."),
	newRule("settle-release", settleRelease, "A released message is delivered again at once, to any receiver."),
	newRule("settle-once", settleOnce,
		"A delivery is settled once: a second settle with any method fails and changes nothing."),
	newRule("settle-race", settleRace,
		"If a delivery is settled several times concurrently, exactly one settle succeeds, and that one takes effect."),
	newRule("settle-any-order", settleAnyOrder,
		"Deliveries can be settled in any order and from many goroutines: each settle affects its own message."),
	newRule("settle-own-context", settleOwnContext,
		"A delivery can be settled after the context with which it was received has ended."),
	newRule("settle-again", settleAgain,
		"A settle that failed can be repeated with the same method. The repeated settle takes effect, whatever the first "+
			"one did."),
	newRule("settle-dead-letter", settleDeadLetter, "A dead-lettered message is removed from its queue.", burying),
}

func settleComplete(t *test) {
	c, q, r := t.receiverOf(t.open(), "m-1", "m-2")
	t.complete(t.take(r, 2)...)
	t.empty(c, q)
	t.empty(t.reopen(c), q)
}

func settleRetry(t *test) {
	c, q, r := t.receiverOf(t.open(), "m")
	for range 4 {
		t.do("Retry", t.one(r, "m").Retry)
	}
	t.complete(t.one(r, "m"))
	t.empty(c, q)
}

func settleRelease(t *test) {
	one, q, r := t.receiverOf(t.open(), "m")
	t.do("Release", t.one(r, "m").Release)
	t.close(r)
	t.complete(t.one(t.receiver(t.open(), q), "m"))
	t.empty(one, q)
}

// verb is a way to settle a delivery.
type verb struct {
	name   string
	settle func(context.Context) error
}

// verbs are those that d offers.
func verbs(d transport.Delivery) []verb {
	all := []verb{{"Complete", d.Complete}, {"Retry", d.Retry}, {"Release", d.Release}}
	if whole, ok := d.(transport.Completer); ok {
		all = append(all, verb{"CompleteWith", func(ctx context.Context) error { return whole.CompleteWith(ctx, nil) }})
	}
	if own, ok := d.(transport.DeadLetterer); ok {
		all = append(all, verb{"DeadLetter", func(ctx context.Context) error { return own.DeadLetter(ctx, "the kit says so") }})
	}
	return all
}

func settleOnce(t *test) {
	c, q, r := t.receiverOf(t.open(), "completed", "retried")
	done, old := t.one(r, "completed"), t.one(r, "retried")
	t.complete(done)
	t.do("Retry", old.Retry)
	current := t.one(r, "retried")
	for _, d := range []transport.Delivery{done, old} {
		for _, v := range verbs(d) {
			if v.settle(t.ctx()) == nil {
				t.Errorf("%s of a delivery that was %s succeeded", v.name, d.Message().ID)
			}
		}
	}
	t.do("Retry of the newer delivery", current.Retry)
	t.complete(t.one(r, "retried"))
	t.empty(c, q)
}

func settleRace(t *test) {
	c, q, r := t.receiverOf(t.open())
	ctx := t.ctx()
	for _, id := range ids("m", 10) {
		t.send(c, q, id)
		d := t.one(r, id)
		var completes, retries atomic.Int32
		var wg sync.WaitGroup
		race := func(settle func(context.Context) error, succeeded *atomic.Int32) {
			if settle(ctx) == nil {
				succeeded.Add(1)
			}
		}
		for range 4 {
			wg.Go(func() { race(d.Complete, &completes) })
			wg.Go(func() { race(d.Retry, &retries) })
		}
		wg.Wait()
		if completes.Load()+retries.Load() != 1 {
			t.Fatalf("%d of 4 Complete and %d of 4 Retry of one delivery succeeded, want one of them all",
				completes.Load(), retries.Load())
		}
		if retries.Load() == 1 {
			t.complete(t.one(r, id))
		}
	}
	t.empty(c, q)
}

func settleAnyOrder(t *test) {
	c, q, r := t.receiverOf(t.open(), ids("m", 60)...)
	ds := t.take(r, 60)
	slices.Reverse(ds)
	ctx := t.ctx()
	t.do("Complete", ds[1].Complete) // a young one before all older ones
	var want []string
	var wg sync.WaitGroup
	for i, d := range slices.Delete(ds, 1, 2) {
		settle := d.Complete
		if i%3 == 0 {
			settle = d.Retry
			want = append(want, d.Message().ID)
		}
		wg.Go(func() { t.ok("settle "+d.Message().ID, settle(ctx)) })
	}
	wg.Wait()
	t.all(r, want...)
	t.empty(c, q)
}

func settleOwnContext(t *test) {
	c, q, r := t.receiverOf(t.open(), ids("m", 2)...)
	ctx, cancel := context.WithCancel(t.ctx())
	ds, err := gather(ctx, r, 2) // in any order
	cancel()
	t.must("Receive", err)
	t.complete(ds[0])
	t.do("Retry", ds[1].Retry)
	t.holds(c, q, idsOf(ds[1:])...)
}

func settleAgain(t *test) {
	c, q, r := t.receiverOf(t.open())
	// settles tries with a context that has ended, then with one that has not.
	settles := func(settle func(context.Context) error) {
		t.Helper()
		err := settle(ended())
		if errors.Is(err, transport.ErrLeaseLost) {
			t.Fatalf("a settle whose context had ended says that the lease is lost: %v", err)
		}
		if err != nil { // the first may have been carried out after all
			t.must("the settle, repeated", unlessLost(settle(t.ctx())))
		}
	}
	for _, id := range ids("m", 5) {
		t.send(c, q, id)
		settles(t.one(r, id).Retry)
		settles(t.one(r, id).Release)
		settles(t.one(r, id).Complete)
	}
	t.empty(c, q)
}

func settleDeadLetter(t *test) {
	c, q, r := t.receiverOf(t.open(), "dead", "alive")
	d := t.one(r, "dead")
	t.must("DeadLetter", as[transport.DeadLetterer](t, d).DeadLetter(t.ctx(), "the kit says so"))
	t.complete(t.one(r, "alive"))
	t.empty(c, q)
	if d.Complete(t.ctx()) == nil {
		t.Error("Complete after DeadLetter succeeded")
	}
}
