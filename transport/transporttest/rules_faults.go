package transporttest

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var faultRules = []rule{
	newRule("fault-cut", faultCut,
		"After a lost connection, the same Conn and Receiver work again without a call to reopen them.", breaking),
	newRule("fault-stale", faultStale,
		"A delivery from before a lost connection never settles a newer delivery: its settle fails with ErrLeaseLost, "+
			"unless its lease is still valid.", breaking),
	newRule("fault-lost", faultLost,
		"A Delivery that is a transport.LossDetector reports after a lost connection that it is lost, and not before, nor after "+
			"it was settled.", breaking),
	newRule("fault-away", faultAway,
		"While the broker is unavailable, Dispatch and Receive fail instead of blocking. When it is available again, they "+
			"work again.", breaking),
	newRule("fault-listening", faultListening,
		"A Receiver that is a transport.Listener says while Receive waits at an empty queue that the broker answers, denies it "+
			"while the broker is unavailable, and says so again soon after it is available.", breaking),
	newRule("fault-half-open", faultHalfOpen,
		"On a connection without answers, Dispatch returns when its context ends, and does not report a lost message as "+
			"accepted.", breaking),
	newRule("fault-half-open-receive", faultHalfOpenReceive,
		"On a connection without answers, Receive returns soon after its context ends, and Close returns too.", breaking),
	newRule("fault-close-away", faultCloseAway,
		"Close returns while the broker is unavailable, and leaves no goroutine running.", breaking),
	newRule("fault-load", faultLoad,
		"If connections are lost under load, no message whose Dispatch or CompleteWith succeeded is lost.", breaking),
	newRule("fault-restart", faultRestart,
		"Messages, including delayed ones if the driver offers delays, survive a restart of the broker, and the same Conn "+
			"works again.", restarting),
	newRule("fault-restart-load", faultRestartLoad,
		"A restart of the broker under load loses no message. Sends and receives fail during the restart and then work "+
			"again. A message that CompleteWith forwards arrives once.", restarting),
}

// broken opens a transport whose connection can be broken.
func (t *test) broken() (transport.Conn, Link) {
	t.Helper()
	tr, link := t.harness.Break(t.TB)
	t.tr = tr
	t.Cleanup(link.Resume)
	c := t.open()
	t.Cleanup(link.Resume) // before it is closed
	return c, link
}

// persist calls f until it succeeds.
func (t *test) persist(what string, f func(context.Context) error) {
	t.Helper()
	ctx := t.ctx()
	err := f(ctx)
	for ; err != nil && ctx.Err() == nil; err = f(ctx) {
		t.pass(10 * time.Millisecond)
	}
	t.must(what, err)
}

// unlessLost returns err, or nil if it means that the message is delivered again.
func unlessLost(err error) error {
	if errors.Is(err, transport.ErrLeaseLost) {
		return nil
	}
	return err
}

// oneOver receives the next delivery, repeating failed calls.
func (t *test) oneOver(r transport.Receiver) (d transport.Delivery) {
	t.Helper()
	t.persist("Receive", func(ctx context.Context) error {
		ds, err := gather(ctx, r, 1)
		if err == nil {
			d = ds[0]
		}
		return err
	})
	return d
}

// sendOver sends a message, repeating failed calls.
func (t *test) sendOver(c transport.Conn, queue, id string) {
	t.Helper()
	t.persist("Dispatch", func(ctx context.Context) error { return dispatch(ctx, c, to(queue, id)) })
}

func faultCut(t *test) {
	c, link := t.broken()
	_, q, r := t.receiverOf(c)
	for _, id := range ids("m", 3) {
		link.Cut()
		t.persist("Dispatch", func(ctx context.Context) error {
			err := dispatch(ctx, c, to(q, id))
			if errors.Is(err, transport.ErrOutcomeUnknown) {
				return nil // it may arrive or not; the last message below arrives
			}
			return err
		})
	}
	t.sendOver(c, q, "last")
	for last := false; !last; {
		d := t.oneOver(r)
		t.persist("Complete", func(ctx context.Context) error { return unlessLost(d.Complete(ctx)) })
		last = d.Message().ID == "last"
	}
}

