package transporttest

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var browseRules = []rule{
	newRule("browse", browse,
		"Browse lists each ready message once, complete and in order. A message that is not taken is delivered "+
			"afterwards.", browsing),
	newRule("browse-end", browseEnd,
		"Messages that are sent after Browse are not listed, so the iteration ends.", browsing),
	newRule("browse-take", browseTake, "Take removes only the given message, and sends the operations.", browsing),
	newRule("browse-take-refused", browseTakeRefused,
		"Take with an operation to a queue that does not exist fails, sends nothing, and keeps the message.", browsing),
	newRule("browse-taken", browseTaken,
		"Take of a message that was taken fails with ErrNotFound and sends nothing.", browsing),
	newRule("browse-limit", browseLimit,
		"If the broker limits deliveries, listing a queue and taking its last message over and over removes no other message: "+
			"Browse, Next or Take fails with ErrDeliveryLimit before.", browsing, limiting),
	newRule("browse-no-queue", browseNoQueue, "Browse of a queue that does not exist fails with ErrNoQueue.", browsing),
	newRule("purge", purge,
		"Purge deletes the ready messages and returns their number. Unsettled and delayed messages stay, and later "+
			"messages arrive.", purging),
	newRule("purge-no-queue", purgeNoQueue, "Purge of a queue that does not exist fails with ErrNoQueue.", purging),
}

func (t *test) browse(c transport.Conn, queue string) transport.Cursor {
	t.Helper()
	cur, err := as[transport.Browser](t, c).Browse(t.ctx(), queue)
	t.must("Browse", err)
	return cur
}

func (t *test) endBrowse(cur transport.Cursor) {
	t.Helper()
	for range 2 {
		t.ok("close a cursor", cur.Close())
	}
}

func (t *test) next(cur transport.Cursor, limit int) []*transport.Message {
	t.Helper()
	ms, err := cur.Next(t.ctx(), limit)
	t.must("Next", err)
	if len(ms) > limit {
		t.Fatalf("Next returned %d messages, over its limit of %d", len(ms), limit)
	}
	return ms
}

// page returns the messages of one Next, which has to list want of them.
func (t *test) page(cur transport.Cursor, want int) []*transport.Message {
	t.Helper()
	ms := t.next(cur, want)
	if len(ms) < want {
		t.Fatalf("Next listed %d messages of %d", len(ms), want)
	}
	if t.harness.Unordered {
		slices.SortFunc(ms, func(a, b *transport.Message) int { return strings.Compare(a.ID, b.ID) })
	}
	return ms
}

func browse(t *test) {
	want := ids("m", 7)
	c, q := t.queueOf(t.open(), want...)
	cur := t.browse(c, q)
	var got []string
	for ms := t.next(cur, 3); len(ms) > 0; ms = t.next(cur, 3) {
		for _, m := range ms {
			t.sameMessage(m, message(m.ID))
			got = append(got, m.ID)
		}
	}
	t.endBrowse(cur)
	t.sameOrder(got, want)
	t.holds(c, q, want...)
}

func browseEnd(t *test) {
	c, q := t.queueOf(t.open(), "m-1", "m-2")
	cur := t.browse(c, q)
	t.send(c, q, "late")
	var got []string
	for ms := t.next(cur, 1); len(ms) > 0 && len(got) < 10; ms = t.next(cur, 1) {
		got = append(got, ms[0].ID)
		t.send(c, q, "later")
		t.must("Take", cur.Take(t.ctx(), ms[0], nil))
	}
	t.endBrowse(cur)
	t.sameOrder(got, []string{"m-1", "m-2"})
	t.holds(c, q, "late", "later", "later")
}

func browseTake(t *test) {
	c, q := t.queueOf(t.open(), ids("m", 5)...)
	out := t.queue(c, "out")
	cur := t.browse(c, q)
	ms := t.page(cur, 5)
	t.must("Take", cur.Take(t.ctx(), ms[0], nil))
	t.must("Take", cur.Take(t.ctx(), ms[3], toAll(out, []string{"sent-1", "sent-2"})))
	t.endBrowse(cur)
	t.holds(c, out, "sent-1", "sent-2")
	t.holds(c, q, "m-0001", "m-0002", "m-0004")
}

