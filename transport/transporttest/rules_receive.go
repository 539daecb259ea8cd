package transporttest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var receiveRules = []rule{
	newRule("receive-limit", receiveLimit, "Receive returns at least one message and at most the requested number."),
	newRule("receive-bound", receiveBound,
		"Receive returns at most Limits.MaxReceive messages, even if more are requested.", boundReceive),
	newRule("receive-bytes", receiveBytes,
		"ReceiveBytes returns messages of at most the requested bytes in total, or one message of any size. The others "+
			"stay in the queue.", byBytes),
	newRule("receive-waits", receiveWaits, "Receive on an empty queue blocks until a message is sent."),
	newRule("receive-ends", receiveEnds,
		"Receive returns the context's error when its context ends, and at once if the context has ended before the call."),
	newRule("receive-drops-nothing", receiveDropsNothing,
		"A message that arrives while Receive's context ends is returned by Receive or returns to the queue. It is never "+
			"lost."),
	newRule("receive-closed", receiveClosed,
		"Close of a receiver ends its Receive calls with ErrClosed. A second Close does nothing."),
	newRule("receive-closed-settle", receiveClosedSettle, "Deliveries of a closed receiver can still be settled."),
	newRule("receive-closed-returns", receiveClosedReturns,
		"Prefetched messages of a closed receiver are delivered to the next receiver."),
	newRule("receive-window", receiveWindow,
		"A receiver holds at most as many unsettled messages as its window allows. Other receivers receive the rest."),
	newRule("receive-held", receiveHeld,
		"Deliveries that implement transport.Holder and are held do not count against the window: others are received in "+
			"their place. They can be settled at any time."),
	newRule("receive-parallel", receiveParallel,
		"Limits.ParallelReceive concurrent calls of Receive together deliver each message once."),
	newRule("receive-competing", receiveCompeting,
		"Two connections that receive from one queue share its messages: each message is delivered once."),
	newRule("receive-no-queue", receiveNoQueue,
		"OpenReceiver on a queue that does not exist fails with ErrNoQueue, and the connection still works."),
}

