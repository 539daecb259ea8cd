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
		"A delivery that is neither settled nor renewed is delivered again when its lease is over, not before, as after "+
			"the crash of a process, as the next attempt.", leases),
	newRule("lease-renewed", leaseRenewed,
		"A delivery stays leased as long as it is renewed, and can then be settled.", leases),
	newRule("lease-lost-settle", leaseLostSettle,
		"A settle of a delivery whose message was delivered again fails with ErrLeaseLost and does not affect the newer "+
			"delivery.", leases),
	newRule("lease-lost-sends-nothing", leaseLostSendsNothing,
		"CompleteWith of a delivery whose message was delivered again sends nothing.", leases, completing),
	newRule("lease-lost-at-once", leaseLostAtOnce,
		"If an older and a newer delivery of a message are completed concurrently, each with sends, only the newer one "+
			"succeeds and sends.", leases, completing),
	newRule("lease-lost-commits-nothing", leaseLostCommitsNothing,
		"A transaction of a delivery whose message was delivered again fails with ErrLeaseLost and sends "+
			"nothing.", leases, transacting),
	newRule("lease-renew-tells", leaseRenewTells,
		"Renew returns an entry for each delivery: ErrLeaseLost for one whose message was delivered again, nil for the "+
			"others.", leases),
	newRule("lease-renew-settled", leaseRenewSettled, "Renewing a settled delivery does not restore its lease.", leases),
}

const longestLease = 5 * time.Second

// leased opens the transport with short leases.
func (t *test) leased() (transport.Conn, time.Duration) {
	t.Helper()
	if t.harness.ShortLease != nil {
		t.tr = t.harness.ShortLease(t.TB)
	}
	c := t.open()
	lease := c.Limits().Lease
	if lease <= 0 || lease > longestLease {
		t.Fatalf("leases of %v are none to wait for: set Harness.ShortLease", lease)
	}
	return c, lease
}

func renewer(t *test, r transport.Receiver) transport.Renewer {
	t.Helper()
	renewer, ok := r.(transport.Renewer)
	if !ok {
		t.Fatalf("Limits.Lease is set, but the receiver is no Renewer")
	}
	return renewer
}

func leaseExpires(t *test) {
	c, lease := t.leased()
	q := t.queue(c, "in")
	t.send(c, q, "m")
	r := t.receiver(c, q)
	began := time.Now()
	t.one(r, "m")
	t.leave(q)
	d := t.one(t.receiver(t.open(), q), "m") // like another process
	if took := time.Since(began); took < lease-clockGrain {
		t.Errorf("it was delivered again after %v, within its lease of %v", took, lease)
	}
	t.attempt(d, 2)
	t.complete(d)
	t.empty(c, q)
}

func leaseRenewed(t *test) {
	c, lease := t.leased()
	q := t.queue(c, "in")
	t.send(c, q, "renewed", "forgotten")
	r := t.receiver(c, q)
	renews := renewer(t, r)
	ds := t.take(r, 2)
	kept := ds[0]
	if kept.Message().ID != "renewed" {
		kept = ds[1]
	}
	ctx, cancel := context.WithCancel(t.ctx())
	defer cancel()
	came := receiving(ctx, t.receiver(t.open(), q), 5)
	for began := time.Now(); time.Since(began) < lease+lease/2; {
		if err := renewOne(t, renews, kept); err != nil {
			t.Fatalf("Renew: %v", err)
		}
		t.pass(lease / 6)
	}
	got := await(t, "what was not renewed comes", came)
	if got.err != nil {
		t.Fatalf("Receive: %v", got.err)
	}
	t.sameIDs(idsOf(got.ds), []string{"forgotten"})
	t.complete(kept)
	t.complete(got.ds...)
	t.empty(c, q)
}

func renewOne(t *test, r transport.Renewer, d transport.Delivery) error {
	t.Helper()
	errs := r.Renew(t.ctx(), []transport.Delivery{d})
	if len(errs) != 1 {
		t.Fatalf("Renew of one delivery returned %d results", len(errs))
	}
	return errs[0]
}