func browseTakeRefused(t *test) {
	c, q := t.queueOf(t.open(), "m-1", "m-2")
	out := t.queue(c, "out")
	cur := t.browse(c, q)
	ms := t.page(cur, 2)
	ops := []transport.Operation{to(out, "sent"), to(t.name("missing"), "lost")}
	t.fails("Take", cur.Take(t.ctx(), ms[0], ops), transport.ErrNoQueue)
	t.ok("Take after one that was refused", cur.Take(t.ctx(), ms[1], ops[:1]))
	t.endBrowse(cur)
	t.holds(c, q, "m-1")
	t.holds(c, out, "sent")
}

func browseTaken(t *test) {
	c, q := t.queueOf(t.open(), "m-1", "m-2")
	out := t.queue(c, "out")
	cur := t.browse(c, q)
	m := t.page(cur, 2)[0]
	t.must("Take", cur.Take(t.ctx(), m, nil))
	t.fails("Take", cur.Take(t.ctx(), m, []transport.Operation{to(out, "sent")}), transport.ErrNotFound)
	t.endBrowse(cur)
	t.holds(c, q, "m-2")
	t.empty(c, out)
}

func browseLimit(t *test) {
	const most = 3
	want := ids("m", 8)
	c, q := t.queueOf(t.open())
	t.harness.LimitDeliveries(t.TB, t.tr, q, most)
	t.send(c, q, want...)
	for range 2 * most {
		taken, err := t.takeLast(c, q)
		if err != nil && !errors.Is(err, transport.ErrDeliveryLimit) {
			t.Fatalf("%v, want nil or ErrDeliveryLimit", err)
		}
		want = slices.DeleteFunc(want, func(id string) bool { return id == taken })
	}
	t.holds(c, q, want...)
}

// takeLast lists a queue and takes the last message. It returns the message's id, or the first
// error.
func (t *test) takeLast(c transport.Conn, queue string) (id string, err error) {
	t.Helper()
	cur, err := as[transport.Browser](t, c).Browse(t.ctx(), queue)
	if err != nil {
		return "", err
	}
	defer t.endBrowse(cur)
	ms, err := cur.Next(t.ctx(), 100)
	if err != nil || len(ms) == 0 {
		return "", err
	}
	last := ms[len(ms)-1]
	if err := cur.Take(t.ctx(), last, nil); err != nil {
		return "", err
	}
	return last.ID, nil
}

func browseNoQueue(t *test) {
	c := t.open()
	_, err := as[transport.Browser](t, c).Browse(t.ctx(), t.name("missing"))
	t.fails("Browse", err, transport.ErrNoQueue)
}

func purge(t *test) {
	c, q := t.queueOf(t.open(), ids("m", 7)...)
	other := t.queue(c, "other")
	t.send(c, other, "neighbour")
	r := t.receiverWith(c, q, 2)
	held := t.take(r, 2)
	for _, want := range []int64{5, 0} {
		if n := t.purge(c, q); n != want {
			t.Errorf("Purge = %d, want %d", n, want)
		}
	}
	t.send(c, q, "after")
	t.complete(held...)
	t.all(r, "after")
	if c.Limits().MaxDelay > 0 {
		for after := time.Second; !t.purgeUnderDelay(c, after); after *= 2 {
		}
	}
	t.holds(c, other, "neighbour")
}

// purgeUnderDelay checks that Purge leaves a delayed message. It returns false where Purge took
// longer than the delay, so that the message may have been ready.
func (t *test) purgeUnderDelay(c transport.Conn, after time.Duration) bool {
	t.Helper()
	q := t.queue(c, "in-"+after.String())
	later := to(q, "delayed")
	later.After = after
	sent := time.Now()
	t.dispatch(c, to(q, "ready"), later)
	n := t.purge(c, q)
	inTime := time.Since(sent) < after
	if !inTime && after < timeout {
		return false
	}
	if !inTime || n != 1 {
		t.Fatalf("Purge = %d after %v, want 1 within %v", n, time.Since(sent), after)
	}
	t.all(t.receiver(c, q), "delayed")
	return true
}

func (t *test) purge(c transport.Conn, queue string) int64 {
	t.Helper()
	n, err := as[transport.Purger](t, c).Purge(t.ctx(), queue)
	t.must("Purge", err)
	return n
}

func purgeNoQueue(t *test) {
	c := t.open()
	_, err := as[transport.Purger](t, c).Purge(t.ctx(), t.name("missing"))
	t.fails("Purge", err, transport.ErrNoQueue)
}
