package storetest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// naming are the rules of rows with names.
var naming = []rule{
	{"naming-replaces", func(w *world) {
		w.installTimers("in", "out")
		w.send("in", "plain")
		w.flush(sending1(called("in", 1, "first"), called("in", 2, "other"), called("out", 1, "elsewhere")))
		w.flush(sending1(called("in", 1, "second")))
		w.holds("in", "plain", "other", "second")
		w.holds("out", "elsewhere")
		w.stats("in", 3, 0, 0)
	}},
	{"naming-removes", func(w *world) {
		w.installTimers("in", "out")
		w.flush(sending1(called("in", 1, "first"), called("in", 2, "other"), called("out", 1, "elsewhere")))
		w.flush(sending1(removal("in", 1)), sending1(removal("in", 3)))
		w.holds("in", "other")
		w.holds("out", "elsewhere")
		w.stats("in", 1, 0, 0)
		w.flush(sending1(called("in", 1, "again")))
		w.holds("in", "other", "again")
		w.stats("in", 2, 0, 0)
	}},
	{"naming-keeps-times", func(w *world) {
		w.installTimers("in")
		later, soon := called("in", 1, "later"), called("in", 1, "soon")
		later.After, soon.At, soon.TTL = long, time.Now().Add(-long), long
		w.flush(sending1(later))
		w.stats("in", 0, 0, 1)
		w.flush(sending1(soon))
		w.stats("in", 1, 0, 0)
		w.flush(sending1(later))
		w.stats("in", 0, 0, 1)
		if rows, next := w.claim(tablequeue.Claim{Limit: 1, Lease: 11, For: long}); len(rows) > 0 || next < long-time.Minute {
			w.Errorf("%d rows, the next in %v", len(rows), next)
		}
	}},
	{"naming-ends-a-lease", func(w *world) {
		w.installTimers("in", "out")
		w.flush(sending1(called("in", 1, "first"), called("in", 2, "second")))
		held := w.claims(11, 2)
		w.flush(sending1(called("in", 1, "again"), removal("in", 2)))
		leases := []tablequeue.Lease{leaseOf(held[0], 11), leaseOf(held[1], 11)}
		lost, err := w.Queues.Renew(w.Context(), "in", leases, long)
		w.ok(err)
		if !slices.Equal(lost, []bool{true, true}) {
			w.Errorf("lost %v of the replaced and the removed row", lost)
		}
		units := []*tablequeue.Unit{deletes(leaseOf(held[0], 11), row("out", "a")), deletes(leaseOf(held[1], 11), row("out", "b"))}
		w.flush(units...)
		if !units[0].Lost || !units[1].Lost {
			w.Errorf("the leases of a replaced and a removed row are lost: %v, %v", units[0].Lost, units[1].Lost)
		}
		w.holds("out")
		r := w.claims(12, 1)
		if w.ids(r, "again"); r[0].Count != 1 {
			w.Errorf("the count is %d", r[0].Count)
		}
	}},
	{"naming-with-a-completion", func(w *world) {
		w.installTimers("in", "out")
		w.send("in", "a", "b")
		w.flush(sending1(called("out", 1, "waits"), called("out", 2, "waits")))
		rows := w.claims(11, 2)
		held := deletes(leaseOf(rows[0], 11), row("out", "plain"), called("out", 1, "set"))
		lost := deletes(leaseOf(rows[1], 12), row("out", "lost"), called("out", 2, "lost"))
		w.flush(held, lost)
		if held.Lost || !lost.Lost {
			w.Errorf("lost %v of the holder, %v of another", held.Lost, lost.Lost)
		}
		w.named("out", "plain", "set", "waits")
	}},
	{"naming-in-one-flush", func(w *world) {
		w.installInbox()
		w.installTimers("in", "out")
		w.send("in", "a", "b")
		rows := w.claims(11, 2)
		w.flush(records(key(1, 1), called("out", 1, "last")))
		w.flush(
			sending1(called("out", 1, "last")), sending1(called("out", 1, "last"), called("out", 2, "last")),
			records(key(1, 1), called("out", 1, "known")), records(key(2, 1), called("out", 1, "last")), records(key(3, 1), called("out", 1, "last")),
			deletes(leaseOf(rows[0], 11), called("out", 1, "last")), deletes(leaseOf(rows[1], 11), called("out", 1, "last")),
		)
		w.named("out", "last", "last")
	}},
	{"naming-in-a-transaction", func(w *world) {
		w.installTimers("in", "out")
		w.flush(sending1(called("out", 1, "waits"), called("out", 2, "waits"), called("out", 3, "waits")))
		tx, err := w.Transactions.Begin(w.Context())
		w.ok(err)
		w.ok(tx.Rollback(w.Context()))
		tx, err = w.Transactions.Begin(w.Context())
		w.ok(err)
		w.ok(tx.Complete(w.Context(), &tablequeue.Unit{
			Verb: tablequeue.Record, Rows: []tablequeue.Row{called("out", 1, "set"), row("out", "plain"), removal("out", 2)},
		}))
		w.named("out", "plain", "set", "waits")
	}},
	{"naming-without-timers", func(w *world) {
		for _, r := range []tablequeue.Row{called("in", 1, "m"), removal("in", 1)} {
			err := w.Queues.Flush(w.Context(), []*tablequeue.Unit{sending1(r)})
			if w.is(err, tablequeue.ErrNoTimers); err != nil && w.Classify(err) != tablequeue.Refused {
				w.Errorf("class %d of %v, want refused", w.Classify(err), err)
			}
		}
		w.stats("in", 0, 0, 0)
	}},
	{"naming-is-added", func(w *world) {
		w.send("in", "a", "b")
		w.installTimers("in")
		w.flush(sending1(row("in", "c"), called("in", 1, "named")))
		w.named("in", "a", "b", "c", "named")
		if w.Examiner != nil {
			w.remarks(0)
		}
	}},
	{"naming-at-once", func(w *world) {
		w.installTimers("in", "out")
		other := w.Open(w.T)
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				var rows []tablequeue.Row
				for n := range byte(20) {
					if i%2 == 1 { // in the opposite order
						n = 19 - n
					}
					if rows = append(rows, called("out", n+1, "m")); (int(n)+i)%3 == 0 {
						rows[len(rows)-1] = removal("out", n+1)
					}
				}
				rows = append(rows, called("out", 100, "m"))
				store := []tablequeue.Store{w.Store, other}[i%2]
				for range 10 {
					ok(w.T, flushUnlocked(w.Context(), store, rows))
				}
			})
		}
		wg.Wait()
		if got := w.stored("out"); len(got) < 1 || len(got) > 21 {
			w.Errorf("there are %d rows under 21 names", len(got))
		}
	}},
}

