package transporttest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var receiveRules = []rule{
	newRule("receive-limit", receiveLimit,
		"Receive returns at least one message and at most as many as it was asked for."),
	newRule("receive-bound", receiveBound,
		"Receive returns no more than Limits.MaxReceive, however many it is asked for.", boundReceive),
	newRule("receive-bytes", receiveBytes,
		"ReceiveBytes returns at most the requested bytes, except one message whatever its size; the others stay in the "+
			"queue.", byBytes),
	newRule("receive-waits", receiveWaits, "Receive on an empty queue waits, and returns when a message is sent."),
	newRule("receive-ends", receiveEnds,
		"Receive returns the context's error when its context ends, and at once if it has ended before."),
	newRule("receive-drops-nothing", receiveDropsNothing,
		"A message that arrives while Receive's context ends is returned by it or returns to the queue: it is never lost."),
	newRule("receive-closed", receiveClosed,
		"Closing a receiver ends its Receive calls with ErrClosed, and a second Close does nothing."),
	newRule("receive-closed-settle", receiveClosedSettle, "Deliveries of a receiver that is closed may still be settled."),
	newRule("receive-closed-returns", receiveClosedReturns,
		"Prefetched messages of a closed receiver are delivered to the next receiver."),
	newRule("receive-window", receiveWindow,
		"A receiver holds no more unsettled messages than its window: others receive the rest."),
	newRule("receive-parallel", receiveParallel,
		"Limits.ParallelReceive concurrent calls of Receive deliver each message once."),
	newRule("receive-competing", receiveCompeting,
		"Two connections that receive from one queue share its messages: each is delivered once."),
	newRule("receive-no-queue", receiveNoQueue,
		"OpenReceiver on a queue that does not exist fails with ErrNoQueue, and the connection still works."),
}

func receiveLimit(t *test) {
	c := t.open()
	q := t.queue(c, "in")
	want := ids("m", 10)
	t.send(c, q, want...)
	r := t.receiver(c, q)
	var got []string
	for len(got) < len(want) {
		ds, err := r.Receive(t.ctx(), 3)
		if err != nil || len(ds) < 1 || len(ds) > 3 {
			t.Fatalf("Receive with a limit of 3 returned %d messages and the error %v", len(ds), err)
		}
		got = append(got, idsOf(ds)...)
		t.complete(ds...)
	}
	t.sameIDs(got, want)
	t.empty(c, q)
}

func receiveBound(t *test) {
	c := t.open()
	most := c.Limits().MaxReceive
	q := t.queue(c, "in")
	want := ids("m", most+5)
	t.send(c, q, want...)
	r := t.receiver(c, q)
	r.Window(2 * (most + 5))
	var got []string
	for len(got) < len(want) {
		ds, err := r.Receive(t.ctx(), most+5)
		if err != nil || len(ds) < 1 || len(ds) > most {
			t.Fatalf("Receive returned %d messages, where %d is the most, and the error %v", len(ds), most, err)
		}
		got = append(got, idsOf(ds)...)
		t.completeAll(ds)
	}
	t.sameIDs(got, want)
}

// completeAll completes many at once.
func (t *test) completeAll(ds []transport.Delivery) {
	t.Helper()
	ctx := t.ctx()
	var wg sync.WaitGroup
	for _, d := range ds {
		wg.Go(func() {
			if err := d.Complete(ctx); err != nil {
				t.Errorf("Complete: %v", err)
			}
		})
	}
	wg.Wait()
}

// receipt is the result of a call of Receive.
type received struct {
	ds  []transport.Delivery
	err error
}

func receiving(ctx context.Context, r transport.Receiver, limit int) <-chan received {
	done := make(chan received, 1)
	go func() {
		ds, err := r.Receive(ctx, limit)
		done <- received{ds, err}
	}()
	return done
}

func receiveWaits(t *test) {
	c := t.open()
	q := t.queue(c, "in")
	r := t.receiver(c, q)
	for _, id := range ids("m", 3) {
		done := receiving(t.ctx(), r, 5)
		t.pass(20 * time.Millisecond) // so that it waits, most of the time
		t.send(c, q, id)
		got := await(t, "Receive returns", done)
		if got.err != nil || len(got.ds) != 1 || got.ds[0].Message().ID != id {
			t.Fatalf("Receive returned %s and the error %v, want %s", idsOf(got.ds), got.err, id)
		}
		t.complete(got.ds...)
	}
}

func receiveEnds(t *test) {
	c := t.open()
	q := t.queue(c, "in")
	r := t.receiver(c, q)
	ctx, cancel := context.WithCancel(t.ctx())
	defer cancel()
	done := receiving(ctx, r, 1)
	t.pass(20 * time.Millisecond)
	cancel()
	got := await(t, "Receive returns when its context is cancelled", done)
	t.fails("Receive that was cancelled", got.err, context.Canceled)
	late := await(t, "Receive returns at its deadline", receiving(t.shortly(20*time.Millisecond), r, 1))
	t.fails("Receive over its deadline", late.err, context.DeadlineExceeded)

	over := await(t, "Receive returns", receiving(ended(), r, 1))
	t.fails("Receive with a context that has ended", over.err, context.Canceled)
	t.send(c, q, "m")
	t.holds(c, q, "m")
}

