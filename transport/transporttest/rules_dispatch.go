package transporttest

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

var dispatchRules = []rule{
	newRule("dispatch-order", dispatchOrder,
		"Messages of one Dispatch, and of consecutive ones, arrive at each destination in the order in which they were "+
			"sent."),
	newRule("dispatch-nothing", dispatchNothing, "A Dispatch without operations succeeds."),
	newRule("dispatch-no-queue", dispatchNoQueue,
		"A send to a queue that does not exist fails with ErrNoQueue, in a DispatchError that names the operation."),
	newRule("dispatch-partly", dispatchPartly,
		"An operation that the broker refuses does not fail other operations of the same Dispatch: their messages arrive, "+
			"in order."),
	newRule("dispatch-apart", dispatchApart,
		"An operation that the broker refuses does not fail concurrent dispatches and settles."),
	newRule("dispatch-body-bound", dispatchBodyBound,
		"A body over Limits.MaxBody fails with a TooLargeError that contains its size and the limit. Other operations are "+
			"sent.", boundBody),
	newRule("dispatch-header-bound", dispatchHeaderBound,
		"Headers over Limits.MaxHeaders fail with a TooLargeError. Smaller headers arrive, and other operations are "+
			"sent.", boundHeaders),
	newRule("dispatch-keeps-nothing", dispatchKeepsNothing,
		"A change of an operation after Dispatch has returned does not change the received message."),
	newRule("dispatch-changes-nothing", dispatchChangesNothing,
		"Dispatch changes neither the operations nor their messages."),
	newRule("dispatch-odd-text", dispatchOddText,
		"An id, header, address, type or queue name in any text, also one that is not valid UTF-8, is sent, or its message alone is "+
			"refused: the connection and messages beside it are not affected."),
	newRule("dispatch-content", dispatchContent,
		"A message with a header that the broker cannot carry, by its text, its name or the number of headers, arrives unchanged, or "+
			"is refused alone with ErrContent or ErrTooLarge: messages beside it and after it are sent."),
	newRule("dispatch-receipts", dispatchReceipts, "Dispatch returns one receipt per operation, or none at all."),
	newRule("dispatch-ended", dispatchEnded,
		"A Dispatch whose context has ended reports correctly: accepted operations arrive, and failed ones do not, unless "+
			"they failed with ErrOutcomeUnknown."),
	newRule("dispatch-many", dispatchMany, "Concurrent calls of Dispatch neither lose nor duplicate messages."),
	newRule("ttl-over", ttlOver, "A message that is not received within its TTL is never received."),
	newRule("ttl-not-over", ttlNotOver,
		"A message is received while its TTL has not ended, and is delivered again after a Retry."),
}

func dispatchOrder(t *test) {
	c := t.open()
	a, b := t.queue(c, "a"), t.queue(c, "b")
	want := ids("m", 60)
	for some := range slices.Chunk(want, 20) {
		var ops []transport.Operation
		for _, id := range some {
			ops = append(ops, to(a, id), to(b, id))
		}
		t.dispatch(c, ops...)
	}
	t.inOrder(t.receiver(c, a), want...)
	t.inOrder(t.receiver(c, b), want...)
}

func dispatchNothing(t *test) {
	c := t.open()
	for _, ops := range [][]transport.Operation{nil, {}} {
		if receipts, err := c.Dispatch(t.ctx(), ops); err != nil || len(receipts) != 0 {
			t.Errorf("%d receipts and the error %v", len(receipts), err)
		}
	}
}

func dispatchNoQueue(t *test) {
	c, q := t.queueOf(t.open())
	err := dispatch(t.ctx(), c, to(t.name("missing"), "m"))
	t.failedOps(err, 1, 0)
	t.fails("Dispatch", err, transport.ErrNoQueue)
	t.send(c, q, "m")
	t.holds(c, q, "m")
}

func dispatchPartly(t *test) {
	c, q := t.queueOf(t.open())
	ops := toAll(q, ids("m", 6))
	ops[1].Queue, ops[4].Queue = t.name("missing"), t.name("missing")
	for _, op := range t.failedOps(dispatch(t.ctx(), c, ops...), 6, 1, 4) {
		t.fails("the operation", op.Err, transport.ErrNoQueue)
	}
	t.inOrder(t.receiver(c, q), "m-0000", "m-0002", "m-0003", "m-0005")
	t.empty(c, q)
}

func dispatchApart(t *test) {
	c, in, r := t.receiverOf(t.open(), ids("in", 40)...)
	out, missing := t.queue(c, "out"), t.name("missing")
	ctx := t.ctx()
	want := ids("out", 40)
	var wg sync.WaitGroup
	for i, d := range t.take(r, 40) {
		wg.Go(func() {
			t.fails("a send to a missing queue", dispatch(ctx, c, to(missing, "bad")), transport.ErrNoQueue)
		})
		wg.Go(func() { t.ok("a send to a queue that exists", dispatch(ctx, c, to(out, want[i]))) })
		wg.Go(func() { t.ok("Complete", d.Complete(ctx)) })
	}
	wg.Wait()
	t.holds(c, out, want...)
	t.empty(c, in)
}

