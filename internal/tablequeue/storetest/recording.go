package storetest

import (
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// inbox is the inbox of the rules.
const inbox = "in.handled"

// recording are the rules of [tablequeue.Inboxes].
var recording = []rule{
	{"recording-states", func(w *world) {
		w.installInbox()
		w.flush(records(key(1, 10)), records(key(2, 20)))
		keys := []transport.HandledKey{key(3, 30), key(2, 21), key(1, 10), key(1, 10)}
		got, err := w.Inboxes.FindHandled(w.Context(), inbox, keys)
		w.ok(err)
		want := []transport.HandledState{transport.NotHandled, transport.HandledOther, transport.Handled, transport.Handled}
		if !slices.Equal(got, want) {
			w.Errorf("the states are %v, want %v", got, want)
		}
	}},
	{"recording-with-rows", func(w *world) {
		w.installInbox()
		w.flush(records(key(1, 1), row("out", "a"), row("in", "b")))
		again, other := records(key(1, 1), row("out", "c")), records(key(2, 2), row("out", "d"))
		w.flush(again, other)
		if !again.Handled || other.Handled {
			w.Errorf("Handled is %t of a known key and %t of a new one", again.Handled, other.Handled)
		}
		w.holds("out", "a", "d")
		w.holds("in", "b")
	}},
	{"recording-one-key-twice-in-a-flush", func(w *world) {
		w.installInbox()
		first, second := records(key(1, 1), row("out", "a")), records(key(1, 1), row("out", "b"))
		w.flush(first, second)
		if first.Handled == second.Handled {
			w.Errorf("Handled is %t of both units", first.Handled)
		}
		w.sent(1)
	}},
	{"recording-nothing", func(w *world) {
		w.flush(&tablequeue.Unit{Verb: tablequeue.Record, Rows: []tablequeue.Row{row("out", "a"), row("in", "b")}})
		w.holds("out", "a")
		w.holds("in", "b")
	}},
	{"recording-refused", func(w *world) {
		w.installInbox()
		err := w.Queues.Flush(w.Context(), []*tablequeue.Unit{
			records(key(1, 1), row("out", "a"), row("missing", "b")),
		})
		w.is(err, transport.ErrNoQueue)
		w.sent(0)
		if got, err := w.Inboxes.FindHandled(w.Context(), inbox, []transport.HandledKey{key(1, 1)}); err != nil || got[0] != transport.NotHandled {
			w.Errorf("the key is %v (%v), though its rows were refused", got, err)
		}
	}},
	{"recording-with-a-completion", func(w *world) {
		w.installInbox()
		w.send("in", "a", "b", "c")
		rows, _ := w.claim(tablequeue.Claim{Limit: 3, Lease: 7, For: long})
		w.flush(records(key(2, 2)))
		fresh, known := deletes(tablequeue.Lease{Seq: rows[0].Seq, ID: 7}, row("out", "x")), deletes(tablequeue.Lease{Seq: rows[1].Seq, ID: 7}, row("out", "y"))
		lost := deletes(tablequeue.Lease{Seq: rows[2].Seq, ID: 8}, row("out", "z"))
		for i, u := range []*tablequeue.Unit{fresh, known, lost} {
			k := key(byte(i+1), uint32(i+1))
			u.Inbox, u.Key = inbox, &k
		}
		w.flush(fresh, known, lost)
		if fresh.Lost || fresh.Handled || known.Lost || !known.Handled || !lost.Lost {
			w.Errorf("lost and handled are %t %t, %t %t, %t", fresh.Lost, fresh.Handled, known.Lost, known.Handled, lost.Lost)
		}
		w.holds("out", "x")
		keys := []transport.HandledKey{key(1, 1), key(3, 3)}
		got, err := w.Inboxes.FindHandled(w.Context(), inbox, keys)
		w.ok(err)
		if !slices.Equal(got, []transport.HandledState{transport.Handled, transport.NotHandled}) {
			w.Errorf("the states are %v", got)
		}
		w.flush(deletes(tablequeue.Lease{Seq: rows[1].Seq, ID: 7})) // without a key
	}},
	{"recording-in-a-transaction", func(w *world) {
		w.installInbox()
		for i, want := range []bool{false, true} {
			tx, err := w.Transactions.Begin(w.Context())
			w.ok(err)
			u := records(key(1, 1), row("out", "a"))
			w.ok(tx.Complete(w.Context(), u))
			if u.Handled != want {
				w.Errorf("Handled is %t at transaction %d, want %t", u.Handled, i+1, want)
			}
			w.ok(tx.Rollback(w.Context()))
		}
		w.holds("out", "a")
		tx, err := w.Transactions.Begin(w.Context())
		w.ok(err)
		w.ok(tx.Complete(w.Context(), &tablequeue.Unit{Verb: tablequeue.Record, Rows: []tablequeue.Row{row("in", "b"), row("in", "c")}}))
		w.holds("in", "b", "c")
	}},
	{"recording-with-a-completion-in-a-transaction", func(w *world) {
		w.installInbox()
		w.send("in", "a", "b")
		rows, _ := w.claim(tablequeue.Claim{Limit: 2, Lease: 7, For: long})
		complete := func(seq, lease int64) *tablequeue.Unit {
			tx, err := w.Transactions.Begin(w.Context())
			w.ok(err)
			u := deletes(tablequeue.Lease{Seq: seq, ID: lease}, row("out", "x"))
			k := key(1, 1)
			u.Inbox, u.Key = inbox, &k
			w.ok(tx.Complete(w.Context(), u))
			return u
		}
		if u := complete(rows[0].Seq, 8); !u.Lost {
			w.Error("a lost lease was not noticed")
		}
		if u := complete(rows[0].Seq, 7); u.Lost || u.Handled {
			w.Errorf("a new key is lost %t, handled %t", u.Lost, u.Handled)
		}
		if u := complete(rows[1].Seq, 7); !u.Handled {
			w.Error("a known key was recorded again")
		}
		w.sent(1)
	}},
	{"recording-at-once", func(w *world) {
		w.installInbox()
		other := w.Open(w.T)
		var wg sync.WaitGroup
		var mu sync.Mutex
		fresh := 0
		for i := range 16 {
			wg.Go(func() {
				var units []*tablequeue.Unit
				for n := range byte(20) {
					if i%2 == 1 { // in the opposite order
						n = 19 - n
					}
					units = append(units, records(key(n, 1), row("out", "x")))
				}
				var err error
				for range 20 {
					if err = []tablequeue.Store{w.Store, other}[i%2].Queues.Flush(w.Context(), units); err == nil {
						break
					}
					if class := w.Classify(err); class != tablequeue.Conflict && class != tablequeue.Locked {
						break
					}
				}
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					w.Error(err)
				}
				for _, u := range units {
					if !u.Handled {
						fresh++
					}
				}
			})
		}
		wg.Wait()
		if fresh != 20 {
			w.Errorf("%d units were executed, want 20", fresh)
		}
		w.sent(20)
	}},
	{"recording-forgets", func(w *world) {
		w.installInbox()
		for n := range byte(10) {
			w.flush(records(key(n, 1)))
		}
		n, err := w.Inboxes.Forget(w.Context(), inbox, long, 100)
		w.ok(err)
		if n != 0 {
			w.Errorf("%d keys were removed that are not old", n)
		}
		n, err = w.Inboxes.Forget(w.Context(), inbox, 0, 4)
		w.ok(err)
		if n != 4 {
			w.Errorf("%d keys were removed, want 4", n)
		}
		keys := []transport.HandledKey{key(9, 0), key(200, 0)}
		n, err = w.Inboxes.ForgetKeys(w.Context(), inbox, keys)
		w.ok(err)
		if n != 1 {
			w.Errorf("%d named keys were removed, want 1", n)
		}
		stats, err := w.Inboxes.InspectInbox(w.Context(), inbox)
		w.ok(err)
		if stats.Name != inbox || stats.Rows != 5 || stats.LastHour != 5 || stats.Bytes <= 0 || stats.Oldest < 0 || stats.Oldest > time.Minute {
			w.Errorf("the inbox is %+v", stats)
		}
	}},
	{"recording-is-due-once", func(w *world) {
		w.installInbox()
		for i, want := range []bool{false, true, false} {
			pause := long
			if i == 1 {
				pause = 0
			}
			due, err := w.Inboxes.DueForForgetting(w.Context(), inbox, pause)
			w.ok(err)
			if due != want {
				w.Errorf("after %v it is due: %t, want %t", pause, due, want)
			}
		}
	}},
	{"recording-in-a-missing-inbox", func(w *world) {
		w.is(w.Inboxes.InboxState(w.Context(), inbox), transport.ErrNoQueue)
		_, err := w.Inboxes.FindHandled(w.Context(), inbox, []transport.HandledKey{key(1, 1)})
		w.is(err, transport.ErrNoQueue)
		units := []*tablequeue.Unit{records(key(1, 1), row("out", "a"))}
		w.is(w.Queues.Flush(w.Context(), units), transport.ErrNoQueue)
		w.sent(0)
	}},
	{"recording-is-removed", func(w *world) {
		w.installInbox()
		w.ok(w.Topology.Remove(w.Context(), []string{inbox}))
		w.is(w.Inboxes.InboxState(w.Context(), inbox), transport.ErrNoQueue)
		w.ok(w.Topology.Remove(w.Context(), []string{inbox}))
	}},
}

