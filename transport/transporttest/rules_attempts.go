package transporttest

import (
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var attemptRules = []rule{
	newRule("attempts-first", attemptsFirst,
		"The first delivery of a message is attempt 1, whether attempts are exact or not."),
	newRule("attempts-counted", attemptsCounted,
		"If attempts are exact, each delivery after a Retry has the next attempt number. Otherwise the number is more than "+
			"1 and at most the number of deliveries."),
	newRule("attempts-shared", attemptsShared, "Attempts are counted per message, across connections.", exact),
	newRule("attempts-own", attemptsOwn,
		"Each message has its own count: a retry of one message does not change the counts of others."),
	newRule("attempts-closed", attemptsClosed,
		"A message that is not settled when its connection closes is delivered again, as the next attempt."),
	newRule("attempts-released", attemptsReleased,
		"Release does not count as an attempt if Limits.FreeRelease is true.", freeRelease),
	newRule("attempts-of-copies", attemptsOfCopies, "The attempts of a copy start again at 1, also in the same queue."),
	newRule("attempts-of-delayed", attemptsOfDelayed,
		"The attempts of a delayed message start at 1: the delay does not count as a delivery.", delays),
	newRule("attempts-of-counted", attemptsOfCounted,
		"In a queue that is installed as Counted, each delivery after the first is counted exactly, including a delivery "+
			"that is lost with its connection.", countedQueues),
}

func attemptsFirst(t *test) {
	c, q := t.queueOf(t.open(), ids("m", 20)...)
	for _, d := range t.take(t.receiver(c, q), 20) {
		if n := d.Attempt().N; n != 1 {
			t.Errorf("the first delivery of %q is attempt %d", d.Message().ID, n)
		}
		t.complete(d)
	}
}

// attempt checks the attempt of the nth delivery of a message.
func (t *test) attempt(d transport.Delivery, n int) {
	t.Helper()
	a := d.Attempt()
	switch {
	case a.Exact && a.N != n:
		t.Errorf("delivery %d of %q is attempt %d, and reported as exact", n, d.Message().ID, a.N)
	case a.N > n || a.N < min(2, n):
		t.Errorf("delivery %d of %q is attempt %d", n, d.Message().ID, a.N)
	}
}

// attemptAfterStop is attempt for a message that returned to a queue while a receiver was open: the
// driver may have prefetched it, which counts if releases are not free.
func (t *test) attemptAfterStop(c transport.Conn, d transport.Delivery, n int) {
	t.Helper()
	if l := c.Limits(); !l.Prefetch && !l.Unbuffered || l.FreeRelease {
		t.attempt(d, n)
	} else if a := d.Attempt(); a.N < min(2, n) || a.Exact && a.N < n {
		t.Errorf("delivery %d of %q is attempt %d", n, d.Message().ID, a.N)
	}
}

func attemptsCounted(t *test) {
	_, _, r := t.receiverOf(t.open(), "m")
	wasExact := false
	for n := 1; n <= 6; n++ {
		d := t.nth(r, n)
		if n > 2 && wasExact != d.Attempt().Exact {
			t.Errorf("Exact was %v in attempt %d and is not in the next", wasExact, n-1)
		}
		wasExact = d.Attempt().Exact
		if n < 6 {
			t.do("Retry", d.Retry)
		} else {
			t.complete(d)
		}
	}
}

func attemptsShared(t *test) {
	one, two := t.open(), t.open()
	q := t.queue(one, "in")
	rs := []transport.Receiver{t.receiverWith(one, q, 1), t.receiverWith(two, q, 1)}
	calls := []<-chan received{receiving(t.ctx(), rs[0], 1), receiving(t.ctx(), rs[1], 1)}
	t.send(one, q, "m")
	for n := 1; n <= 6; n++ {
		got, by := attemptsEither(t, rs, calls)
		if got.err != nil || len(got.ds) != 1 {
			t.Fatalf("Receive returned %d deliveries and the error %v", len(got.ds), got.err)
		}
		t.attempt(got.ds[0], n)
		calls[by] = nil // the other connection receives it next
		if calls[1-by] == nil {
			calls[1-by] = receiving(t.ctx(), rs[1-by], 1)
		}
		t.do("Retry", got.ds[0].Retry)
	}
}

// attemptsEither receives a message from either of two receivers. The other one may have prefetched
// it, and is tried after a while.
func attemptsEither(t *test, rs []transport.Receiver, calls []<-chan received) (got received, by int) {
	wait := time.NewTimer(200 * time.Millisecond)
	defer wait.Stop()
	for {
		select {
		case got = <-calls[0]:
			return got, 0
		case got = <-calls[1]:
			return got, 1
		case <-wait.C:
			for i := range calls {
				if calls[i] == nil {
					calls[i] = receiving(t.ctx(), rs[i], 1)
				}
			}
		}
	}
}

func attemptsOwn(t *test) {
	c, q, r := t.receiverOf(t.open(), "often", "twice", "once")
	want := map[string]int{"often": 4, "twice": 2, "once": 1}
	seen := map[string]int{}
	for range 4 + 2 + 1 {
		d := t.take(r, 1)[0]
		id := d.Message().ID
		seen[id]++
		t.attempt(d, seen[id])
		if seen[id] < want[id] {
			t.do("Retry", d.Retry)
		} else {
			t.complete(d)
		}
	}
	t.empty(c, q)
}

func attemptsClosed(t *test) {
	c, q := t.queueOf(t.open(), "m-1", "m-2")
	t.take(t.receiver(c, q), 2)
	c = t.reopen(c)
	ds := t.take(t.receiver(c, q), 2)
	t.sameIDs(idsOf(ds), []string{"m-1", "m-2"})
	for _, d := range ds {
		t.attempt(d, 2)
	}
	t.complete(ds...)
	t.empty(c, q)
}

func attemptsReleased(t *test) {
	_, _, r := t.receiverOf(t.open(), "m")
	for range 3 {
		t.do("Release", t.nth(r, 1).Release)
	}
	t.do("Retry", t.nth(r, 1).Retry)
	t.do("Release", t.nth(r, 2).Release)
	t.complete(t.nth(r, 2))
}

func attemptsOfCopies(t *test) {
	c, in, r := t.receiverOf(t.open(), "m")
	out := t.queue(c, "out")
	t.do("Retry", t.one(r, "m").Retry)
	d := t.one(r, "m")
	m := d.Message()
	t.dispatch(c, transport.Operation{Message: m, Queue: in}, transport.Operation{Message: m, Queue: out})
	t.complete(d)
	t.complete(t.nth(r, 1), t.nth(t.receiver(c, out), 1))
}

func attemptsOfDelayed(t *test) {
	c, q, r := t.receiverOf(t.open())
	op, _ := delayed(to(q, "m"))
	t.dispatch(c, op)
	t.do("Retry", t.nth(r, 1).Retry)
	t.complete(t.nth(r, 2))
}

func attemptsOfCounted(t *test) {
	c := t.open()
	q := t.install(c, transport.Queue{Name: t.name("in"), Counted: true})
	t.send(c, q, "m")
	for n := 1; n <= 4; n++ {
		d := t.take(t.receiverWith(c, q, 1), 1)[0]
		if a := d.Attempt(); a.N != n || n > 1 && !a.Exact {
			t.Errorf("delivery %d of a counted queue is attempt %+v", n, a)
		}
		c = t.reopen(c)
	}
}