func dispatchBodyBound(t *test) {
	c, q := t.queueOf(t.open())
	most := c.Limits().MaxBody
	large := to(q, "large")
	large.Message.Body = make([]byte, most+1)
	err := dispatch(t.ctx(), c, to(q, "m-1"), large, to(q, "m-2"))
	t.failedOps(err, 3, 1)
	if e, ok := errors.AsType[*transport.TooLargeError](err); !ok || e.Size <= most || e.Max <= 0 || e.Size <= e.Max {
		t.Errorf("%v, want a TooLargeError of %d bytes where %d are allowed", err, most+1, most)
	}
	t.holds(c, q, "m-1", "m-2")
}

func dispatchHeaderBound(t *test) {
	c, q := t.queueOf(t.open())
	most := c.Limits().MaxHeaders
	fill := func(id string, size int) transport.Operation {
		const name = "Kit.Stack"
		op := to(q, id)
		op.Message.Headers.Set(name, strings.Repeat("x", size-op.Message.Headers.Size()-len(name)))
		return op
	}
	fits, large := fill("fits", most), fill("large", 2*most)
	err := dispatch(t.ctx(), c, to(q, "m-1"), large, fits, to(q, "m-2"))
	t.failedOps(err, 4, 1)
	if e, ok := errors.AsType[*transport.TooLargeError](err); !ok || e.Size <= e.Max {
		t.Errorf("%v, want a TooLargeError that tells what was measured and what is allowed", err)
	}
	ds := t.inOrder(t.receiver(c, q), "m-1", "fits", "m-2")
	t.sameMessage(ds[1].Message(), fits.Message)
}

func dispatchKeepsNothing(t *test) {
	c, q, r := t.receiverOf(t.open())
	ops := []transport.Operation{to(q, "m-1"), to(q, "m-2")}
	want := []*transport.Message{copyOf(ops[0].Message), copyOf(ops[1].Message)}
	t.dispatch(c, ops...)
	for i := range ops {
		m := ops[i].Message
		m.ID = "changed"
		m.Headers.Set("Kit.Name", "changed")
		m.Headers.Set("Kit.New", "new")
		copy(m.Body, "changed")
		ops[i] = transport.Operation{}
	}
	t.complete(t.whole(r, want[0]), t.whole(r, want[1]))
}

func dispatchChangesNothing(t *test) {
	c, q := t.queueOf(t.open())
	missing := t.name("missing")
	build := func() []transport.Operation {
		ops := []transport.Operation{to(q, "m-1"), to(missing, "m-2"), to(q, "m-3")}
		ops[0].TTL = time.Hour
		// As received messages have them.
		ops[2].Message.NativeID = "4711"
		ops[2].Message.Native = map[string]string{"native": "property"}
		ops[2].Properties = map[string]string{"kit": "property"}
		return ops
	}
	ops, want := build(), build()
	t.failedOps(dispatch(t.ctx(), c, ops...), 3, 1)
	for i := range ops {
		if !reflect.DeepEqual(ops[i], want[i]) {
			t.Errorf("operation %d is %+v of %+v,\nwas %+v of %+v", i, ops[i], ops[i].Message, want[i], want[i].Message)
		}
	}
	t.holds(c, q, "m-1", "m-3")
}

// odd are texts that a driver or its broker may not take.
var odd = []string{"\xff", "caf\xe9", "a\x00b", strings.Repeat("ü", 200), "\xed\xa0\x80", "line\nbreak\r\n", strings.Repeat("x", 5000), " "}

func dispatchOddText(t *test) {
	c, q := t.queueOf(t.open(), "held")
	r := t.receiver(c, q)
	held := t.one(r, "held")
	places := map[string]func(op *transport.Operation, text string){
		"id": func(op *transport.Operation, text string) {
			op.Message.ID = text
			op.Message.Headers.Set(header.MessageID, text)
		},
		"header name":  func(op *transport.Operation, text string) { op.Message.Headers.Set(text, "value") },
		"header value": func(op *transport.Operation, text string) { op.Message.Headers.Set("Kit.Odd", text) },
		"reply-to":     func(op *transport.Operation, text string) { op.Message.Headers.Set(header.ReplyToAddress, text) },
		"correlation":  func(op *transport.Operation, text string) { op.Message.Headers.Set(header.CorrelationID, text) },
		"type":         func(op *transport.Operation, text string) { op.Message.Headers.Set(header.EnclosedMessageTypes, text) },
		"queue":        func(op *transport.Operation, text string) { op.Queue = text },
	}
	good, accepted := 0, 0
	for _, place := range slices.Sorted(maps.Keys(places)) {
		for _, text := range odd {
			for _, delayed := range []bool{false, true} {
				op := to(q, "odd")
				if delayed && c.Limits().MaxDelay > 0 {
					op.After = time.Hour
				}
				places[place](&op, text)
				err := dispatch(t.ctx(), c, op)
				if err != nil && (errors.Is(err, transport.ErrOutcomeUnknown) || errors.Is(err, transport.ErrUnreachable)) {
					t.Errorf("%s %.20q, delayed %v: %v, want the message alone to be refused", place, text, delayed, err)
				}
				if err == nil && op.After == 0 {
					accepted++
				}
			}
			good++
			t.dispatch(c, to(q, "good"))
		}
	}
	t.complete(held)
	for range good + accepted {
		d := t.take(r, 1)[0]
		if d.Message().ID == "good" {
			good--
		}
		t.complete(d)
	}
	if good != 0 {
		t.Errorf("%d good messages are missing", good)
	}
}

