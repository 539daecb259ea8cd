package transporttest

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var inboxRules = []rule{
	newRule("inbox-handled", inboxHandled,
		"A key is NotHandled until Store has recorded it, and Handled afterwards, on every connection. Another Store of it "+
			"fails with ErrAlreadyHandled and sends nothing.", storing),
	newRule("inbox-other", inboxOther,
		"A key with a recorded id and another checksum is HandledOther. Store of it fails with ErrAlreadyHandled.", storing),
	newRule("inbox-many", inboxMany,
		"FindHandled returns the states of many keys in their order, also if a key is there twice, and none for no "+
			"keys.", storing),
	newRule("inbox-at-once", inboxAtOnce,
		"If several calls of Store with one key run concurrently, one succeeds. The others fail with ErrAlreadyHandled and "+
			"send nothing.", storing),
	newRule("inbox-reopened", inboxReopened,
		"Recorded keys outlive the connection, and a second Install of the inbox keeps them.", storing),
	newRule("inbox-own", inboxOwn, "An inbox does not have the keys of another one.", storing),
	newRule("inbox-missing", inboxMissing,
		"FindHandled, Store and a transaction fail with ErrNoQueue if the inbox does not exist. Nothing is sent.", storing),
	newRule("inbox-verified", inboxVerified,
		"Verify reports a missing inbox of a plan and does not create it. After Install it reports nothing.",
		storing, verifying),
	newRule("inbox-removed", inboxRemoved,
		"Remove deletes a named inbox with its keys. FindHandled fails with ErrNoQueue then, and after another Install the "+
			"keys are NotHandled. Other inboxes stay.", storing, removing),
	newRule("inbox-remembered", inboxRemembered,
		"A key that is older than Env.Remember is removed from the inbox, and can be recorded again. Younger keys "+
			"stay.", storing, sweeping),
	newRule("inbox-inspected", inboxInspected,
		"InspectInbox returns the number of ids in a small inbox, and ErrNoQueue for a missing one.",
		storing, inboxing),
	newRule("inbox-forgotten", inboxForgotten,
		"ForgetHandled removes the named ids, whatever the checksum, and returns the number of those that were there. They "+
			"can be recorded again. Other ids stay.", storing, inboxing),
}

func inboxHandled(t *test) {
	o := t.outbox(t.open())
	other := o.over(t.open())
	other.are(transport.NotHandled, key(1))
	o.store(key(1), "m")
	o.are(transport.Handled, key(1))
	other.are(transport.Handled, key(1))
	o.duplicate(key(1))
	other.duplicate(key(1))
	o.are(transport.NotHandled, key(2))
	t.holds(o.conn, o.queue, "m")
}

func inboxOther(t *test) {
	o := t.outbox(t.open())
	o.store(key(1))
	other := key(1)
	other.Sum++
	o.are(transport.HandledOther, other)
	o.duplicate(other)
	o.are(transport.Handled, key(1))
	t.empty(o.conn, o.queue)
}

func inboxMany(t *test) {
	o := t.outbox(t.open())
	o.are(transport.NotHandled)
	zero, last := transport.HandledKey{}, transport.HandledKey{Sum: 1<<32 - 1}
	for i := range last.ID {
		last.ID[i] = 0xff
	}
	recorded := append(keys(50), zero, last)[1:] // the id of the first is zero too
	for _, k := range recorded {
		o.store(k)
	}
	other := zero
	other.Sum = 1
	asked, want := []transport.HandledKey{other}, []transport.HandledState{transport.HandledOther}
	for i, k := range slices.Concat(recorded, recorded) {
		asked = append(asked, k, key(1000+i))
		want = append(want, transport.Handled, transport.NotHandled)
	}
	o.states(asked, want)
}

func inboxAtOnce(t *test) {
	o := t.outbox(t.open())
	other := o.over(t.open())
	var want []string
	for round := range 5 {
		var stored atomic.Int64
		var wg sync.WaitGroup
		id := fmt.Sprint("m-", round)
		for i := range 12 {
			wg.Go(func() {
				err := []outbox{o, other}[i%2].Store(t.ctx(), o.entry(key(round), id))
				if err == nil {
					stored.Add(1)
				} else {
					t.fails("Store", err, transport.ErrAlreadyHandled)
				}
			})
		}
		wg.Wait()
		if n := stored.Load(); n != 1 {
			t.Errorf("%d calls of Store with one key succeeded, want 1", n)
		}
		want = append(want, id)
	}
	t.holds(o.conn, o.queue, want...)
}

func inboxReopened(t *test) {
	o := t.outbox(t.open())
	o.store(key(1))
	o = o.over(t.reopen(o.conn))
	o.are(transport.Handled, key(1))
	plan := transport.Plan{Inboxes: []string{o.inbox}}
	t.must("Install", as[transport.Installer](t, o.conn).Install(t.ctx(), plan))
	o.are(transport.Handled, key(1))
	o.duplicate(key(1))
	t.empty(o.conn, o.queue)
}

func inboxOwn(t *test) {
	o := t.outbox(t.open())
	other := o
	other.inbox = t.inbox(o.conn, "others")
	o.store(key(1), "m")
	other.are(transport.NotHandled, key(1))
	other.store(key(1), "of the other")
	o.store(key(2))
	other.are(transport.NotHandled, key(2))
	t.holds(o.conn, o.queue, "m", "of the other")
}