// flushUnlocked sends rows. On a busy machine a row may be locked for longer than Flush waits: it
// is then called again, as the engine does.
func flushUnlocked(ctx context.Context, s tablequeue.Store, rows []tablequeue.Row) error {
	for began := time.Now(); ; {
		err := s.Queues.Flush(ctx, []*tablequeue.Unit{sending1(slices.Clone(rows)...)})
		if err == nil || s.Classify(err) != tablequeue.Locked || time.Since(began) > 2*time.Minute {
			return err
		}
	}
}

func ok(t testing.TB, err error) {
	if err != nil {
		t.Error(err)
	}
}

// installTimers installs queues with timers.
func (w *world) installTimers(queues ...string) {
	w.Helper()
	p := plan(queues...)
	for i := range p.Queues {
		p.Queues[i].Timers = true
	}
	for range 2 { // repeated it changes nothing
		w.ok(w.Topology.Install(w.Context(), p))
	}
}

// remarks checks the number of remarks about "in" as a queue with timers.
func (w *world) remarks(want int) {
	w.Helper()
	got, err := w.Examiner.Examine(w.Context(), transport.Queue{Name: "in", Timers: true})
	w.ok(err)
	if len(got) != want {
		w.Errorf("the remarks are %v", got)
	}
}

// named checks the rows of a queue, in any order.
func (w *world) named(queue string, ids ...string) {
	w.Helper()
	var want []string
	for _, id := range ids {
		want = append(want, string(row(queue, id).Headers))
	}
	slices.Sort(want)
	if got := slices.Sorted(slices.Values(w.stored(queue))); !slices.Equal(got, want) {
		w.Errorf("%q has %q, want %q", queue, got, want)
	}
}

func called(queue string, name byte, id string) tablequeue.Row {
	r := row(queue, id)
	r.Name = nameOf(name)
	return r
}

func removal(queue string, name byte) tablequeue.Row {
	return tablequeue.Row{Queue: queue, Name: nameOf(name), Removes: true}
}

func nameOf(name byte) [16]byte { return [16]byte{0: name, 7: 0x80, 15: 0xff} }
