package transporttest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/pprof"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/transport"
)

var stopRules = []rule{
	newRule("stop-waits", stopWaits,
		"An endpoint that stops lets its handlers finish, without cancelling their context, and completes their messages."),
	newRule("stop-cuts", stopCuts,
		"When the time for handlers is over their context ends with the cause ErrStopping, and their messages return to "+
			"the queue."),
	newRule("stop-returns", stopReturns,
		"An endpoint that stops returns messages that it has not begun to handle: none is lost, and none is handled twice."),
	newRule("stop-under-load", stopUnderLoad,
		"Endpoints that stop and start under load handle every message exactly once."),
	newRule("start-again", startAgain,
		"Messages that are sent while the endpoint is stopped are received when it starts again, on the same connection."),
	newRule("open-fails", openFails, "Open returns an error, and leaves no goroutine behind, if its context has ended."),
	newRule("close-twice", closeTwice, "A second Close does nothing and returns nil."),
	newRule("close-ends-receive", closeEndsReceive, "Close ends waiting Receive calls with ErrClosed."),
	newRule("close-ends-all", closeEndsAll,
		"After Close everything that was opened from the connection fails with ErrClosed."),
	newRule("close-returns", closeReturns,
		"Close returns unsettled messages to their queue at once, before their leases end."),
	newRule("close-no-goroutines", closeNoGoroutines, "No goroutine of the driver is left when Close has returned."),
}

func stopWaits(t *test) {
	c := t.open()
	q := t.queue(c, "in")
	t.send(c, q, "m")
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
	c := t.open()
	q := t.queue(c, "in")
	t.send(c, q, "m")
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
	c := t.open()
	q := t.queue(c, "in")
	want := ids("m", 40)
	t.send(c, q, want...)
	w := newCrowd()
	p := t.pump(c, q, 4, -1, w.handle)
	t.eventuallyIn(w, 4)
	l := c.Limits()
	t.eventually("some wait for their turn", func() bool { return l.Prefetch || l.Unbuffered || p.Stats().Buffered > 0 })
	p.end()
	t.eventually("they return to the queue", func() bool { return !l.FreeRelease || p.Stats().Buffered == 0 })
	w.open()
	t.stop(p)
	_, _, done := w.now()
	again := newCrowd()
	again.open()
	again.of, again.attempts = w.of, w.attempts
	p = t.pump(c, q, 4, -1, again.handle)
	t.eventuallyDone(again, len(want)-done)
	t.stop(p)
	again.once(t, c, want)
	t.empty(c, q)
}

func stopUnderLoad(t *test) {
	c := t.open()
	q := t.queue(c, "in")
	want := ids("m", 200)
	w := newCrowd()
	w.open()
	ctx := t.ctx()
	var sender sync.WaitGroup
	sender.Go(func() {
		for _, id := range want {
			if _, err := c.Dispatch(ctx, []transport.Operation{to(q, id)}); err != nil {
				t.Errorf("Dispatch: %v", err)
			}
		}
	})
	for _, part := range []int{4, 2, 1} {
		p := t.pump(c, q, 8, -1, w.handle)
		t.eventuallyDone(w, len(want)/part)
		t.stop(p)
	}
	sender.Wait()
	w.once(t, c, want)
	t.empty(c, q)
}

func startAgain(t *test) {
	c := t.open()
	q := t.queue(c, "in")
	w := newCrowd()
	w.open()
	t.stop(t.pump(c, q, 2, -1, w.handle))
	t.send(c, q, "m-1", "m-2")
	p := t.pump(c, q, 2, -1, w.handle)
	t.eventuallyDone(w, 2)
	t.stop(p)
	w.once(t, c, []string{"m-1", "m-2"})
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
	c := t.open()
	q := t.queue(c, "in")
	t.receiver(c, q)
	for i := range 2 {
		if err := c.Close(); err != nil {
			t.Errorf("Close, call %d: %v", i+1, err)
		}
	}
}

func closeEndsReceive(t *test) {
	c := t.open()
	q := t.queue(c, "in")
	var calls []<-chan received
	for range max(1, c.Limits().ParallelReceive) {
		calls = append(calls, receiving(t.ctx(), t.receiver(c, q), 5))
	}
	t.pass(20 * time.Millisecond)
	if err := c.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	for _, call := range calls {
		got := await(t, "Receive returns when the connection is closed", call)
		t.fails("Receive", got.err, transport.ErrClosed)
	}
}

