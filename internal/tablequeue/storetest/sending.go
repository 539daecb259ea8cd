package storetest

import (
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

var sending = []rule{
	{"rows are kept as they are", sendWhole},
	{"rows of a unit keep their order, and tell their seq", sendOrdered},
	{"a row for a missing queue is refused with all of its batch", sendRefused},
	{"a row is visible at its time and worthless at another", sendTimed},
	{"a delayed row is cancelled until it is claimed", cancels},
	{"subscriptions are added once and removed", subscriptions},
	{"expired rows are swept without a receiver", sweeps},
}

func sendWhole(w *world) {
	bodies := [][]byte{nil, {}, []byte("\x00\xff"), []byte(strings.Repeat("large", 300_000)), []byte("ünï")}
	headers := []string{
		`{}`, `{"quote":"it's \"q\" \\ $1 :x @p"}`, `{"ключ":"значение 🙂"}`, `{"nul":"\u0000","fffd":"\ufffd"}`,
		`{"long":"` + strings.Repeat("0123456789", 2000) + `"}`,
	}
	var rows []tablequeue.Row
	for i, b := range bodies {
		rows = append(rows, tablequeue.Row{Queue: "in", ID: "id-" + strings.Repeat("ü'", i*50), Headers: []byte(headers[i]), Body: b})
	}
	w.flush(sending1(rows...))
	got := w.claims(11, len(rows))
	for i, r := range rows {
		if g := got[i]; g.Headers != string(r.Headers) || string(g.Body) != string(r.Body) {
			w.Errorf("row %d: headers %.80s, %d bytes", i, g.Headers, len(g.Body))
		}
	}
}

func sendOrdered(w *world) {
	var ids []string
	u := &tablequeue.Unit{}
	for i := range 50 {
		r := row("in", string(rune('a'+i%26))+string(rune('0'+i/26)))
		r.WantSeq = i%2 == 0
		u.Rows = append(u.Rows, r, row("out", "beside"))
		ids = append(ids, r.ID)
	}
	w.flush(u)
	got := w.claims(11, len(ids))
	w.ids(got, ids...)
	for i, r := range got {
		want := int64(0)
		if i%2 == 0 {
			want = r.Seq
		}
		if seq := u.Rows[2*i].Seq; seq != want {
			w.Errorf("row %d: told seq %d, want %d", i, seq, want)
		}
	}
}

func sendRefused(w *world) {
	w.send("in", "1")
	r := w.claims(11, 1)[0]
	units := []*tablequeue.Unit{
		sending1(row("out", "neighbour")),
		{Verb: tablequeue.Delete, Queue: "in", Lease: leaseOf(r, 11), Rows: []tablequeue.Row{row("out", "sent"), row("missing", "sent")}},
	}
	err := w.Queues.Flush(w.Context(), units)
	w.is(err, transport.ErrNoQueue)
	if err != nil && w.Classify(err) != tablequeue.Refused {
		w.Errorf("class %d of %v, want refused", w.Classify(err), err)
	}
	w.stats("out", 0, 0, 0)
	w.stats("in", 0, 1, 0)
	w.is(w.Topology.Exists(w.Context(), "missing"), transport.ErrNoQueue)
	w.ok(w.Topology.Exists(w.Context(), "in"))
	_, err = w.Topology.Inspect(w.Context(), "missing")
	w.is(err, transport.ErrNoQueue)
}

func sendTimed(w *world) {
	past, future, brief, dead := row("in", "past"), row("in", "future"), row("in", "brief"), row("in", "dead")
	past.At = time.Now().Add(-48 * time.Hour)
	future.At = time.Now().Add(48 * time.Hour)
	brief.After, brief.TTL = 20*time.Millisecond, time.Hour
	dead.TTL = time.Microsecond
	w.flush(sending1(past, future, brief, dead))
	rows := w.claims(11, 3)
	w.ids(rows, "past", "brief", "dead")
	for _, r := range rows {
		if r.Expired != (idOf(r) == "dead") {
			w.Errorf("row %s: expired %v", idOf(r), r.Expired)
		}
	}
	_, next := w.claim(tablequeue.Claim{Limit: 1, Lease: 12, For: long})
	if next > long || next < long-time.Minute {
		w.Errorf("next in %v, want the end of the leases", next)
	}
	w.stats("in", 0, 2, 1)
}

func cancels(w *world) {
	late := row("in", "late")
	late.After, late.WantSeq = time.Hour, true
	now := row("in", "now")
	now.WantSeq = true
	u := sending1(late, now)
	w.flush(u)
	w.claims(11, 1)
	for i, want := range []bool{true, false} {
		for range 2 {
			got, err := w.Queues.Cancel(w.Context(), "in", u.Rows[i].Seq)
			w.ok(err)
			if got != want {
				w.Errorf("row %d: cancelled %v, want %v", i, got, want)
			}
			want = false
		}
	}
	w.stats("in", 0, 1, 0)
}

func subscriptions(w *world) {
	ctx := w.Context()
	for range 2 {
		w.ok(w.Subscriptions.Subscribe(ctx, "in", []string{"Shop.Placed", "shop.placed", "it's"}))
	}
	w.ok(w.Subscriptions.Subscribe(ctx, "out", []string{"Shop.Placed"}))
	w.ok(w.Subscriptions.Unsubscribe(ctx, "in", []string{"it's", "never"}))
	all, err := w.Subscriptions.Subscriptions(ctx)
	w.ok(err)
	got := map[tablequeue.Subscription]int{}
	for _, s := range all {
		got[s]++
	}
	for _, s := range []tablequeue.Subscription{{Type: "Shop.Placed", Queue: "in"}, {Type: "shop.placed", Queue: "in"}, {Type: "Shop.Placed", Queue: "out"}} {
		if got[s] != 1 {
			w.Errorf("%+v is there %d times", s, got[s])
		}
	}
	if len(all) != 3 {
		w.Errorf("subscriptions %+v", all)
	}
}

func sweeps(w *world) {
	if w.Sweeper == nil {
		w.Skip("this store removes what has expired when its turn comes")
	}
	held, dead, alive := row("in", "held"), row("in", "dead"), row("in", "alive")
	held.TTL, dead.TTL, alive.TTL = time.Microsecond, time.Microsecond, time.Hour
	w.flush(sending1(held))
	w.claims(11, 1)
	w.flush(sending1(dead, alive))
	w.ok(tablequeue.Sweep(w.Context(), w.Sweeper)) // the installer has noted the queues just now
	w.stats("in", 1, 0, 0)
	w.Due(w.T)
	w.ok(tablequeue.Sweep(w.Context(), w.Sweeper))
	if n, err := w.Browsing.Purge(w.Context(), "in"); n != 1 || err != nil {
		w.Errorf("%d rows are left beside the leased one, %v, want what is alive", n, err)
	}
	if last, err := w.Browsing.Last(w.Context(), "in"); last == 0 || err != nil {
		w.Errorf("what was being handled is gone, %v", err)
	}
}
