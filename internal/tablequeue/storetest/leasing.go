package storetest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

var leasing = []rule{
	{"a claim leases the rows longest visible and counts", claimLeases},
	{"a claim keeps to its bytes, but for the first row", claimBytes},
	{"a claim of nothing tells when the next row is due", claimTells},
	{"a lease that has run out is claimed again, whatever the count", claimAgain},
	{"claims at once get different rows", claimApart},
	{"a settle names the lease, and hits nothing after another claim", settleFenced},
	{"a release takes back the count and a retry keeps it", settleCounts},
	{"two deliveries of a row in a batch are two leases", settleTwo},
	{"a lost lease does not touch its neighbours", settleNeighbours},
	{"a renewal tells which leases are lost", renewTells},
	{"abandoned leases end, and no others", abandonOwn},
	{"rows of claims without an answer are abandoned", abandonClaims},
	{"a transaction completes, loses its lease, or is rolled back", transact},
}

func claimLeases(w *world) {
	w.send("in", "1", "2", "3")
	first, next := w.claim(tablequeue.Claim{Limit: 2, Lease: 11, For: long})
	w.ids(first, "1", "2")
	if next != 0 {
		w.Errorf("next %v with rows", next)
	}
	rest, _ := w.claim(tablequeue.Claim{Limit: 10, Lease: 12, For: long})
	w.ids(rest, "3")
	for _, r := range append(first, rest...) {
		if r.Count != 1 || r.Expired || r.ID == "" || string(r.Body) != "body of "+idOf(r) {
			w.Errorf("row %+v", r)
		}
	}
	w.empty()
	w.stats("in", 0, 3, 0)
}

func claimBytes(w *world) {
	const body = 10_000
	for _, id := range []string{"1", "2", "3", "4", "5", "large"} {
		r := row("in", id)
		r.Body = make([]byte, body)
		if id == "large" {
			r.Body = make([]byte, 10*body)
		}
		w.flush(sending1(r))
	}
	w.send("in", "small", "small too")
	for i, want := range [][]string{{"1", "2"}, {"3", "4"}, {"5"}, {"large"}, {"small", "small too"}} {
		rows, _ := w.claim(tablequeue.Claim{Limit: 10, Lease: int64(i + 1), For: long, MaxBytes: 2*body + body/2})
		w.ids(rows, want...)
	}
	w.empty()
}

func claimTells(w *world) {
	if _, next := w.claim(tablequeue.Claim{Limit: 1, Lease: 1, For: long}); next != 0 {
		w.Errorf("next %v of an empty queue", next)
	}
	w.flush(sending1(late(40 * time.Minute)))
	w.near("a delayed row", 40*time.Minute)
	w.send("in", "leased")
	w.claim(tablequeue.Claim{Limit: 1, Lease: 2, For: 20 * time.Minute})
	w.near("a leased row", 20*time.Minute)
}

func claimAgain(w *world) {
	w.send("in", "1")
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	for count := 1; count <= 12; {
		rows, next := w.claim(tablequeue.Claim{Limit: 1, Lease: int64(count), For: 3 * time.Millisecond})
		switch {
		case len(rows) == 1 && rows[0].Count != count:
			w.Fatalf("count %d, want %d", rows[0].Count, count)
		case len(rows) == 1:
			count++
		case backoff.Sleep(ctx, max(next, time.Millisecond)) != nil:
			w.Fatalf("not claimed for the %d. time", count)
		}
	}
}