// installInbox installs the inbox.
func (w *world) installInbox() {
	w.Helper()
	p := plan("in", "out")
	p.Inboxes = []string{inbox}
	for range 2 { // repeated it changes nothing
		w.ok(w.Topology.Install(w.Context(), p))
	}
	w.ok(w.Inboxes.InboxState(w.Context(), inbox))
}

func key(n byte, sum uint32) transport.HandledKey {
	return transport.HandledKey{ID: [16]byte{0: n, 15: 0xff}, Sum: sum}
}

func records(k transport.HandledKey, rows ...tablequeue.Row) *tablequeue.Unit {
	return &tablequeue.Unit{Verb: tablequeue.Record, Inbox: inbox, Key: &k, Rows: rows}
}

// sent checks the number of rows of "out".
func (w *world) sent(want int) {
	w.Helper()
	if got := w.stored("out"); len(got) != want {
		w.Errorf("%d rows were sent, want %d", len(got), want)
	}
}

// holds checks the headers of the rows of a queue, in their order.
func (w *world) holds(queue string, ids ...string) {
	w.Helper()
	var want []string
	for _, id := range ids {
		want = append(want, string(row(queue, id).Headers))
	}
	if got := w.stored(queue); !slices.Equal(got, want) {
		w.Errorf("%q has %q, want %q", queue, got, want)
	}
}

// stored returns the headers of the rows of a queue.
func (w *world) stored(queue string) (headers []string) {
	w.Helper()
	last, err := w.Browsing.Last(w.Context(), queue)
	w.ok(err)
	page := tablequeue.Page{Queue: queue, Last: last, Limit: 1000}
	rows, err := w.Browsing.Browse(w.Context(), page)
	w.ok(err)
	for _, r := range rows {
		headers = append(headers, r.Headers)
	}
	return headers
}