func receiveLimit(t *test) {
	want := ids("m", 10)
	c, q, r := t.receiverOf(t.open(), want...)
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
	want := ids("m", most+5)
	_, _, r := t.receiverOf(c, want...)
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

func receiveBytes(t *test) {
	const body = 10 << 10
	c, q := t.queueOf(t.open())
	for _, m := range []struct {
		id   string
		size int
	}{{"large", 4 * body}, {"a", body}, {"b", body}, {"c", body}, {"d", 10}} {
		op := to(q, m.id)
		op.Message.Body = make([]byte, m.size)
		t.dispatch(c, op)
	}
	r := as[transport.ByteReceiver](t, t.receiver(c, q))
	for _, want := range [][]string{{"large"}, {"a", "b"}, {"c", "d"}} {
		ds, err := r.ReceiveBytes(t.ctx(), 10, 2*body+body/2)
		t.must("ReceiveBytes of 25 KiB", err)
		t.sameOrder(idsOf(ds), want)
		t.complete(ds...)
	}
	t.empty(c, q)
}

// receiveHeld holds as many messages as the window has, several times over.
func receiveHeld(t *test) {
	const window, rounds = 4, 5
	want := ids("m", window*rounds)
	c, q := t.queueOf(t.open(), want...)
	r := t.receiverWith(c, q, window)
	var held []transport.Delivery
	for len(held) < len(want) {
		ds := t.take(r, window)
		for _, d := range ds {
			h, ok := d.(transport.Holder)
			if !ok {
				t.complete(d) // nothing to check
				continue
			}
			h.Hold()
			h.Hold()
		}
		held = append(held, ds...)
	}
	for _, d := range held {
		if h, ok := d.(transport.Holder); ok {
			t.complete(d)
			h.Hold() // of a settled delivery
		}
	}
	t.send(c, q, ids("n", 2*window)...)
	for range 2 {
		t.completeAll(t.take(r, window))
	}
	t.empty(c, q)
}

// completeAll completes many at once.
func (t *test) completeAll(ds []transport.Delivery) {
	t.Helper()
	ctx := t.ctx()
	var wg sync.WaitGroup
	for _, d := range ds {
		wg.Go(func() { t.ok("Complete", d.Complete(ctx)) })
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
	c, q, r := t.receiverOf(t.open())
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
	c, q, r := t.receiverOf(t.open())
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
	c, q, r := t.receiverOf(t.open())
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
		sending := t.ctx()
		sent := calling(func() error { return dispatch(sending, c, to(q, id)) })
		if i%4 < 2 {
			t.must("Dispatch", await(t, "Dispatch", sent))
		}
		cancel()
		end := await(t, "Receive returns", done)
		if end.err == nil && len(end.ds) == 0 {
			t.Fatal("Receive returned neither a message nor an error")
		}
		keep(end.ds)
		if i%4 >= 2 {
			t.must("Dispatch", await(t, "Dispatch", sent))
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
	c, q, r := t.receiverOf(t.open())
	done := receiving(t.ctx(), r, 1)
	t.pass(20 * time.Millisecond)
	t.close(r)
	got := await(t, "Receive returns when its receiver is closed", done)
	t.fails("Receive of a receiver that was closed meanwhile", got.err, transport.ErrClosed)
	again := await(t, "Receive returns", receiving(t.ctx(), r, 1))
	t.fails("Receive of a closed receiver", again.err, transport.ErrClosed)
	t.ok("a second Close", r.Close())
	t.send(c, q, "m")
	t.holds(c, q, "m")
}

func receiveClosedSettle(t *test) {
	c, q, r := t.receiverOf(t.open(), ids("m", 3)...)
	ds := t.take(r, 3) // in any order
	t.close(r)
	t.complete(ds[0])
	t.do("Retry", ds[1].Retry)
	t.do("Release", ds[2].Release)
	t.holds(c, q, idsOf(ds[1:])...)
}

func receiveClosedReturns(t *test) {
	want := ids("m", 10)
	c, q, r := t.receiverOf(t.open(), want...)
	first := t.take(r, 1)
	t.close(r)
	got := append(first, t.take(t.receiver(c, q), len(want)-1)...)
	t.complete(got...)
	t.sameIDs(idsOf(got), want)
	t.empty(c, q)
}

func receiveWindow(t *test) {
	want := ids("m", 10)
	one, q := t.queueOf(t.open(), want...)
	mine := t.take(t.receiverWith(one, q, 3), 3)
	all := append(mine, t.take(t.receiver(t.open(), q), len(want)-3)...)
	t.complete(all...)
	t.sameIDs(idsOf(all), want)
}

func receiveParallel(t *test) {
	c, q, r := t.receiverOf(t.open())
	t.shared(c, q, slices.Repeat([]transport.Receiver{r}, max(1, c.Limits().ParallelReceive))...)
}

func receiveCompeting(t *test) {
	c, q, r := t.receiverOf(t.open())
	t.shared(c, q, r, t.receiver(t.open(), q))
}

// shared sends many messages, lets receivers receive and complete them, and checks that each came
// once.
func (t *test) shared(c transport.Conn, queue string, rs ...transport.Receiver) {
	t.Helper()
	want := ids("m", 120)
	ctx, cancel := context.WithCancel(t.ctx())
	got := make(chan string, 2*len(want))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, r := range rs {
		wg.Go(func() {
			for ctx.Err() == nil {
				ds, err := r.Receive(ctx, 7)
				if err != nil && ctx.Err() == nil {
					t.Errorf("Receive: %v", err)
					return
				}
				for _, d := range ds {
					t.ok("Complete", d.Complete(context.WithoutCancel(ctx)))
					got <- d.Message().ID
				}
			}
		})
	}
	t.send(c, queue, want...)
	var all []string
	for i := range want {
		all = append(all, await(t, fmt.Sprintf("message %d of %d comes", i+1, len(want)), got))
	}
	cancel()
	wg.Wait()
	close(got)
	for id := range got {
		all = append(all, id)
	}
	t.sameIDs(all, want)
	t.empty(c, queue)
}

func receiveNoQueue(t *test) {
	c, q := t.queueOf(t.open(), "m")
	_, err := c.OpenReceiver(t.ctx(), transport.ReceiverOptions{Queue: t.name("missing")})
	t.fails("OpenReceiver", err, transport.ErrNoQueue)
	t.holds(c, q, "m")
}
