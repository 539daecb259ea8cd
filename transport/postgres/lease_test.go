package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

func completeWith(t testing.TB, d transport.Delivery, ops ...transport.Operation) error {
	t.Helper()
	return d.(transport.Completer).CompleteWith(t.Context(), ops)
}

func TestASettleAfterTheLeaseWasTakenOverHitsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in", "out")
	first, second := w.open(), w.open()
	send(t, first, to("in", msg("1")))
	late := receive(t, receiver(t, first, "in"), 1)[0]
	w.exec(`UPDATE %sin SET visible_at = now() - interval '1 second'`)
	now := receive(t, receiver(t, second, "in"), 1)[0]
	if n := now.Attempt().N; n != 2 {
		t.Errorf("attempt %d, want 2", n)
	}
	ctx := t.Context()
	isErr(t, late.Retry(ctx), transport.ErrLeaseLost)
	isErr(t, late.Release(ctx), transport.ErrLeaseLost)
	isErr(t, completeWith(t, late, to("out", msg("2"))), transport.ErrLeaseLost)
	isErr(t, late.Complete(ctx), transport.ErrLeaseLost)
	if n := w.count("out"); n != 0 {
		t.Errorf("%d messages sent by a completion that lost its lease", n)
	}
	ok(t, completeWith(t, now, to("out", msg("3"))))
	if in, out := w.count("in"), w.count("out"); in != 0 || out != 1 {
		t.Errorf("%d left in, %d sent, want 0 and 1", in, out)
	}
}

func TestALostLeaseDoesNotTouchItsNeighboursInTheBatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in", "out")
	c := w.open()
	const n = 50
	for i := range n {
		send(t, c, to("in", msg(fmt.Sprint(i))))
	}
	ds := receive(t, receiver(t, c, "in"), n)
	w.exec(`UPDATE %sin SET lease_id = -1 WHERE seq % 5 = 0`)
	lost := w.exec(`UPDATE %sin SET lease_owner = 'other' WHERE lease_id = -1`)
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := int64(0)
	for _, d := range ds {
		wg.Go(func() {
			err := completeWith(t, d, to("out", msg("of "+d.Message().ID)), to("out", msg("too")))
			mu.Lock()
			defer mu.Unlock()
			if errors.Is(err, transport.ErrLeaseLost) {
				got++
			} else if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got != lost {
		t.Errorf("%d completions lost their lease, want %d", got, lost)
	}
	if in, out := w.count("in"), w.count("out"); int64(in) != lost || int64(out) != 2*(n-lost) {
		t.Errorf("%d left in, %d sent, want %d and %d", in, out, lost, 2*(n-lost))
	}
}

func TestALeaseThatRanOutUnnoticedStillHolds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	c := w.open()
	r := receiver(t, c, "in")
	send(t, c, to("in", msg("1")), to("in", msg("2")))
	ds := receive(t, r, 2)
	w.exec(`UPDATE %sin SET visible_at = now() - interval '1 second'`)
	for _, err := range r.(transport.Renewer).Renew(t.Context(), ds[:1]) {
		ok(t, err)
	}
	ok(t, ds[1].Complete(t.Context()))
	nothing(t, r)
	ok(t, ds[0].Complete(t.Context()))
}

func TestRenewExtendsAndTellsWhatIsLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	c := w.openAs(Transport{Lease: time.Minute})
	r := receiver(t, c, "in")
	send(t, c, to("in", msg("1")), to("in", msg("2")), to("in", msg("3")))
	ds := receive(t, r, 3)
	if left := w.secondsVisible(ds[0]); left < 50 || left > 60 {
		t.Errorf("leased for %v s, want about 60", left)
	}
	w.exec(`UPDATE %sin SET visible_at = now() + interval '5 seconds'`)
	w.exec(`UPDATE %sin SET lease_id = -1 WHERE seq = $1::text::bigint`, ds[1].Message().NativeID)
	errs := r.(transport.Renewer).Renew(t.Context(), ds)
	ok(t, errs[0])
	isErr(t, errs[1], transport.ErrLeaseLost)
	ok(t, errs[2])
	for _, i := range []int{0, 2} {
		if left := w.secondsVisible(ds[i]); left < 50 || left > 60 {
			t.Errorf("renewed for %v s, want about 60", left)
		}
	}
	if left := w.secondsVisible(ds[1]); left > 5 {
		t.Errorf("another's lease was renewed to %v s", left)
	}
}

// secondsVisible is in how many seconds the row of d becomes visible.
func (w *world) secondsVisible(d transport.Delivery) (s float64) {
	w.t.Helper()
	err := w.sql.QueryRow(w.t.Context(), `SELECT extract(epoch FROM visible_at - clock_timestamp())::float8 FROM `+
		quote(w.schema, "in")+` WHERE seq = $1::text::bigint`, d.Message().NativeID).Scan(&s)
	ok(w.t, err)
	return s
}

func TestCompetingReceiversGetEachMessageOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	const n = 3000
	ops := make([]transport.Operation, n)
	for i := range ops {
		ops[i] = to("in", msg(fmt.Sprint(i)))
	}
	send(t, w.open(), ops...)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var mu sync.Mutex
	seen := map[string]int{}
	var wg sync.WaitGroup
	for range 2 {
		r := receiver(t, w.open(), "in")
		for range 2 {
			wg.Go(func() {
				for {
					ds, err := r.Receive(ctx, 17)
					if err != nil {
						return
					}
					mu.Lock()
					for _, d := range ds {
						seen[d.Message().ID]++
					}
					if len(seen) == n {
						cancel()
					}
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	if len(seen) != n {
		t.Fatalf("%d of %d messages arrived", len(seen), n)
	}
	for id, times := range seen {
		if times != 1 {
			t.Errorf("message %s was delivered %d times", id, times)
		}
	}
}

func TestAttemptsAreExactAcrossReceiversThatCrash(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	send(t, w.open(), to("in", msg("1")))
	for n := 1; n <= 5; n++ {
		d := receive(t, receiver(t, w.open(), "in"), 1)[0] // and never settled
		if got := d.Attempt(); got != (transport.Attempt{N: n, Exact: true}) {
			t.Fatalf("attempt %+v, want %d", got, n)
		}
		w.exec(`UPDATE %sin SET visible_at = now()`) // the lease runs out
	}
}

func TestCloseGivesBackWhatWasNotSettled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	first, second := w.open(), w.open()
	send(t, first, to("in", msg("1")), to("in", msg("2")))
	kept := receive(t, receiver(t, second, "in"), 1)[0]
	d := receive(t, receiver(t, first, "in"), 1)[0]
	ok(t, first.Close())
	again := receive(t, receiver(t, second, "in"), 1)[0]
	if again.Message().ID != d.Message().ID || again.Attempt().N != 2 {
		t.Errorf("got %s at attempt %d, want %s at 2", again.Message().ID, again.Attempt().N, d.Message().ID)
	}
	isErr(t, d.Complete(t.Context()), transport.ErrClosed)
	ok(t, kept.Complete(t.Context())) // another's lease is left alone
}

func TestAContextThatEndsInReceiveDropsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	c := w.open()
	r := receiver(t, c, "in")
	const n = 300
	var sent sync.WaitGroup
	sent.Go(func() {
		for i := range n {
			send(t, c, to("in", msg(fmt.Sprint(i))))
		}
	})
	got := 0
	deadline := time.Now().Add(patience)
	for i := 0; got < n && time.Now().Before(deadline); i++ {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%7)*time.Millisecond)
		ds, err := r.Receive(ctx, 5)
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		got += len(ds)
		for _, d := range ds {
			if d.Attempt().N != 1 {
				t.Errorf("message %s at attempt %d", d.Message().ID, d.Attempt().N)
			}
		}
	}
	sent.Wait()
	if got != n {
		t.Errorf("%d of %d messages arrived", got, n)
	}
}

func TestTwoDeliveriesOfOneRowInABatchAreTwoLeases(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in", "out")
	send(t, w.open(), to("in", msg("1")), to("in", msg("2")))
	s := w.store()
	ctx := t.Context()
	claim := func(lease int64) []tablequeue.Claimed {
		rows, _, err := s.Claim(ctx, tablequeue.Claim{Queue: "in", Limit: 2, Lease: lease, For: time.Minute, Owner: "me"}, nil)
		ok(t, err)
		w.exec(`UPDATE %sin SET visible_at = now()`)
		return rows
	}
	old := claim(11)
	if len(claim(12)) != 2 {
		t.Fatal("not delivered again")
	}
	seq := old[0].Seq
	leases := []tablequeue.Lease{{Seq: seq, ID: 11}, {Seq: seq, ID: 12}, {Seq: old[1].Seq, ID: 11}}
	lost, err := s.Renew(ctx, "in", leases, time.Minute)
	ok(t, err)
	if want := []bool{true, false, true}; !slices.Equal(lost, want) {
		t.Errorf("renewals lost %v, want %v", lost, want)
	}
	for _, verb := range []tablequeue.Verb{tablequeue.Retry, tablequeue.Delete} {
		var units []*tablequeue.Unit
		for _, l := range leases {
			u := &tablequeue.Unit{Verb: verb, Queue: "in", Lease: l}
			if verb == tablequeue.Delete {
				u.Rows = []tablequeue.Row{{Queue: "out", ID: fmt.Sprint(l.ID), Headers: []byte("{}")}}
			}
			units = append(units, u)
		}
		ok(t, s.Flush(ctx, units))
		for i, u := range units {
			if want := i != 1; u.Lost != want {
				t.Errorf("verb %d, unit %d: lost %v, want %v", verb, i, u.Lost, want)
			}
		}
		w.exec(`UPDATE %sin SET lease_id = 12`)
	}
	if n := w.count("out"); n != 1 {
		t.Errorf("%d messages sent, want that of the one lease that holds", n)
	}
}
