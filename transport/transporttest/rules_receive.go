package transporttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

var receiveRules = []rule{
	{
		"receive-whole",
		"A message is received with the id, the headers and the body that it was sent with, and with no other headers.",
		nil, receiveWhole,
	},
	{
		"receive-any-text",
		"Header names and values survive whatever script they are in; values may be empty, long, or hold quotes and line ends.",
		nil, receiveAnyText,
	},
	{
		"receive-large-body",
		"A body of a megabyte, or of Limits.MaxBody where that is less, arrives as it was sent.",
		nil, receiveLargeBody,
	},
	{
		"receive-limit",
		"Receive returns at least one message and at most as many as it was asked for.",
		nil, receiveLimit,
	},
	{
		"receive-bound",
		"Receive returns no more than Limits.MaxReceive, however many it is asked for.",
		[]capability{boundReceive}, receiveBound,
	},
	{
		"receive-waits",
		"Receive on an empty queue waits, and returns when a message is sent.",
		nil, receiveWaits,
	},
	{
		"receive-ends",
		"Receive returns the context's error when its context ends, and at once where that has ended already.",
		nil, receiveEnds,
	},
	{
		"receive-drops-nothing",
		"A message that arrives while Receive's context ends is returned, or given back to the queue: it is never lost.",
		nil, receiveDropsNothing,
	},
	{
		"receive-closed",
		"Closing a receiver ends its Receive calls with ErrClosed, and a second Close does nothing.",
		nil, receiveClosed,
	},
	{
		"receive-closed-settle",
		"Deliveries of a receiver that is closed may still be settled.",
		nil, receiveClosedSettle,
	},
	{
		"receive-closed-returns",
		"What a closed receiver has not handed out goes to the next receiver.",
		nil, receiveClosedReturns,
	},
	{
		"receive-window",
		"A receiver holds no more messages unsettled than its window: the rest are there for others.",
		nil, receiveWindow,
	},
	{
		"receive-parallel",
		"Limits.ParallelReceive calls of Receive at once hand each message out once.",
		nil, receiveParallel,
	},
	{
		"receive-competing",
		"Two connections that receive from one queue share its messages: each is handed out once.",
		nil, receiveCompeting,
	},
	{
		"receive-apart",
		"A message is received from the queue that it was sent to, and from no other.",
		nil, receiveApart,
	},
	{
		"receive-no-queue",
		"OpenReceiver on a queue that does not exist fails with ErrNoQueue, and the connection goes on working.",
		nil, receiveNoQueue,
	},
	{
		"receive-reopened",
		"Messages outlast the connection that sent them: a transport opened again receives them.",
		nil, receiveReopened,
	},
	{
		"receive-identity",
		"A message keeps its id, headers and body over retries, releases and copies.",
		nil, receiveIdentity,
	},
	{
		"receive-kept",
		"A received message does not change when it is settled or others are received.",
		nil, receiveKept,
	},
	{
		"receive-undecodable",
		"What the driver cannot read is handed out with Undecodable set, can be copied and completed, and holds up nobody.",
		[]capability{undecodable}, receiveUndecodable,
	},
}

func receiveWhole(t *test) {
	c := t.open()
	q := t.queue(c, "in")
	r := t.receiver(c, q)
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	for i, body := range [][]byte{[]byte(`{"order":7}`), nil, {}, every, []byte("\x00"), []byte("ünï")} {
		m := message(fmt.Sprint("m-", i))
		m.Body = body
		t.dispatch(c, transport.Operation{Message: m, Queue: q})
		d := t.take(r, 1)[0]
		t.sameMessage(d.Message(), m)
		t.complete(d)
	}
}

func receiveAnyText(t *test) {
	c := t.open()
	q := t.queue(c, "in")
	m := message("m")
	for _, f := range []header.Field{
		{Name: "Größe", Value: "zwölf Ellen"},
		{Name: "ключ", Value: "значение"},
		{Name: "名前", Value: "日本語のテキスト"},
		{Name: "🙂", Value: "👩‍👩‍👧 and ☂"},
		{Name: "Kit.Quotes", Value: `"double", 'single', \back, {curly}`},
		{Name: "Kit.Lines", Value: "one\ntwo\r\nthree\tfour"},
		{Name: "Kit.Empty", Value: ""},
		{Name: "Kit.Spaces", Value: "  around  "},
		{Name: "Kit.Long", Value: strings.Repeat("stack trace ", 400)},
		{Name: "kit.quotes", Value: "names are case-sensitive"},
	} {
		m.Headers.Set(f.Name, f.Value)
	}
	t.dispatch(c, transport.Operation{Message: m, Queue: q})
	d := t.take(t.receiver(c, q), 1)[0]
	t.sameMessage(d.Message(), m)
	t.complete(d)
}