func faultStale(t *test) {
	c, link := t.broken()
	_, q, r := t.receiverOf(c, "m")
	old := t.one(r, "m")
	link.Cut()
	if c.Limits().Lease > 0 {
		// The lease applies to any connection until it ends.
		t.persist("Retry", func(ctx context.Context) error { return unlessLost(old.Retry(ctx)) })
		d := t.oneOver(r)
		t.attempt(d, 2)
		t.persist("Complete", d.Complete)
		t.empty(c, q)
		return
	}
	current := t.oneOver(r)
	t.attempt(current, 2)
	for _, v := range verbs(old) {
		t.fails(v.name, v.settle(t.ctx()), transport.ErrLeaseLost)
	}
	t.do("Retry of the newer delivery", current.Retry)
	t.complete(t.nth(r, 3))
	t.empty(c, q)
}

func faultLost(t *test) {
	c, link := t.broken()
	_, q, r := t.receiverOf(c, "a", "b")
	done, d := t.one(r, "a"), t.one(r, "b")
	loss, ok := d.(transport.LossDetector)
	settled, _ := done.(transport.LossDetector)
	t.complete(done)
	if !ok || settled == nil {
		return
	}
	if loss.Lost() || settled.Lost() {
		t.Error("a delivery is lost before the connection is")
	}
	link.Cut()
	t.eventually("the delivery is lost with its connection", loss.Lost)
	if settled.Lost() {
		t.Error("a settled delivery is lost")
	}
	for last := false; !last; { // the completion of "a" may be lost with the connection
		next := t.oneOver(r)
		t.persist("Complete of the next delivery", next.Complete)
		last = next.Message().ID == "b"
	}
	t.empty(c, q)
}

func faultListening(t *test) {
	c, link := t.broken()
	_, _, r := t.receiverOf(c)
	l, ok := r.(transport.Listener)
	if !ok {
		return
	}
	ctx, stop := context.WithCancel(t.ctx())
	over := make(chan struct{})
	go func() {
		defer close(over)
		for ctx.Err() == nil {
			if _, err := r.Receive(ctx, 1); err != nil {
				t.pass(10 * time.Millisecond)
			}
		}
	}()
	defer func() {
		stop()
		<-over
	}()
	for range 2 {
		t.eventually("an idle receiver listens", l.Listening)
		link.Refuse()
		t.eventually("without a broker the receiver does not listen", func() bool { return !l.Listening() })
		link.Resume()
	}
	t.eventually("the receiver listens again", l.Listening)
}

// promptly is the time within which a call returns after its context ends or without an answer of
// the broker.
const promptly = 15 * time.Second

// prompt checks that a call that began then has returned promptly.
func (t *test) prompt(what string, began time.Time) {
	t.Helper()
	if took := time.Since(began); took > promptly {
		t.Errorf("%s took %v", what, took)
	}
}

// dispatching calls Dispatch with a context that ends in d, and waits for its end.
func (t *test) dispatching(c transport.Conn, d time.Duration, op transport.Operation) error {
	t.Helper()
	ctx := t.shortly(d)
	return await(t, "Dispatch returns", calling(func() error { return dispatch(ctx, c, op) }))
}

func faultAway(t *test) {
	c, link := t.broken()
	_, q, r := t.receiverOf(c, "held")
	t.one(r, "held")
	link.Refuse()
	began := time.Now()
	if t.dispatching(c, promptly, to(q, "m")) == nil {
		t.Error("Dispatch without a broker succeeded")
	}
	if await(t, "Receive returns", receiving(t.shortly(promptly), r, 1)).err == nil {
		t.Error("Receive without a broker succeeded")
	}
	t.prompt("that", began)
	link.Resume()
	t.sendOver(c, q, "last")
	for t.oneOver(r).Message().ID != "last" {
	}
}