func dispatchContent(t *test) {
	c, q, r := t.receiverOf(t.open())
	for what, change := range oddHeaders() {
		op := to(q, "odd")
		change(op.Message)
		want := copyOf(op.Message)
		err := dispatch(t.ctx(), c, to(q, "before"), op, to(q, "after"))
		sent := 3
		if err != nil {
			sent--
			for _, failed := range t.failedOps(err, 3, 1) {
				if !errors.Is(failed.Err, transport.ErrContent) && !errors.Is(failed.Err, transport.ErrTooLarge) {
					t.Errorf("%s: %v, want ErrContent or ErrTooLarge", what, failed.Err)
				}
			}
		}
		got := t.take(r, sent)
		t.completeAll(got)
		t.sameIDs(idsOf(got), []string{"before", "after", "odd"}[:sent])
		for _, d := range got {
			if d.Message().ID == want.ID {
				t.sameMessage(d.Message(), want)
			}
		}
	}
	t.empty(c, q)
}

// oddHeaders are changes of a message that a driver or its broker may not take, by name.
func oddHeaders() map[string]func(m *transport.Message) {
	all := map[string]func(m *transport.Message){
		"3000 headers": func(m *transport.Message) {
			for i := range 3000 {
				m.Headers.Set(fmt.Sprint("Kit.", i), "")
			}
		},
	}
	for _, text := range odd {
		all[fmt.Sprintf("name %.20q", text)] = func(m *transport.Message) { m.Headers.Set(text, "value") }
		all[fmt.Sprintf("value %.20q", text)] = func(m *transport.Message) { m.Headers.Set("Kit.Odd", text) }
	}
	return all
}

func dispatchReceipts(t *test) {
	c, q := t.queueOf(t.open())
	ops := toAll(q, ids("m", 5))
	if c.Limits().MaxDelay > 0 {
		ops[1].After, ops[3].After = shortDelay, shortDelay
	}
	if n := len(t.dispatch(c, ops...)); n != 0 && n != len(ops) {
		t.Errorf("%d receipts for %d operations", n, len(ops))
	}
	t.holds(c, q, ids("m", 5)...)
}

func dispatchEnded(t *test) {
	c, q := t.queueOf(t.open())
	var must, may []string
	for _, id := range ids("m", 10) {
		err := dispatch(ended(), c, to(q, id))
		switch {
		case err == nil:
			must = append(must, id)
		case errors.Is(err, transport.ErrOutcomeUnknown):
			may = append(may, id)
		}
		if err != nil {
			t.failedOps(err, 1, 0)
		}
	}
	t.send(c, q, "last")
	r := t.receiver(c, q)
	var got []string
	for len(got) == 0 || got[len(got)-1] != "last" {
		d := t.take(r, 1)[0]
		got = append(got, d.Message().ID)
		t.complete(d)
	}
	for _, id := range must {
		if !slices.Contains(got, id) {
			t.Errorf("%q was accepted and did not arrive", id)
		}
	}
	for _, id := range got[:len(got)-1] {
		if !slices.Contains(must, id) && !slices.Contains(may, id) {
			t.Errorf("%q was refused for good and arrived", id)
		}
	}
}

func dispatchMany(t *test) {
	one, q := t.queueOf(t.open())
	cs := []transport.Conn{t.open(), one}
	want := ids("m", 200)
	ctx := t.ctx()
	var wg sync.WaitGroup
	for i, id := range want {
		wg.Go(func() { t.ok("Dispatch", dispatch(ctx, cs[i%2], to(q, id))) })
	}
	wg.Wait()
	ds := t.take(t.receiver(one, q), len(want))
	t.completeAll(ds)
	t.sameIDs(idsOf(ds), want)
	t.empty(one, q)
}

func ttlOver(t *test) {
	const ttl = 150 * time.Millisecond
	c, q := t.queueOf(t.open())
	short, keep := to(q, "short"), to(q, "kept")
	short.TTL, keep.TTL = ttl, time.Hour
	t.dispatch(c, short, keep, short)
	t.pass(2 * ttl)
	t.holds(c, q, "kept")
}

func ttlNotOver(t *test) {
	c, q := t.queueOf(t.open())
	op := to(q, "m")
	op.TTL = time.Minute
	want := copyOf(op.Message)
	t.dispatch(c, op)
	t.pass(20 * time.Millisecond)
	r := t.receiver(c, q)
	t.do("Retry", t.whole(r, want).Retry)
	t.complete(t.one(r, "m"))
}
