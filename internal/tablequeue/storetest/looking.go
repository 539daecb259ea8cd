package storetest

import (
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

var looking = []rule{
	{"a queue is browsed in pages, leased and delayed rows too", browses},
	{"a visible row is taken once, and messages are sent with it", takes},
	{"a purge removes visible rows", purges},
	{"the installer keeps existing queues, and may run at once", installs},
	{"a removed queue is gone with its subscriptions", removes},
	{"an inspection returns counts, the oldest age, and all queues", inspects},
}

func browses(w *world) {
	w.flush(sending1(late(time.Hour)))
	w.send("in", "1", "2", "3")
	w.claim(tablequeue.Claim{Limit: 1, Lease: 11, For: long})
	last, err := w.Browsing.Last(w.Context(), "in")
	w.ok(err)
	w.send("in", "later")
	var seen []string
	for p := (tablequeue.Page{Queue: "in", Last: last, Limit: 3}); ; {
		rows, err := w.Browsing.Browse(w.Context(), p)
		w.ok(err)
		if len(rows) == 0 {
			break
		}
		seen = append(seen, idsOf(rows)...)
		p.After = rows[len(rows)-1].Seq
	}
	if want := []string{"late", "1", "2", "3"}; !slices.Equal(seen, want) {
		w.Errorf("seen %q, want %q", seen, want)
	}
	if last, err := w.Browsing.Last(w.Context(), "out"); last != 0 || err != nil {
		w.Errorf("the last of an empty queue is %d, %v", last, err)
	}
}

func takes(w *world) {
	w.send("in", "1", "2")
	r, _ := w.claim(tablequeue.Claim{Limit: 1, Lease: 11, For: long})
	last, err := w.Browsing.Last(w.Context(), "in")
	w.ok(err)
	for _, want := range []struct {
		seq  int64
		lost bool
	}{{r[0].Seq, true}, {last, false}, {last, true}} {
		u := deletes(tablequeue.Lease{Seq: want.seq, ID: 77}, row("out", "sent"))
		w.ok(w.Browsing.Take(w.Context(), u))
		if u.Lost != want.lost {
			w.Errorf("row %d: lost %v, want %v", want.seq, u.Lost, want.lost)
		}
	}
	w.stats("in", 0, 1, 0)
	w.stats("out", 1, 0, 0)
}

func purges(w *world) {
	w.flush(sending1(late(time.Hour)))
	w.send("in", "1", "2", "3")
	w.send("out", "1")
	w.claim(tablequeue.Claim{Limit: 1, Lease: 11, For: long})
	for _, want := range []int64{2, 0} {
		n, err := w.Browsing.Purge(w.Context(), "in")
		if err != nil || n != want {
			w.Errorf("purged %d, %v, want %d", n, err, want)
		}
	}
	w.stats("in", 0, 1, 1)
	w.stats("out", 1, 0, 0)
}

func installs(w *world) {
	w.send("in", "1")
	var wg sync.WaitGroup
	for range 3 {
		s := w.Open(w.T)
		wg.Go(func() {
			if err := s.Topology.Install(w.Context(), plan("in", "out", "more")); err != nil {
				w.Error(err)
			}
		})
	}
	wg.Wait()
	w.send("more", "1")
	w.stats("in", 1, 0, 0)
}

func removes(w *world) {
	w.send("in", "1")
	w.send("out", "kept")
	for _, q := range []string{"in", "out"} {
		w.ok(w.Subscriptions.Subscribe(w.Context(), q, []string{"Shop.Placed"}))
	}
	for range 2 {
		w.ok(w.Topology.Remove(w.Context(), []string{"in", "never-there"}))
	}
	w.is(w.Topology.Exists(w.Context(), "in"), transport.ErrNoQueue)
	w.stats("out", 1, 0, 0)
	all, err := w.Subscriptions.Subscriptions(w.Context())
	w.ok(err)
	if want := []tablequeue.Subscription{{Type: "Shop.Placed", Queue: "out"}}; !slices.Equal(all, want) {
		w.Errorf("subscriptions %+v, want %+v", all, want)
	}
	w.ok(w.Topology.Install(w.Context(), plan("in")))
	w.stats("in", 0, 0, 0)
	w.send("in", "new")
	w.ids(w.claims(1, 1), "new")
}

func inspects(w *world) {
	w.send("in", "1", "2", "3")
	w.claim(tablequeue.Claim{Limit: 1, Lease: 11, For: long})
	late, dead := row("in", "late"), row("in", "dead")
	late.After, dead.TTL = time.Hour, time.Microsecond
	w.flush(sending1(late, dead))
	w.stats("in", 2, 1, 1)
	s, err := w.Topology.Inspect(w.Context(), "in")
	w.ok(err)
	if s.Oldest <= 0 || s.Oldest > time.Hour {
		w.Errorf("the oldest is %v old", s.Oldest)
	}
	names, err := w.Topology.List(w.Context())
	w.ok(err)
	if !slices.Contains(names, "in") || !slices.Contains(names, "out") {
		w.Errorf("queues %q", names)
	}
}
