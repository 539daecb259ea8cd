package transporttest

import (
	"bytes"
	"context"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/transport"
)

var stopRules = []rule{
	newRule("stop-waits", stopWaits,
		"A stopping endpoint lets its handlers finish without cancelling their contexts, and completes their messages."),
	newRule("stop-cuts", stopCuts,
		"When the time for handlers is over, their contexts end with the cause ErrStopping, and their messages return to "+
			"the queue."),
	newRule("stop-returns", stopReturns,
		"A stopping endpoint returns the messages whose handling has not begun to the queue. No message is lost or handled "+
			"twice."),
	newRule("stop-under-load", stopUnderLoad,
		"Endpoints that stop and start under load handle every message exactly once."),
	newRule("start-again", startAgain,
		"Messages that are sent while the endpoint is stopped are received when it starts again on the same connection."),
	newRule("open-fails", openFails, "If its context has ended, Open returns an error and leaves no goroutine running."),
	newRule("close-twice", closeTwice, "A second Close does nothing and returns nil."),
	newRule("close-ends-receive", closeEndsReceive, "Close ends blocked Receive calls with ErrClosed."),
	newRule("close-ends-all", closeEndsAll,
		"After Close, everything that was opened from the connection fails with ErrClosed."),
	newRule("close-returns", closeReturns,
		"Close returns unsettled messages to their queue at once, before their leases end."),
	newRule("close-completed", closeCompleted,
		"A message that was completed right before its receiver and the connection are closed is not delivered again, in "+
			"whatever order many were completed."),
	newRule("close-no-goroutines", closeNoGoroutines, "When Close has returned, no goroutine of the driver is running."),
}

func stopWaits(t *test) {
	c, q := t.queueOf(t.open(), "m")
	began, finish := make(chan struct{}), make(chan struct{})
	p := t.pump(c, q, 2, -1, func(ctx context.Context, d transport.Delivery) func(context.Context) error {
		close(began)
		select {
		case <-finish:
		case <-ctx.Done():
		}
		if err := ctx.Err(); err != nil {
			t.Errorf("the handler's context ended: %v", context.Cause(ctx))
		}
		return d.Complete
	})
	await(t, "the handler begins", began)
	p.end()
	select {
	case <-p.over:
		t.Error("the pump stopped while a message was handled")
	default:
	}
	close(finish)
	t.stop(p)
	t.empty(c, q)
}

func stopCuts(t *test) {
	c, q := t.queueOf(t.open(), "m")
	began := make(chan struct{})
	var cause error
	p := t.pump(c, q, 2, 0, func(ctx context.Context, d transport.Delivery) func(context.Context) error {
		close(began)
		<-ctx.Done()
		cause = context.Cause(ctx)
		return d.Retry
	})
	await(t, "the handler begins", began)
	t.stop(p)
	t.fails("the cause of the end of the handler's context", cause, pump.ErrStopping)
	d := t.one(t.receiver(c, q), "m")
	t.attemptAfterStop(c, d, 2)
	t.complete(d)
	t.empty(c, q)
}

func stopReturns(t *test) {
	want := ids("m", 40)
	c, q := t.queueOf(t.open(), want...)
	w := t.crowd()
	w.begin(c, q, 4)
	w.reaches(4)
	l := c.Limits()
	t.eventually("some wait for their turn", func() bool { return l.Prefetch || l.Unbuffered || w.Stats().Buffered > 0 })
	w.end()
	t.eventually("they return to the queue", func() bool { return !l.FreeRelease || w.Stats().Buffered == 0 })
	w.open()
	t.stop(w.pumping)
	w.handles(c, q, 4, len(want))
	w.once(c, want)
	t.empty(c, q)
}

func stopUnderLoad(t *test) {
	c, q := t.queueOf(t.open())
	want := ids("m", 200)
	w := t.crowd()
	w.open()
	ctx := t.ctx()
	var sender sync.WaitGroup
	sender.Go(func() {
		for _, id := range want {
			t.ok("Dispatch", dispatch(ctx, c, to(q, id)))
		}
	})
	for _, part := range []int{4, 2, 1} {
		w.handles(c, q, 8, len(want)/part)
	}
	sender.Wait()
	w.once(c, want)
	t.empty(c, q)
}

func startAgain(t *test) {
	c, q := t.queueOf(t.open())
	w := t.crowd()
	w.open()
	w.handles(c, q, 2, 0)
	t.send(c, q, "m-1", "m-2")
	w.handles(c, q, 2, 2)
	w.once(c, []string{"m-1", "m-2"})
	t.empty(c, q)
}

func openFails(t *test) {
	labelled(t, "open-fails", func() {
		c, err := t.tr.Open(ended(), transport.Env{Endpoint: "kit"})
		if err == nil {
			t.Error("Open with a context that has ended succeeded")
			_ = c.Close() // nothing of it is needed
		}
	})
}

func closeTwice(t *test) {
	c, _, _ := t.receiverOf(t.open())
	t.ok("Close", c.Close())
	t.ok("a second Close", c.Close())
}