func claimApart(w *world) {
	const n, takers = 120, 4
	w.send("in", slices.Repeat([]string{"x"}, n)...)
	var mu sync.Mutex
	var wg sync.WaitGroup
	seen := map[int64]int{}
	for taker := range takers {
		s := w.Open(w.T)
		wg.Go(func() {
			for empty := 0; empty < 3; {
				rows, _, err := s.Queues.Claim(w.Context(), tablequeue.Claim{
					Queue: "in", Limit: 7, Lease: int64(taker + 1), For: long, Owner: "me",
				}, nil)
				if err != nil && s.Classify(err) != tablequeue.Conflict {
					w.Error(err)
					return
				}
				if len(rows) == 0 {
					empty++
				}
				mu.Lock()
				for _, r := range rows {
					seen[r.Seq]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for seq, times := range seen {
		if times != 1 {
			w.Errorf("row %d was claimed %d times", seq, times)
		}
	}
	if len(seen) != n {
		w.Errorf("%d of %d rows were claimed", len(seen), n)
	}
}

// settles is a unit of each verb for a lease.
func settles(l tablequeue.Lease) []*tablequeue.Unit {
	return []*tablequeue.Unit{
		{Verb: tablequeue.Retry, Queue: "in", Lease: l, After: long},
		{Verb: tablequeue.Release, Queue: "in", Lease: l},
		deletes(l, row("out", "sent")),
	}
}

func settleFenced(w *world) {
	w.send("in", "1")
	old, _ := w.claim(tablequeue.Claim{Limit: 1, Lease: 11, For: time.Millisecond})
	now := w.claims(12, 1)
	for _, u := range settles(leaseOf(old[0], 11)) {
		w.flush(u)
		if !u.Lost {
			w.Errorf("verb %d hit what another has leased", u.Verb)
		}
	}
	w.empty()
	w.stats("out", 0, 0, 0)
	u := deletes(leaseOf(now[0], 12), row("out", "sent"))
	u.Lost = true
	w.flush(u)
	if u.Lost {
		w.Error("the lease that holds is lost")
	}
	w.flush(u) // once more: the row is gone
	if !u.Lost {
		w.Error("a row was deleted twice")
	}
	w.stats("in", 0, 0, 0)
	w.stats("out", 1, 0, 0)
}

func settleCounts(w *world) {
	w.send("in", "1")
	for lease, want := range []struct {
		verb  tablequeue.Verb
		count int
	}{{tablequeue.Retry, 1}, {tablequeue.Release, 2}, {tablequeue.Release, 2}, {tablequeue.Retry, 2}, {tablequeue.Delete, 3}} {
		r := w.claims(int64(lease+1), 1)[0]
		if r.Count != want.count {
			w.Errorf("claim %d: count %d, want %d", lease+1, r.Count, want.count)
		}
		w.flush(&tablequeue.Unit{Verb: want.verb, Queue: "in", Lease: leaseOf(r, int64(lease+1))})
	}
	w.send("in", "2")
	r := w.claims(9, 1)[0]
	w.flush(&tablequeue.Unit{Verb: tablequeue.Retry, Queue: "in", Lease: leaseOf(r, 9), After: 30 * time.Minute})
	w.near("a row to be tried again later", 30*time.Minute)
	w.stats("in", 0, 0, 1)
}

func settleTwo(w *world) {
	w.send("in", "1", "2")
	old, _ := w.claim(tablequeue.Claim{Limit: 2, Lease: 11, For: time.Millisecond})
	rows := w.claims(12, 2)
	if len(old) != 2 {
		w.Fatal("not claimed before")
	}
	seq := rows[0].Seq
	leases := []tablequeue.Lease{{Seq: seq, ID: 11}, {Seq: seq, ID: 12}, {Seq: rows[1].Seq, ID: 11}}
	lost, err := w.Queues.Renew(w.Context(), "in", leases, long)
	w.ok(err)
	if want := []bool{true, false, true}; !slices.Equal(lost, want) {
		w.Errorf("renewals lost %v, want %v", lost, want)
	}
	var units []*tablequeue.Unit
	for _, l := range leases {
		units = append(units, deletes(l, row("out", "sent")))
	}
	w.flush(units...)
	w.lost(units, func(i int) bool { return i != 1 })
	w.stats("out", 1, 0, 0)
	w.stats("in", 0, 1, 0)
}

func settleNeighbours(w *world) {
	const n = 30
	w.send("in", slices.Repeat([]string{"x"}, n)...)
	var units []*tablequeue.Unit
	for i, r := range w.claims(11, n) {
		lease := int64(11)
		if i%3 == 0 {
			lease = 99
		}
		u := settles(leaseOf(r, lease))[i%3]
		if i%2 == 0 {
			u.Rows = append(u.Rows, row("in", "more"))
		}
		if u.Verb != tablequeue.Delete {
			u.Rows = nil
		}
		units = append(units, u)
	}
	w.flush(units...)
	w.lost(units, func(i int) bool { return i%3 == 0 })
	w.stats("out", n/3, 0, 0)
}

func renewTells(w *world) {
	w.send("in", "1", "2", "3")
	rows, _ := w.claim(tablequeue.Claim{Limit: 3, Lease: 11, For: 20 * time.Minute})
	w.flush(deletes(leaseOf(rows[1], 11)))
	leases := []tablequeue.Lease{leaseOf(rows[0], 11), leaseOf(rows[1], 11), leaseOf(rows[2], 98)}
	lost, err := w.Queues.Renew(w.Context(), "in", leases, 50*time.Minute)
	w.ok(err)
	if want := []bool{false, true, true}; !slices.Equal(lost, want) {
		w.Errorf("lost %v, want %v", lost, want)
	}
	w.flush(deletes(leaseOf(rows[2], 11)))
	w.near("a renewed lease", 50*time.Minute)
}

func abandonOwn(w *world) {
	w.send("in", "1", "2")
	w.claim(tablequeue.Claim{Limit: 1, Lease: 11, For: long})
	w.claim(tablequeue.Claim{Limit: 1, Lease: 12, For: long, Owner: "other"})
	w.flush(sending1(late(time.Minute)))
	w.ok(w.Queues.Abandon(w.Context(), "in", "me", long))
	if r := w.claims(13, 1)[0]; idOf(r) != "1" || r.Count != 2 {
		w.Errorf("row %+v, want the abandoned one with its count kept", r)
	}
	w.empty()
}

func abandonClaims(w *world) {
	if w.Orphaner == nil {
		w.Skip("claims of this store are never unheard of")
	}
	w.send("in", "1", "2")
	w.claim(tablequeue.Claim{Limit: 1, Lease: 1 << 62, For: long})
	w.claim(tablequeue.Claim{Limit: 1, Lease: 12, For: long})
	w.ok(w.Orphaner.AbandonClaims(w.Context(), "in", []int64{1 << 62, 77}, long))
	if r := w.claims(13, 1)[0]; idOf(r) != "1" || r.Count != 2 {
		w.Errorf("row %+v, want that of the claim with its count kept", r)
	}
	w.empty()
}

func transact(w *world) {
	w.send("in", "1", "2", "3")
	for i, r := range w.claims(11, 3) {
		tx, err := w.Transactions.Begin(w.Context())
		w.ok(err)
		u := deletes(leaseOf(r, int64(11+i%2)), row("out", idOf(r)))
		if i == 2 {
			w.ok(tx.Rollback(w.Context()))
			continue
		}
		w.ok(tx.Complete(w.Context(), u))
		if lost := i == 1; u.Lost != lost {
			w.Errorf("row %s: lost %v, want %v", idOf(r), u.Lost, lost)
		}
		w.ok(tx.Rollback(w.Context()))
	}
	w.stats("in", 0, 2, 0)
	w.stats("out", 1, 0, 0)
}