func receiveLargeBody(t *test) {
	c := t.open()
	q := t.queue(c, "in")
	size := 1 << 20
	if most := c.Limits().MaxBody; most > 0 {
		size = min(size, most)
	}
	m := message("large")
	m.Body = bytes.Repeat([]byte("0123456789abcde\n"), size/16+1)[:size]
	t.dispatch(c, transport.Operation{Message: m, Queue: q})
	d := t.one(t.receiver(c, q), "large")
	if !bytes.Equal(d.Message().Body, m.Body) {
		t.Errorf("a body of %d bytes arrived with %d, or not the same ones", size, len(d.Message().Body))
	}
	t.complete(d)
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

// receipt is how a call of Receive ended.
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

// share has receivers take n messages between them and complete them.
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

func receiveApart(t *test) {
	c := t.open()
	a, b := t.queue(c, "a"), t.queue(c, "b")
	t.dispatch(c, to(a, "a-1"), to(b, "b-1"), to(a, "a-2"))
	t.holds(c, b, "b-1")
	t.holds(c, a, "a-1", "a-2")
}

func receiveNoQueue(t *test) {
	c := t.open()
	_, err := c.OpenReceiver(t.ctx(), transport.ReceiverOptions{Queue: t.name("missing")})
	t.fails("OpenReceiver", err, transport.ErrNoQueue)
	q := t.queue(c, "in")
	t.send(c, q, "m")
	t.holds(c, q, "m")
}

func receiveReopened(t *test) {
	c := t.open()
	q := t.queue(c, "in")
	t.send(c, q, "m-1", "m-2")
	if err := c.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	t.holds(t.open(), q, "m-1", "m-2")
}

func receiveIdentity(t *test) {
	c := t.open()
	in, out := t.queue(c, "in"), t.queue(c, "out")
	m := message("m")
	t.dispatch(c, transport.Operation{Message: m, Queue: in})
	r := t.receiver(c, in)
	d := t.take(r, 1)[0]
	t.sameMessage(d.Message(), m)
	t.do("Retry", d.Retry)
	d = t.take(r, 1)[0]
	t.sameMessage(d.Message(), m)
	t.do("Release", d.Release)
	d = t.take(r, 1)[0]
	t.sameMessage(d.Message(), m)
	t.dispatch(c, transport.Operation{Message: d.Message(), Queue: out})
	t.complete(d)
	copied := t.take(t.receiver(c, out), 1)[0]
	t.sameMessage(copied.Message(), m)
	t.complete(copied)
}

func receiveKept(t *test) {
	c := t.open()
	q := t.queue(c, "in")
	t.send(c, q, ids("m", 40)...)
	r := t.receiver(c, q)
	first := t.take(r, 20)
	var were []*transport.Message
	for _, d := range first {
		were = append(were, copyOf(d.Message()))
	}
	t.complete(first...)
	t.complete(t.take(r, 20)...)
	for i, d := range first {
		t.sameMessage(d.Message(), were[i])
	}
}

func receiveUndecodable(t *test) {
	c := t.open()
	in, out := t.queue(c, "in"), t.queue(c, "errors")
	t.harness.PutUndecodable(t.TB, t.tr, in)
	t.send(c, in, "good")
	ds := t.take(t.receiver(c, in), 2)
	bad := slices.IndexFunc(ds, func(d transport.Delivery) bool { return d.Message().Undecodable != nil })
	if bad < 0 {
		t.Fatal("no delivery is undecodable")
	}
	m := ds[bad].Message()
	if errors.Is(m.Undecodable, transport.ErrLeaseLost) || ds[bad].Attempt().N != 1 {
		t.Errorf("the undecodable message is in its attempt %d: %v", ds[bad].Attempt().N, m.Undecodable)
	}
	if good := ds[1-bad].Message(); good.Undecodable != nil || good.ID != "good" {
		t.Errorf("its neighbour is %q, undecodable: %v", good.ID, good.Undecodable)
	}
	moved := message("moved")
	moved.Body = m.Body
	t.dispatch(c, transport.Operation{Message: moved, Queue: out})
	t.complete(ds...)
	t.empty(c, in)
	t.holds(c, out, "moved")
}
