package transporttest

import (
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

const (
	// shortDelay is long enough to detect whether a message waited for it.
	shortDelay = 300 * time.Millisecond
	// tardiness is the maximum lateness of a delayed message. A busy machine delivers a message of
	// a real broker seconds late.
	tardiness, tardinessInBubble = time.Minute, 2 * time.Second
	// clockGrain is the maximum difference between the clocks of broker and test for a duration.
	clockGrain = 5 * time.Millisecond
)

var delayRules = []rule{
	newRule("delay-after", delayAfter,
		"A message sent with After arrives when the delay is over, not earlier, and less than a minute late.", delays),
	newRule("delay-at", delayAt,
		"A message sent with At arrives at that time, not earlier, and less than a minute late. At overrides "+
			"After.", delays),
	newRule("delay-past", delayPast,
		"A delay of zero, a negative delay, or a time in the past does not delay the message.", delays),
	newRule("delay-order", delayOrder,
		"Delayed messages arrive in the order of their due times, in whatever order they are sent, and do not delay "+
			"others.", delays),
	newRule("delay-whole", delayWhole,
		"A delayed message arrives with the id, headers and body with which it was sent.", delays),
	newRule("delay-reopened", delayReopened, "A delayed message outlives the connection that sent it.", delays),
	newRule("delay-no-queue", delayNoQueue,
		"A delayed send to a queue that does not exist fails at once with ErrNoQueue.", delays),
	newRule("delay-published", delayPublished,
		"A delayed publish reaches the subscribers when it is due.", delays, publishing),
	newRule("delay-long", delayLong,
		"A delay of Limits.MaxDelay, or of a year if that is shorter, is accepted, and the message does not arrive "+
			"early.", delays),
	newRule("cancel", cancelDelayed,
		"Cancel with the receipt of a delayed message prevents its delivery; a second Cancel fails with "+
			"ErrNotFound.", delays, cancelling),
	newRule("cancel-late", cancelLate,
		"Cancel fails with ErrNotFound if the message was delivered or the receipt is invalid.", delays, cancelling),
}

// onTime checks that a message is due now.
func (t *test) onTime(what string, due time.Time) {
	t.Helper()
	most := tardiness
	if t.harness.Bubble {
		most = tardinessInBubble
	}
	switch late := time.Since(due); {
	case late < -clockGrain:
		t.Errorf("%s came %v early", what, -late)
	case late > most:
		t.Errorf("%s came %v late", what, late)
	}
}

// delayed delays a message by shortDelay, from now on.
func delayed(op transport.Operation) (same transport.Operation, due time.Time) {
	op.After = shortDelay
	return op, time.Now().Add(shortDelay)
}

// arrives receives and completes the message "m", which is due now.
func (t *test) arrives(r transport.Receiver, due time.Time) {
	t.Helper()
	d := t.one(r, "m")
	t.onTime("the message", due)
	t.complete(d)
}

func delayAfter(t *test) {
	c, q, r := t.receiverOf(t.open())
	op, due := delayed(to(q, "m"))
	t.dispatch(c, op)
	t.arrives(r, due)
	t.empty(c, q)
}

func delayAt(t *test) {
	c, q, r := t.receiverOf(t.open())
	op := to(q, "m")
	op.At, op.After = time.Now().Add(shortDelay), time.Hour
	t.dispatch(c, op)
	t.arrives(r, op.At)
	t.empty(c, q)
}

func delayPast(t *test) {
	c, q := t.queueOf(t.open())
	past, negative := to(q, "past"), to(q, "negative")
	past.At, past.After, negative.After = time.Now().Add(-time.Hour), time.Hour, -time.Hour
	began := time.Now()
	t.dispatch(c, past, negative)
	t.all(t.receiver(c, q), "past", "negative")
	t.onTime("a message without delay", began)
}

func delayOrder(t *test) {
	c, q, r := t.receiverOf(t.open())
	ops := []transport.Operation{to(q, "third"), to(q, "second"), to(q, "first")}
	ops[0].After, ops[1].After = 2*time.Second, time.Second // drivers may round up to a second
	t.dispatch(c, ops...)
	for _, id := range []string{"first", "second", "third"} {
		t.complete(t.one(r, id))
	}
	t.empty(c, q)
}

func delayWhole(t *test) {
	c, q, r := t.receiverOf(t.open())
	m := message("m")
	t.dispatch(c, transport.Operation{Message: m, Queue: q, After: shortDelay})
	t.complete(t.whole(r, m))
}

func delayReopened(t *test) {
	c, q := t.queueOf(t.open())
	op, due := delayed(to(q, "m"))
	t.dispatch(c, op)
	c = t.reopen(c)
	t.arrives(t.receiver(c, q), due)
}

func delayNoQueue(t *test) {
	c, q := t.queueOf(t.open())
	lost, _ := delayed(to(t.name("missing"), "lost"))
	fine, _ := delayed(to(q, "fine"))
	err := dispatch(t.ctx(), c, lost, fine)
	t.failedOps(err, 2, 0)
	t.fails("Dispatch", err, transport.ErrNoQueue)
	t.holds(c, q, "fine")
}

func delayPublished(t *test) {
	c, kind := t.open(), t.kind("Ordered")
	q := t.subscriber(c, "in", kind)
	op, due := delayed(publish("m", kind))
	t.dispatch(c, op)
	t.arrives(t.receiver(c, q), due)
	t.empty(c, q)
}

func delayLong(t *test) {
	const year = 365 * 24 * time.Hour
	c, q := t.queueOf(t.open())
	op := to(q, "m")
	op.After, op.Receipt = min(c.Limits().MaxDelay, year), true
	if op.After < time.Minute {
		t.Fatalf("a MaxDelay of %v is none to work with", op.After)
	}
	receipts := t.dispatch(c, op)
	t.empty(c, q)
	if canceler, ok := c.(transport.Canceler); ok && len(receipts) > 0 {
		t.ok("Cancel", canceler.Cancel(t.ctx(), receipts[0].Cancel))
	}
}

func cancelDelayed(t *test) {
	c, q := t.queueOf(t.open())
	t.cancels(c, q, func(ops []transport.Operation) []transport.Receipt { return t.dispatch(c, ops...) })
}

// cancellable returns three delayed messages with receipts.
func cancellable(queue string, delay time.Duration) []transport.Operation {
	ops := toAll(queue, ids("m", 3))
	for i := range ops {
		ops[i].After, ops[i].Receipt = delay, true
	}
	return ops
}

// cancels cancels the second of three delayed messages by its receipt. If a busy machine delivers
// the messages before Cancel, cancels sends them again with twice the delay.
func (t *test) cancels(c transport.Conn, queue string, send func([]transport.Operation) []transport.Receipt) {
	t.Helper()
	canceler := as[transport.Canceler](t, c)
	for delay := shortDelay; ; delay *= 2 {
		began := time.Now()
		receipts := send(cancellable(queue, delay))
		if len(receipts) != 3 || receipts[1].Cancel == "" {
			t.Fatalf("the receipts of delayed messages are %+v", receipts)
		}
		err := canceler.Cancel(t.ctx(), receipts[1].Cancel)
		if errors.Is(err, transport.ErrNotFound) && time.Since(began) >= delay && delay < tardiness {
			t.holds(c, queue, ids("m", 3)...)
			continue
		}
		t.must("Cancel", err)
		t.fails("a second Cancel", canceler.Cancel(t.ctx(), receipts[1].Cancel), transport.ErrNotFound)
		t.holds(c, queue, "m-0000", "m-0002")
		return
	}
}

func cancelLate(t *test) {
	c, q, r := t.receiverOf(t.open())
	receipts := t.dispatch(c, cancellable(q, shortDelay)[0])
	if len(receipts) != 1 {
		t.Fatalf("%d receipts of a delayed message", len(receipts))
	}
	d := t.take(r, 1)[0]
	canceler := as[transport.Canceler](t, c)
	for i, receipt := range []string{receipts[0].Cancel, "", "no receipt", fmt.Sprint("0@", q)} {
		t.fails(fmt.Sprintf("Cancel %d", i), canceler.Cancel(t.ctx(), receipt), transport.ErrNotFound)
	}
	t.complete(d)
	t.fails("Cancel of what is completed", canceler.Cancel(t.ctx(), receipts[0].Cancel), transport.ErrNotFound)
}