func inboxMissing(t *test) {
	o := t.outbox(t.open())
	missing := o
	missing.inbox = t.name("missing")
	_, err := missing.FindHandled(t.ctx(), missing.inbox, keys(1))
	t.fails("FindHandled", err, transport.ErrNoQueue)
	entry := missing.entry(key(1), "m")
	t.fails("Store", missing.Store(t.ctx(), entry), transport.ErrNoQueue)
	t.fails("a transaction", missing.inTx(t.ctx(), entry, nothingWritten), transport.ErrNoQueue)
	t.empty(o.conn, o.queue)
	o.store(key(1))
}

func inboxRemoved(t *test) {
	c := t.open()
	o := t.outbox(c)
	kept := o
	kept.inbox = t.inbox(c, "kept")
	o.store(key(1))
	kept.store(key(1))
	for range 2 {
		t.must("Remove", as[transport.Remover](t, c).Remove(t.ctx(), o.inbox))
	}
	_, err := o.FindHandled(t.ctx(), o.inbox, keys(1))
	t.fails("FindHandled in an inbox that was removed", err, transport.ErrNoQueue)
	t.must("Install", as[transport.Installer](t, c).Install(t.ctx(), transport.Plan{Inboxes: []string{o.inbox}}))
	o.are(transport.NotHandled, key(1))
	kept.are(transport.Handled, key(1))
}

func inboxVerified(t *test) {
	c := t.open()
	v := as[transport.Verifier](t, c)
	plan := transport.Plan{Inboxes: []string{t.name("handled")}}
	for range 2 {
		found := t.differences(v.Verify(t.ctx(), plan))
		if !slices.ContainsFunc(found, func(f transport.Finding) bool {
			return f.State == transport.Missing && f.Name == plan.Inboxes[0]
		}) {
			t.Errorf("inbox %q is missing, and Verify reports %v", plan.Inboxes[0], found)
		}
	}
	t.must("Install", as[transport.Installer](t, c).Install(t.ctx(), plan))
	if found := t.differences(v.Verify(t.ctx(), plan)); len(found) > 0 {
		t.Errorf("after Install Verify reports %v", found)
	}
}

func inboxRemembered(t *test) {
	const remember = 2 * time.Second
	o := t.outbox(t.remembering(remember))
	o.store(key(0))
	o.are(transport.Handled, key(0))
	t.pass(remember + clockGrain)
	for n := 1; ; n++ {
		began := time.Now()
		young := key(n)
		o.store(young)
		t.harness.Sweep(t.TB, t.tr, o.inbox)
		states, err := o.FindHandled(t.ctx(), o.inbox, []transport.HandledKey{key(0), young})
		t.must("FindHandled", err)
		if states[1] != transport.Handled && time.Since(began) < remember-clockGrain {
			t.Fatalf("a key is %s after less than %v", stateNames[states[1]], remember)
		}
		if states[0] == transport.NotHandled {
			break
		}
		t.pass(20 * time.Millisecond)
	}
	o.store(key(0), "again")
	t.holds(o.conn, o.queue, "again")
}

func inboxInspected(t *test) {
	c := t.open()
	o, in := t.outbox(c), as[transport.InboxInspector](t, c)
	began := time.Now()
	stats, err := in.InspectInbox(t.ctx(), o.inbox)
	t.must("InspectInbox", err)
	if stats.Name != o.inbox || stats.Rows != 0 || stats.LastHour != 0 || stats.Oldest != 0 {
		t.Errorf("the inbox is empty, and InspectInbox returns %+v", stats)
	}
	for _, k := range keys(7) {
		o.store(k)
	}
	t.pass(2 * clockGrain)
	stats, err = in.InspectInbox(t.ctx(), o.inbox)
	t.must("InspectInbox", err)
	if stats.Rows != 7 || stats.LastHour != 7 || stats.Bytes <= 0 {
		t.Errorf("the inbox has 7 ids, and InspectInbox returns %+v", stats)
	}
	if age := time.Since(began) + clockGrain; stats.Oldest <= 0 || stats.Oldest > age {
		t.Errorf("the oldest id is %v old, want more than 0 and at most %v", stats.Oldest, age)
	}
	_, err = in.InspectInbox(t.ctx(), t.name("missing"))
	t.fails("InspectInbox", err, transport.ErrNoQueue)
}

func inboxForgotten(t *test) {
	c := t.open()
	o, in := t.outbox(c), as[transport.InboxInspector](t, c)
	all := keys(5)
	for _, k := range all[:4] {
		o.store(k)
	}
	other := all[1]
	other.Sum++
	n, err := in.ForgetHandled(t.ctx(), o.inbox, []transport.HandledKey{all[0], other, all[4]})
	t.must("ForgetHandled", err)
	if n != 2 {
		t.Errorf("ForgetHandled returned %d, want 2 ids that were there", n)
	}
	o.are(transport.NotHandled, all[0], all[1], all[4])
	o.are(transport.Handled, all[2], all[3])
	o.store(all[0], "again")
	t.holds(c, o.queue, "again")
	if n, err := in.ForgetHandled(t.ctx(), o.inbox, nil); n != 0 || err != nil {
		t.Errorf("ForgetHandled of no keys returned %d and %v", n, err)
	}
	_, err = in.ForgetHandled(t.ctx(), t.name("missing"), all)
	t.fails("ForgetHandled", err, transport.ErrNoQueue)
}