// lost returns a delivery that has lost its lease, and the newer one.
func (t *test) lost(c transport.Conn, q string) (old, current transport.Delivery) {
	t.Helper()
	t.send(c, q, "m")
	r := t.receiver(c, q)
	old = t.one(r, "m")
	current = t.one(r, "m")
	return old, current
}

func leaseLostSettle(t *test) {
	c, _ := t.leased()
	q := t.queue(c, "in")
	old, current := t.lost(c, q)
	for _, v := range verbs(old) {
		t.fails(v.name, v.settle(t.ctx(), old), transport.ErrLeaseLost)
	}
	t.complete(current)
	t.empty(c, q)
}

func leaseLostSendsNothing(t *test) {
	c, _ := t.leased()
	in, out := t.queue(c, "in"), t.queue(c, "out")
	old, current := t.lost(c, in)
	err := completeWith(t.ctx(), old, to(out, "sent too late"))
	t.fails("CompleteWith", err, transport.ErrLeaseLost)
	t.complete(current)
	t.empty(c, out)
	t.empty(c, in)
}

func leaseLostAtOnce(t *test) {
	c, _ := t.leased()
	in, out := t.queue(c, "in"), t.queue(c, "out")
	want := ids("m", 10)
	t.send(c, in, want...)
	r := t.receiver(c, in)
	old, current := t.take(r, len(want)), t.take(r, len(want))
	ctx := t.ctx()
	var wg sync.WaitGroup
	for i := range want {
		wg.Go(func() {
			err := completeWith(ctx, old[i], to(out, "sent too late"))
			t.fails("CompleteWith of the older delivery", err, transport.ErrLeaseLost)
		})
		wg.Go(func() {
			if err := completeWith(ctx, current[i], to(out, current[i].Message().ID)); err != nil {
				t.Errorf("CompleteWith of the newer delivery: %v", err)
			}
		})
	}
	wg.Wait()
	t.holds(c, out, want...)
	t.empty(c, in)
}

func leaseLostCommitsNothing(t *test) {
	c, _ := t.leased()
	in, out := t.queue(c, "in"), t.queue(c, "out")
	t.send(c, in, "m")
	r := t.receiver(c, in)
	old := t.one(r, "m")
	tx, err := as[transport.Transactor](t, old).Begin(t.ctx())
	if err != nil {
		t.Fatalf("Begin: %v", err)
	}
	current := t.one(r, "m")
	t.fails("Complete of the transaction",
		tx.Complete(t.ctx(), []transport.Operation{to(out, "sent too late")}), transport.ErrLeaseLost)
	t.complete(current)
	t.empty(c, out)
	t.empty(c, in)
}

func leaseRenewTells(t *test) {
	c, lease := t.leased()
	q := t.queue(c, "in")
	t.send(c, q, "lost")
	r := t.receiver(c, q)
	old := t.one(r, "lost")
	current := t.one(r, "lost")
	t.send(c, q, "kept")
	kept := t.one(r, "kept")
	errs := renewer(t, r).Renew(t.ctx(), []transport.Delivery{current, old, kept})
	if len(errs) != 3 {
		t.Fatalf("Renew of 3 deliveries returned %d results", len(errs))
	}
	t.fails("Renew of the older delivery", errs[1], transport.ErrLeaseLost)
	if err := errors.Join(errs[0], errs[2]); err != nil {
		t.Errorf("Renew of its neighbours, leased for %v: %v", lease, err)
	}
	t.complete(current, kept)
	t.empty(c, q)
}

func leaseRenewSettled(t *test) {
	c, lease := t.leased()
	q := t.queue(c, "in")
	t.send(c, q, "completed", "retried")
	r := t.receiver(c, q)
	for _, d := range t.take(r, 2) {
		if d.Message().ID == "completed" {
			t.complete(d)
		} else {
			t.do("Retry", d.Retry)
		}
		if err := renewOne(t, renewer(t, r), d); err != nil {
			t.fails("Renew of a settled delivery", err, transport.ErrLeaseLost)
		}
	}
	began := time.Now()
	t.complete(t.one(r, "retried"))
	if took := time.Since(began); took >= lease {
		t.Errorf("a retried message was kept back for %v by a renewal that came after", took)
	}
	t.empty(c, q)
}