func faultHalfOpen(t *test) {
	c, link := t.broken()
	_, q := t.queueOf(c, "before")
	link.Pause()
	began := time.Now()
	err := t.dispatching(c, 200*time.Millisecond, to(q, "m"))
	if err == nil {
		t.Error("Dispatch over a silent connection succeeded")
	} else {
		t.failedOps(err, 1, 0)
	}
	t.prompt("Dispatch", began)
	link.Resume()
	t.sendOver(c, q, "last")
	got := map[string]bool{}
	for r := t.receiver(c, q); !got["last"]; {
		got[t.oneOver(r).Message().ID] = true
	}
	if !got["before"] {
		t.Error("a message that was accepted before is lost")
	}
	if got["m"] && !errors.Is(err, transport.ErrOutcomeUnknown) {
		t.Errorf("a message arrived though it was refused: %v", err)
	}
}

func faultHalfOpenReceive(t *test) {
	c, link := t.broken()
	_, _, r := t.receiverOf(c, "held")
	t.one(r, "held")
	link.Pause()
	began := time.Now()
	await(t, "Receive returns", receiving(t.shortly(50*time.Millisecond), r, 1))
	t.prompt("Receive", began)
	_ = await(t, "Close returns", calling(c.Close)) // with any error
	link.Resume()
}

func faultCloseAway(t *test) {
	tr, link := t.harness.Break(t.TB)
	labelled(t, "close-away", func() {
		c, err := tr.Open(t.ctx(), transport.Env{Endpoint: "kit"})
		t.must("Open", err)
		_, q, r := t.receiverOf(c, "m")
		t.one(r, "m")
		waits := receiving(t.ctx(), t.receiver(c, q), 1)
		link.Refuse()
		began := time.Now()
		_ = await(t, "Close returns", calling(c.Close))
		t.prompt("Close", began)
		await(t, "Receive returns", waits)
	})
}

func faultLoad(t *test) {
	c, link := t.broken()
	if lease := c.Limits().Lease; lease > longestLease {
		t.Fatalf("Harness.Break has leases of %v: what is cut off would come again after the rule's end", lease)
	}
	in, out := t.queue(c, "in"), t.queue(c, "out")
	const n, cuts = 120, 3
	ctx := t.ctx()
	r := t.receiver(c, out)
	p := t.forward(c, in, out)
	sent := make(chan string, n)
	go func() {
		defer close(sent)
		for i, id := range ids("m", n) {
			if i%(n/cuts) == n/cuts/2 {
				link.Cut()
			}
			if err := dispatch(ctx, c, to(in, id)); err == nil {
				sent <- id
			}
		}
	}()
	var want []string
	for id := range sent {
		want = append(want, id)
	}
	if len(want) == 0 {
		t.Fatal("no Dispatch succeeded")
	}
	t.arrive(r, want, map[string]int{})
	t.stop(p)
}

// forward moves messages from one queue to another, and repeats failed calls.
func (t *test) forward(c transport.Conn, in, out string) *pumping {
	return t.pump(c, in, 8, -1, func(_ context.Context, d transport.Delivery) func(context.Context) error {
		ops := []transport.Operation{{Message: d.Message(), Queue: out}}
		t.pass(time.Millisecond) // so that some are unsettled whenever the connection ends
		return func(ctx context.Context) error {
			_ = forwardOne(ctx, c, d, ops) // or the broker delivers it again
			return nil
		}
	})
}

func forwardOne(ctx context.Context, c transport.Conn, d transport.Delivery, ops []transport.Operation) error {
	var err error
	for range 10 {
		err = move(ctx, c, d, ops)
		if err == nil || errors.Is(err, transport.ErrLeaseLost) {
			return err
		}
	}
	return errors.Join(err, d.Retry(ctx))
}

func move(ctx context.Context, c transport.Conn, d transport.Delivery, ops []transport.Operation) error {
	if whole, ok := d.(transport.Completer); ok {
		return whole.CompleteWith(ctx, ops)
	}
	if err := dispatch(ctx, c, ops...); err != nil {
		return err
	}
	return d.Complete(ctx)
}
