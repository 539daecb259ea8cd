package transporttest

import (
	"context"
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast/transport"
)

var concurrencyRules = []rule{
	newRule("concurrency-reached", concurrencyReached,
		"With a concurrency of 1, 10 or 64, the endpoint handles that many messages at once, never more, and handles all "+
			"messages in the end."),
	newRule("concurrency-one", concurrencyOne,
		"With a concurrency of 1, messages are handled in the order in which they were sent."),
	newRule("concurrency-raised", concurrencyRaised,
		"If the concurrency is raised while messages are handled, the new concurrency is reached before one of them ends."),
	newRule("concurrency-lowered", concurrencyLowered,
		"If the concurrency is lowered while messages are handled, no handler is interrupted, and the new concurrency is "+
			"not exceeded afterwards."),
	newRule("concurrency-changed", concurrencyChanged,
		"Of several changes of the concurrency in quick succession, the last one applies."),
	newRule("concurrency-in-flight", concurrencyInFlight,
		"A message that is handled while the concurrency changes is completed in its first attempt and is not delivered "+
			"again."),
	newRule("concurrency-failing", concurrencyFailing,
		"If some messages fail a few times, all messages are handled in the end, and the attempts are counted."),
	newRule("concurrency-slow-one", concurrencySlowOne,
		"A slow handler delays neither other handlers nor their completions."),
}

func concurrencyReached(t *test) {
	c := t.open()
	for _, n := range []int{1, 10, 64} {
		want := ids("m", 2*n)
		_, q := t.queueOf(c, want...)
		w := t.crowd()
		w.begin(c, q, n)
		for done := range n {
			t.eventually("the concurrency is reached", func() bool {
				in, _, gone := w.now()
				return in+gone >= n+done
			})
			w.let()
		}
		w.finish(c, n, want...)
		t.empty(c, q)
	}
}

func concurrencyOne(t *test) {
	c, q := t.queueOf(t.open())
	want := ids("m", 60)
	var got []string
	all := make(chan struct{})
	p := t.pump(c, q, 1, -1, func(_ context.Context, d transport.Delivery) func(context.Context) error {
		if got = append(got, d.Message().ID); len(got) == len(want) {
			close(all)
		}
		return d.Complete
	})
	for some := range slices.Chunk(want, 7) {
		t.send(c, q, some...)
	}
	await(t, "all are handled", all)
	t.stop(p)
	t.sameOrder(got, want)
}

func concurrencyRaised(t *test) {
	want := ids("m", 20)
	c, q := t.queueOf(t.open(), want...)
	w := t.crowd()
	w.begin(c, q, 5)
	w.reaches(5)
	w.SetConcurrency(10)
	w.reaches(10)
	w.finish(c, 10, want...)
}

func concurrencyLowered(t *test) {
	want := ids("m", 30)
	c, q := t.queueOf(t.open(), want...)
	w := t.crowd()
	w.begin(c, q, 10)
	w.reaches(10)
	w.SetConcurrency(2)
	for range 8 {
		w.let()
	}
	t.eventually("eight of ten have ended", func() bool { in, _, done := w.now(); return done >= 8 && in <= 2 })
	w.forget()
	w.finish(c, 2, want...)
}

func concurrencyChanged(t *test) {
	want := ids("m", 30)
	c, q := t.queueOf(t.open(), want...)
	w := t.crowd()
	w.begin(c, q, 5)
	w.reaches(5)
	for _, n := range []int{10, 1, 7, 3} {
		w.SetConcurrency(n)
	}
	for in, _, done := w.now(); in > 3; in, _, done = w.now() {
		w.let()
		t.eventually("one has ended", func() bool { _, _, now := w.now(); return now > done })
		if now, _, _ := w.now(); now <= 3 {
			t.pass(shortDelay) // on a busy machine, handlers that the ten permitted may still be about to begin
		}
	}
	w.forget()
	w.finish(c, 3, want...)
}

func concurrencyInFlight(t *test) {
	c, q := t.queueOf(t.open(), "m")
	w := t.crowd()
	w.begin(c, q, 4)
	w.reaches(1)
	for _, n := range []int{1, 16, 2} {
		w.SetConcurrency(n)
	}
	more := ids("n", 10)
	t.send(c, q, more...)
	w.reaches(2)
	w.finish(c, 16, append(more, "m")...)
	t.empty(c, q)
}

func concurrencyFailing(t *test) {
	want := ids("m", 60)
	c, q := t.queueOf(t.open(), want...)
	var mu sync.Mutex
	seen := map[string]int{}
	completed := 0
	all := make(chan struct{})
	p := t.pump(c, q, 8, -1, func(_ context.Context, d transport.Delivery) func(context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		id := d.Message().ID
		seen[id]++
		t.attempt(d, seen[id])
		if failures := int(id[len(id)-1]-'0') % 4; seen[id] <= failures {
			return d.Retry
		}
		if completed++; completed == len(want) {
			close(all)
		}
		return d.Complete
	})
	await(t, "all are handled", all)
	t.stop(p)
	t.empty(c, q)
}

func concurrencySlowOne(t *test) {
	c, q := t.queueOf(t.open(), "slow")
	slow, others := make(chan struct{}), make(chan string, 100)
	began := make(chan struct{})
	p := t.pump(c, q, 4, -1, func(ctx context.Context, d transport.Delivery) func(context.Context) error {
		if d.Message().ID != "slow" {
			return func(ctx context.Context) error {
				defer func() { others <- d.Message().ID }()
				return d.Complete(ctx)
			}
		}
		close(began)
		select {
		case <-slow:
		case <-ctx.Done():
		}
		return d.Complete
	})
	await(t, "the slow one begins", began)
	want := ids("m", 40)
	t.send(c, q, want...)
	var got []string
	for range want {
		got = append(got, await(t, "the others are completed", others))
	}
	t.sameIDs(got, want)
	t.eventually("their completions have reached the broker", func() bool { return t.unsettled(c, q) <= 1 })
	close(slow)
	t.stop(p)
	t.empty(c, q)
}

// unsettled returns the number of unsettled messages of a queue if the driver knows it; else 0.
func (t *test) unsettled(c transport.Conn, q string) int64 {
	inspector, ok := c.(transport.Inspector)
	if !ok {
		return 0
	}
	stats, err := inspector.Inspect(t.ctx(), q)
	if err != nil || len(stats) != 1 {
		t.Fatalf("Inspect: %+v, %v", stats, err)
	}
	return max(0, stats[0].Unsettled) + max(0, stats[0].Ready)
}