func receiveDropsNothing(t *test) {
	c := t.open()
	q := t.queue(c, "in")
	r := t.receiver(c, q)
	want := ids("m", 40)
	var got []string
	keep := func(ds []transport.Delivery) {
		for _, d := range ds {
			if n := d.Attempt().N; n < 1 {
				t.Errorf("attempt %d", n)
			}
		}
		t.complete(ds...)
		got = append(got, idsOf(ds)...)
	}
	for i, id := range want {
		ctx, cancel := context.WithCancel(t.ctx())
		done := receiving(ctx, r, 10)
		if i%2 == 0 {
			t.pass(time.Duration(i) * 50 * time.Microsecond) // ends before, amid and after the arrival
		}
		sent := make(chan error, 1)
		go func() {
			_, err := c.Dispatch(t.ctx(), []transport.Operation{to(q, id)})
			sent <- err
		}()
		if i%4 < 2 {
			if err := await(t, "Dispatch", sent); err != nil {
				t.Fatalf("Dispatch: %v", err)
			}
			sent <- nil
		}
		cancel()
		end := await(t, "Receive returns", done)
		if end.err == nil && len(end.ds) == 0 {
			t.Fatal("Receive returned neither a message nor an error")
		}
		keep(end.ds)
		if err := await(t, "Dispatch", sent); err != nil {
			t.Fatalf("Dispatch: %v", err)
		}
	}
	for len(got) < len(want) {
		ds, err := r.Receive(t.ctx(), 10)
		if err != nil {
			t.Fatalf("%d of %d messages came: %v", len(got), len(want), err)
		}
		keep(ds)
	}
	t.sameIDs(got, want)
	t.empty(c, q)
}

func receiveClosed(t *test) {
	c := t.open()
	q := t.queue(c, "in")
	r := t.receiver(c, q)
	done := receiving(t.ctx(), r, 1)
	t.pass(20 * time.Millisecond)
	t.do("Close", func(context.Context) error { return r.Close() })
	got := await(t, "Receive returns when its receiver is closed", done)
	t.fails("Receive of a receiver that was closed meanwhile", got.err, transport.ErrClosed)
	again := await(t, "Receive returns", receiving(t.ctx(), r, 1))
	t.fails("Receive of a closed receiver", again.err, transport.ErrClosed)
	if err := r.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
	t.send(c, q, "m")
	t.holds(c, q, "m")
}

func receiveClosedSettle(t *test) {
	c := t.open()
	q := t.queue(c, "in")
	t.send(c, q, "completed", "retried", "released")
	r := t.receiver(c, q)
	ds := t.take(r, 3)
	if err := r.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	for _, d := range ds {
		switch d.Message().ID {
		case "completed":
			t.do("Complete", d.Complete)
		case "retried":
			t.do("Retry", d.Retry)
		case "released":
			t.do("Release", d.Release)
		}
	}
	t.holds(c, q, "retried", "released")
}

func receiveClosedReturns(t *test) {
	c := t.open()
	q := t.queue(c, "in")
	want := ids("m", 10)
	t.send(c, q, want...)
	r := t.receiver(c, q)
	first := t.take(r, 1)
	if err := r.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	got := append(first, t.take(t.receiver(c, q), len(want)-1)...)
	t.complete(got...)
	t.sameIDs(idsOf(got), want)
	t.empty(c, q)
}

func receiveWindow(t *test) {
	one, two := t.open(), t.open()
	q := t.queue(one, "in")
	want := ids("m", 10)
	t.send(one, q, want...)
	r := t.receiverWith(one, q, 3)
	mine := t.take(r, 3)
	others := t.take(t.receiver(two, q), len(want)-3)
	t.complete(append(mine, others...)...)
	t.sameIDs(idsOf(append(mine, others...)), want)
}

func receiveParallel(t *test) {
	c := t.open()
	q := t.queue(c, "in")
	want := ids("m", 120)
	r := t.receiver(c, q)
	got := t.share(len(want), slices.Repeat([]transport.Receiver{r}, max(1, c.Limits().ParallelReceive)),
		func() { t.send(c, q, want...) })
	t.sameIDs(got, want)
	t.empty(c, q)
}

func receiveCompeting(t *test) {
	one, two := t.open(), t.open()
	q := t.queue(one, "in")
	want := ids("m", 120)
	got := t.share(len(want), []transport.Receiver{t.receiver(one, q), t.receiver(two, q)},
		func() { t.send(one, q, want...) })
	t.sameIDs(got, want)
	t.empty(one, q)
}

// share lets receivers receive n messages in total and complete them.
func (t *test) share(n int, rs []transport.Receiver, begin func()) []string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.ctx())
	defer cancel()
	got := make(chan string, 2*n)
	var wg sync.WaitGroup
	for _, r := range rs {
		wg.Go(func() {
			for ctx.Err() == nil {
				ds, err := r.Receive(ctx, 7)
				if err != nil && ctx.Err() == nil {
					t.Errorf("Receive: %v", err)
					return
				}
				for _, d := range ds {
					if err := d.Complete(context.WithoutCancel(ctx)); err != nil {
						t.Errorf("Complete: %v", err)
					}
					got <- d.Message().ID
				}
			}
		})
	}
	begin()
	var all []string
	for len(all) < n {
		select {
		case id := <-got:
			all = append(all, id)
		case <-ctx.Done():
			t.Errorf("%d of %d messages came", len(all), n)
			n = 0
		}
	}
	cancel()
	wg.Wait()
	close(got)
	for id := range got {
		all = append(all, id)
	}
	return all
}

func receiveNoQueue(t *test) {
	c := t.open()
	_, err := c.OpenReceiver(t.ctx(), transport.ReceiverOptions{Queue: t.name("missing")})
	t.fails("OpenReceiver", err, transport.ErrNoQueue)
	q := t.queue(c, "in")
	t.send(c, q, "m")
	t.holds(c, q, "m")
}
