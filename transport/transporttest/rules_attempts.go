package transporttest

import (
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var attemptRules = []rule{
	{
		"attempts-first",
		"The first hand-out of a message is its attempt 1, exact or not.",
		nil, attemptsFirst,
	},
	{
		"attempts-counted",
		"Each hand-out after a Retry is one attempt more where attempts are exact, and elsewhere more than the first and " +
			"never more than there were.",
		nil, attemptsCounted,
	},
	{
		"attempts-shared",
		"Attempts are counted with the message, whichever connection it was handed out over.",
		[]capability{exact},
		attemptsShared,
	},
	{
		"attempts-own",
		"Each message has a count of its own: retrying one leaves those of others alone.",
		nil, attemptsOwn,
	},
	{
		"attempts-closed",
		"A delivery that was not settled before its connection closed is handed out again, and has used an attempt up.",
		nil, attemptsClosed,
	},
	{
		"attempts-released",
		"Release uses no attempt up where Limits.FreeRelease is true.",
		[]capability{freeRelease},
		attemptsReleased,
	},
	{
		"attempts-of-copies",
		"A copy begins again at attempt 1, also one in the same queue.",
		nil, attemptsOfCopies,
	},
	{
		"attempts-of-delayed",
		"A delayed message has not been handed out before: it begins at attempt 1.",
		[]capability{delays},
		attemptsOfDelayed,
	},
	{
		"attempts-of-counted",
		"In a queue that was installed as Counted each hand-out after the first is counted exactly, one lost with its connection included.",
		[]capability{countedQueues},
		attemptsOfCounted,
	},
}

func attemptsFirst(t *test) {
	c := t.open()
	q := t.queue(c, "in")
	t.send(c, q, ids("m", 20)...)
	for _, d := range t.take(t.receiver(c, q), 20) {
		if n := d.Attempt().N; n != 1 {
			t.Errorf("the first hand-out of %q is attempt %d", d.Message().ID, n)
		}
		t.complete(d)
	}
}

// attempt checks the attempt of a hand-out, this being the nth that Receive returned.
func (t *test) attempt(d transport.Delivery, n int) {
	t.Helper()
	a := d.Attempt()
	switch {
	case a.Exact && a.N != n:
		t.Errorf("hand-out %d of %q is attempt %d, which is said to be exact", n, d.Message().ID, a.N)
	case a.N > n || a.N < min(2, n):
		t.Errorf("hand-out %d of %q is attempt %d", n, d.Message().ID, a.N)
	}
}

// attemptAfterStop is attempt for a message that was given back to a queue while something received from it: a driver that
// holds messages ahead, or a request on its way. That counts where releases are not free.
func (t *test) attemptAfterStop(c transport.Conn, d transport.Delivery, n int) {
	t.Helper()
	if l := c.Limits(); !l.Prefetch && !l.Unbuffered || l.FreeRelease {
		t.attempt(d, n)
	} else if a := d.Attempt(); a.N < min(2, n) || a.Exact && a.N < n {
		t.Errorf("hand-out %d of %q is attempt %d", n, d.Message().ID, a.N)
	}
}

func attemptsCounted(t *test) {
	c := t.open()
	q := t.queue(c, "in")
	t.send(c, q, "m")
	r := t.receiver(c, q)
	wasExact := false
	for n := 1; n <= 6; n++ {
		d := t.one(r, "m")
		t.attempt(d, n)
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
		calls[by] = nil // the other connection is to have it next
		if calls[1-by] == nil {
			calls[1-by] = receiving(t.ctx(), rs[1-by], 1)
		}
		t.do("Retry", got.ds[0].Retry)
	}
}

// attemptsEither waits for a message on either of two receivers. One that is not being
// asked may have it all the same, prefetched: after a while it is asked too.
func attemptsEither(t *test, rs []transport.Receiver, calls []<-chan received) (got received, by int) {
	patience := time.NewTimer(200 * time.Millisecond)
	defer patience.Stop()
	for {
		select {
		case got = <-calls[0]:
			return got, 0
		case got = <-calls[1]:
			return got, 1
		case <-patience.C:
			for i := range calls {
				if calls[i] == nil {
					calls[i] = receiving(t.ctx(), rs[i], 1)
				}
			}
		}
	}
}

func attemptsOwn(t *test) {
	c := t.open()
	q := t.queue(c, "in")
	want := map[string]int{"often": 4, "twice": 2, "once": 1}
	t.send(c, q, "often", "twice", "once")
	r := t.receiver(c, q)
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
	c := t.open()
	q := t.queue(c, "in")
	t.send(c, q, "m-1", "m-2")
	t.take(t.receiver(c, q), 2)
	if err := c.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	c = t.open()
	ds := t.take(t.receiver(c, q), 2)
	t.sameIDs(idsOf(ds), []string{"m-1", "m-2"})
	for _, d := range ds {
		t.attempt(d, 2)
	}
	t.complete(ds...)
	t.empty(c, q)
}

func attemptsReleased(t *test) {
	c := t.open()
	q := t.queue(c, "in")
	t.send(c, q, "m")
	r := t.receiver(c, q)
	for range 3 {
		d := t.one(r, "m")
		t.attempt(d, 1)
		t.do("Release", d.Release)
	}
	d := t.one(r, "m")
	t.attempt(d, 1)
	t.do("Retry", d.Retry)
	d = t.one(r, "m")
	t.attempt(d, 2)
	t.do("Release", d.Release)
	d = t.one(r, "m")
	t.attempt(d, 2)
	t.complete(d)
}

func attemptsOfCopies(t *test) {
	c := t.open()
	in, out := t.queue(c, "in"), t.queue(c, "out")
	t.send(c, in, "m")
	r := t.receiver(c, in)
	t.do("Retry", t.one(r, "m").Retry)
	d := t.one(r, "m")
	t.dispatch(c,
		transport.Operation{Message: d.Message(), Queue: in},
		transport.Operation{Message: d.Message(), Queue: out},
	)
	t.complete(d)
	for _, r := range []transport.Receiver{r, t.receiver(c, out)} {
		d := t.one(r, "m")
		t.attempt(d, 1)
		t.complete(d)
	}
}

func attemptsOfDelayed(t *test) {
	c := t.open()
	q := t.queue(c, "in")
	op := to(q, "m")
	op.After = shortDelay
	t.dispatch(c, op)
	r := t.receiver(c, q)
	d := t.one(r, "m")
	t.attempt(d, 1)
	t.do("Retry", d.Retry)
	d = t.one(r, "m")
	t.attempt(d, 2)
	t.complete(d)
}

func attemptsOfCounted(t *test) {
	c := t.open()
	q := t.countedQueue(c, "in")
	t.send(c, q, "m")
	for n := 1; n <= 4; n++ {
		d := t.take(t.receiverWith(c, q, 1), 1)[0]
		if a := d.Attempt(); a.N != n || n > 1 && !a.Exact {
			t.Errorf("hand-out %d of a counted queue is attempt %+v", n, a)
		}
		if err := c.Close(); err != nil {
			t.Fatalf("Close: %v", err)
		}
		c = t.open()
	}
}