func closeEndsAll(t *test) {
	c := t.open()
	q := t.queue(c, "in")
	t.send(c, q, "m")
	r := t.receiver(c, q)
	d := t.one(r, "m")
	if err := c.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	ctx := t.ctx()
	check := func(what string, err error) {
		t.Helper()
		t.fails(what+" after Close", err, transport.ErrClosed)
	}
	_, err := c.Dispatch(ctx, []transport.Operation{to(q, "late")})
	check("Dispatch", err)
	_, err = c.OpenReceiver(ctx, transport.ReceiverOptions{Queue: q})
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
		check(v.name, v.settle(ctx, d))
	}
	if err := r.Close(); err != nil {
		t.Errorf("close a receiver of a closed connection: %v", err)
	}
	t.holds(t.open(), q, "m")
}

func closeReturns(t *test) {
	one, two := t.open(), t.open()
	q := t.queue(one, "in")
	want := ids("m", 5)
	t.send(one, q, want...)
	r := t.receiver(one, q)
	t.take(r, 3)
	waits := t.receiver(two, q)
	began := time.Now()
	if err := one.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	t.all(waits, want...)
	if lease := two.Limits().Lease; lease > 0 && time.Since(began) > lease/2 {
		t.Errorf("they came after %v, where leases last %v", time.Since(began), lease)
	}
	t.empty(two, q)
}

func closeNoGoroutines(t *test) {
	labelled(t, "close", func() {
		c := t.open()
		in, out := t.queue(c, "in"), t.queue(c, "out")
		t.send(c, in, ids("m", 20)...)
		t.take(t.receiverWith(c, in, 2), 2) // never settled
		w := newCrowd()
		w.open()
		p := t.pump(c, in, 4, -1, w.handle)
		t.eventuallyDone(w, 10)
		t.stop(p)
		receiving(t.ctx(), t.receiver(c, out), 1) // ended by Close
		_, err := c.Dispatch(t.ctx(), []transport.Operation{to(t.name("missing"), "m")})
		t.fails("Dispatch", err, transport.ErrNoQueue)
		_, _ = c.Dispatch(ended(), []transport.Operation{to(out, "m")}) // with any result
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
}

// labelled runs f and checks that no goroutine is left that it, or one of its goroutines, started. Goroutines inherit
// the labels by which they are found.
func labelled(t *test, what string, f func()) {
	t.Helper()
	label := what + t.suffix
	ctx := pprof.WithLabels(context.Background(), pprof.Labels("kit", label))
	pprof.SetGoroutineLabels(ctx)
	defer pprof.SetGoroutineLabels(context.Background())
	f()
	pprof.SetGoroutineLabels(context.Background())
	var stacks []string
	var err error
	over := time.Now().Add(5 * time.Second) // an ending goroutine may take a moment
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for time.Now().Before(over) {
		if stacks, err = goroutines(label); err != nil {
			t.Fatalf("goroutines: %v", err)
		}
		if len(stacks) == 0 {
			return
		}
		<-tick.C
	}
	t.Errorf("goroutines are left:\n%s", strings.Join(stacks, "\n"))
}

var errNoProfile = errors.New("there is no goroutine profile")

// goroutines returns the stacks of goroutines with a label. The profile has paragraphs, with the labels in one line
// each.
func goroutines(label string) (stacks []string, err error) {
	profile := pprof.Lookup("goroutine")
	if profile == nil {
		return nil, errNoProfile
	}
	var text bytes.Buffer
	if err := profile.WriteTo(&text, 1); err != nil {
		return nil, err
	}
	var paragraph []string
	for lines := bufio.NewScanner(&text); lines.Scan(); {
		if line := lines.Text(); line != "" {
			paragraph = append(paragraph, line)
			continue
		}
		stacks = appendLabelled(stacks, paragraph, label)
		paragraph = nil
	}
	return appendLabelled(stacks, paragraph, label), nil
}

func appendLabelled(stacks, paragraph []string, label string) []string {
	text := strings.Join(paragraph, "\n")
	if !strings.Contains(text, fmt.Sprintf("%q", label)) {
		return stacks
	}
	return append(stacks, text)
}