func closeEndsReceive(t *test) {
	c, q := t.queueOf(t.open())
	var calls []<-chan received
	for range max(1, c.Limits().ParallelReceive) {
		calls = append(calls, receiving(t.ctx(), t.receiver(c, q), 5))
	}
	t.pass(20 * time.Millisecond)
	t.ok("Close", c.Close())
	for _, call := range calls {
		got := await(t, "Receive returns when the connection is closed", call)
		t.fails("Receive", got.err, transport.ErrClosed)
	}
}

func closeEndsAll(t *test) {
	c, q, r := t.receiverOf(t.open(), "m")
	d := t.one(r, "m")
	t.ok("Close", c.Close())
	ctx := t.ctx()
	check := func(what string, err error) {
		t.Helper()
		t.fails(what+" after Close", err, transport.ErrClosed)
	}
	check("Dispatch", dispatch(ctx, c, to(q, "late")))
	_, err := c.OpenReceiver(ctx, transport.ReceiverOptions{Queue: q})
	check("OpenReceiver", err)
	check("Receive", await(t, "Receive returns", receiving(ctx, r, 1)).err)
	if i, ok := c.(transport.Installer); ok {
		check("Install", i.Install(ctx, transport.Plan{Queues: []transport.Queue{{Name: q}}}))
	}
	if s, ok := c.(transport.Subscriber); ok {
		check("Subscribe", s.Subscribe(ctx, q, []string{t.kind("Ordered")}))
		check("Unsubscribe", s.Unsubscribe(ctx, q, []string{t.kind("Ordered")}))
	}
	if i, ok := c.(transport.Inspector); ok {
		_, err = i.Inspect(ctx, q)
		check("Inspect", err)
	}
	if b, ok := c.(transport.Browser); ok {
		_, err = b.Browse(ctx, q)
		check("Browse", err)
	}
	for _, v := range verbs(d) {
		check(v.name, v.settle(ctx))
	}
	t.ok("close a receiver of a closed connection", r.Close())
	t.holds(t.open(), q, "m")
}

func closeReturns(t *test) {
	want := ids("m", 5)
	one, q, r := t.receiverOf(t.open(), want...)
	t.take(r, 3)
	two := t.open()
	waits := t.receiver(two, q)
	began := time.Now()
	t.ok("Close", one.Close())
	t.all(waits, want...)
	if lease := two.Limits().Lease; lease > 0 && time.Since(began) > lease/2 {
		t.Errorf("they came after %v, where leases last %v", time.Since(began), lease)
	}
	t.empty(two, q)
}

func closeCompleted(t *test) {
	want := ids("m", 200)
	one, q, r := t.receiverOf(t.open(), want...)
	ctx := t.ctx()
	var left []string
	var all sync.WaitGroup
	for i, d := range t.take(r, len(want)) {
		if i%2 == 0 { // each completed message has an unsettled one before it
			left = append(left, d.Message().ID)
			continue
		}
		all.Go(func() { t.ok("Complete", d.Complete(ctx)) })
	}
	all.Wait()
	t.close(r)
	t.close(one)
	two := t.open()
	t.all(t.receiver(two, q), left...)
	t.empty(two, q)
}

func closeNoGoroutines(t *test) {
	labelled(t, "close", func() {
		c, in := t.queueOf(t.open(), ids("m", 20)...)
		out := t.queue(c, "out")
		t.take(t.receiverWith(c, in, 2), 2) // never settled
		w := t.crowd()
		w.open()
		w.handles(c, in, 4, 10)
		receiving(t.ctx(), t.receiver(c, out), 1) // ended by Close
		t.fails("Dispatch", dispatch(t.ctx(), c, to(t.name("missing"), "m")), transport.ErrNoQueue)
		_ = dispatch(ended(), c, to(out, "m")) // with any result
		t.ok("Close", c.Close())
	})
}

// labelled runs f and checks that no goroutine is left that it, or one of its goroutines, started.
// Goroutines inherit the labels by which they are found.
func labelled(t *test, what string, f func()) {
	t.Helper()
	label := what + t.suffix
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels("kit", label)))
	defer pprof.SetGoroutineLabels(context.Background())
	f()
	pprof.SetGoroutineLabels(context.Background())
	over := time.Now().Add(t.ending)
	stacks := goroutines(t, label)
	for ; len(stacks) > 0 && time.Now().Before(over); stacks = goroutines(t, label) {
		t.pass(2 * time.Millisecond)
	}
	if len(stacks) > 0 {
		t.Errorf("goroutines are left:\n%s", strings.Join(stacks, "\n"))
	}
}

// goroutines returns the stacks of goroutines with a label. The profile has paragraphs, with the
// labels in one line each.
func goroutines(t *test, label string) (stacks []string) {
	t.Helper()
	var text bytes.Buffer
	t.must("the profile of goroutines", pprof.Lookup("goroutine").WriteTo(&text, 1))
	for paragraph := range strings.SplitSeq(text.String(), "\n\n") {
		if strings.Contains(paragraph, strconv.Quote(label)) {
			stacks = append(stacks, paragraph)
		}
	}
	return stacks
}
