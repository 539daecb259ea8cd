package transporttest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var leaseRules = []rule{
	newRule("lease-expires", leaseExpires,
		"A message that is neither settled nor renewed, as after a crash of the process, is delivered again as the next "+
			"attempt when its lease ends, and not earlier.", leases),
	newRule("lease-renewed", leaseRenewed,
		"A delivery stays leased as long as it is renewed, and can then be settled.", leases),
	newRule("lease-lost-settle", leaseLostSettle,
		"If a message was delivered again, a settle of the older delivery fails with ErrLeaseLost and does not affect the "+
			"newer one.", leases),
	newRule("lease-lost-sends-nothing", leaseLostSendsNothing,
		"If a message was delivered again, CompleteWith of the older delivery sends nothing.", leases, completing),
	newRule("lease-lost-at-once", leaseLostAtOnce,
		"If an older and a newer delivery of a message are completed concurrently, each with operations, only the newer "+
			"delivery is completed and only its operations are sent.", leases, completing),
	newRule("lease-lost-commits-nothing", leaseLostCommitsNothing,
		"If a message was delivered again, a transaction of the older delivery fails with ErrLeaseLost and sends "+
			"nothing.", leases, transacting),
	newRule("lease-renew-tells", leaseRenewTells,
		"Renew returns a result for each delivery: ErrLeaseLost if its message was delivered again, nil for the "+
			"others.", leases),
	newRule("lease-renew-settled", leaseRenewSettled, "Renewing a settled delivery does not restore its lease.", leases),
}

const longestLease = 5 * time.Second

// leased opens the transport with short leases.
func (t *test) leased() transport.Conn {
	t.Helper()
	if t.harness.ShortLease != nil {
		t.tr = t.harness.ShortLease(t.TB)
	}
	c := t.open()
	if lease := c.Limits().Lease; lease <= 0 || lease > longestLease {
		t.Fatalf("leases of %v are none to wait for: set Harness.ShortLease", lease)
	}
	return c
}

// renew renews deliveries and returns the result for each.
func (t *test) renew(r transport.Receiver, ds ...transport.Delivery) []error {
	t.Helper()
	renewer, ok := r.(transport.Renewer)
	if !ok {
		t.Fatal("Limits.Lease is set, but the receiver is no Renewer")
	}
	errs := renewer.Renew(t.ctx(), ds)
	if len(errs) != len(ds) {
		t.Fatalf("Renew of %d deliveries returned %d results", len(ds), len(errs))
	}
	return errs
}

func leaseExpires(t *test) {
	c, q, r := t.receiverOf(t.leased(), "m")
	began := time.Now()
	t.one(r, "m")
	t.leave(q)
	d := t.nth(t.receiver(t.open(), q), 2) // like another process
	if took, lease := time.Since(began), c.Limits().Lease; took < lease-clockGrain {
		t.Errorf("it was delivered again after %v, within its lease of %v", took, lease)
	}
	t.complete(d)
	t.empty(c, q)
}

func leaseRenewed(t *test) {
	c, q, r := t.receiverOf(t.leased(), "renewed", "forgotten")
	kept := t.take(r, 2)[0]
	ctx, cancel := context.WithCancel(t.ctx())
	defer cancel()
	came := receiving(ctx, t.receiver(t.open(), q), 5)
	lease := c.Limits().Lease
	settled := false
	for began := time.Now(); !settled || time.Since(began) < lease+lease/2; {
		t.must("Renew", t.renew(r, kept)[0])
		select {
		case got := <-came: // its lease is not renewed, and a busy machine makes this loop longer
			t.must("Receive", got.err)
			t.sameIDs(idsOf(append(got.ds, kept)), []string{"forgotten", "renewed"})
			t.complete(got.ds...)
			settled = true
		default:
		}
		t.pass(lease / 6)
	}
	t.complete(kept)
	t.empty(c, q)
}

func leaseLostSettle(t *test) {
	c, q, r := t.receiverOf(t.leased(), "m")
	old, current := t.one(r, "m"), t.one(r, "m")
	for _, v := range verbs(old) {
		t.fails(v.name, v.settle(t.ctx()), transport.ErrLeaseLost)
	}
	t.complete(current)
	t.empty(c, q)
}

func leaseLostSendsNothing(t *test) {
	c, in, r := t.receiverOf(t.leased(), "m")
	out := t.queue(c, "out")
	old, current := t.one(r, "m"), t.one(r, "m")
	t.fails("CompleteWith", completeWith(t.ctx(), old, to(out, "sent too late")), transport.ErrLeaseLost)
	t.complete(current)
	t.empty(c, out)
	t.empty(c, in)
}

func leaseLostAtOnce(t *test) {
	want := ids("m", 10)
	c, in, r := t.receiverOf(t.leased(), want...)
	out := t.queue(c, "out")
	old, current := t.take(r, len(want)), t.take(r, len(want))
	ctx := t.ctx()
	var wg sync.WaitGroup
	for i := range want {
		wg.Go(func() {
			err := completeWith(ctx, old[i], to(out, "sent too late"))
			t.fails("CompleteWith of the older delivery", err, transport.ErrLeaseLost)
		})
		wg.Go(func() {
			t.ok("CompleteWith of the newer delivery", completeWith(ctx, current[i], to(out, current[i].Message().ID)))
		})
	}
	wg.Wait()
	t.holds(c, out, want...)
	t.empty(c, in)
}

func leaseLostCommitsNothing(t *test) {
	c, in, r := t.receiverOf(t.leased(), "m")
	out := t.queue(c, "out")
	tx := t.begin(t.one(r, "m"))
	current := t.one(r, "m")
	err := tx.Complete(t.ctx(), []transport.Operation{to(out, "sent too late")})
	t.fails("Complete of the transaction", err, transport.ErrLeaseLost)
	t.complete(current)
	t.empty(c, out)
	t.empty(c, in)
}

func leaseRenewTells(t *test) {
	c, q, r := t.receiverOf(t.leased(), "lost")
	old, current := t.one(r, "lost"), t.one(r, "lost")
	t.send(c, q, "kept")
	kept := t.one(r, "kept")
	errs := t.renew(r, current, old, kept)
	t.fails("Renew of the older delivery", errs[1], transport.ErrLeaseLost)
	t.ok("Renew of its neighbours", errors.Join(errs[0], errs[2]))
	t.complete(current, kept)
	t.empty(c, q)
}

func leaseRenewSettled(t *test) {
	c := t.open() // with leases that outlast the rule, also on a busy machine
	_, q, r := t.receiverOf(c, ids("m", 2)...)
	ds := t.take(r, 2) // in any order
	t.complete(ds[0])
	t.do("Retry", ds[1].Retry)
	for _, err := range t.renew(r, ds...) {
		if err != nil {
			t.fails("Renew of a settled delivery", err, transport.ErrLeaseLost)
		}
	}
	began := time.Now()
	t.complete(t.one(r, ds[1].Message().ID))
	if took := time.Since(began); took >= c.Limits().Lease {
		t.Errorf("a retried message was kept back for %v by a renewal that came after", took)
	}
	t.empty(c, q)
}
