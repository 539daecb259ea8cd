package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/internal/histories"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

const (
	// lossMessages are the messages of one endpoint of the property test.
	lossMessages = 20
	// lossHeals is the time after which queues refuse nothing.
	lossHeals = 5 * time.Minute
	lossEnds  = time.Hour
)

// lossPlaces are the queues for messages that are given up.
var lossPlaces = []string{"error", "error-2", "sales.dead", "sales.quarantine.dead"}

// A broker refuses messages and queues at random. In the end every message was handled, or it is in
// an error queue or a dead-letter queue, with all that was received.
func TestNoMessageIsLostWhateverIsRefused(t *testing.T) {
	count := histories.Count{Short: 2_000 / lossMessages, Test: 2_000 / lossMessages, Soak: 100_000 / lossMessages}
	histories.Run(t, count, func(t *testing.T, rnd *rand.Rand) {
		c := &lossCase{Rand: rnd}
		defer func() {
			if t.Failed() {
				t.Log(c)
			}
		}()
		c.run(t)
	})
}

// lossCase is an endpoint and the refusals of its broker.
type lossCase struct {
	*rand.Rand
	broker, db inmemory.Transport
	sent       map[string]*transport.Message
	refusing   map[string]lossQueue // queues
	begin      time.Time
	most       int // bytes of headers; 0 is no bound
	count      int // headers
	text       bool
	cfg        endpoint.Config

	mu      sync.Mutex // guards handled
	handled map[string]int
}

// lossQueue is how a queue refuses messages.
type lossQueue struct {
	err   error
	until time.Duration // since the begin
	share float64       // of the messages
}

func (c *lossCase) String() string {
	return fmt.Sprintf("mode %v, without %b, outbox %v, audit %q, bounds %d bytes, %d headers, text %v, queues %v, recoverability %+v",
		c.cfg.Transactions, c.broker.Without, c.cfg.Outbox != nil, c.cfg.AuditQueue, c.most, c.count, c.text, c.refusing, c.cfg.Recoverability)
}

func (c *lossCase) one(of ...string) string { return of[c.IntN(len(of))] }

var lossErrors = []error{
	transport.ErrNoQueue, transport.ErrDenied, transport.ErrFull, errNo, transport.ErrUnreachable, context.DeadlineExceeded,
	&transport.BusyError{Queue: "error", Reason: "locked"},
}

// prepare draws the case.
func (c *lossCase) prepare(t *testing.T) {
	c.begin = time.Now()
	c.sent, c.handled, c.refusing = map[string]*transport.Message{}, map[string]int{}, map[string]lossQueue{}
	c.broker.CreateQueues("sales", "error", "error-2", "audit", "shipping", "sales.quarantine")
	if c.IntN(2) == 0 {
		c.broker.Without |= inmemory.Completer
	}
	if c.IntN(4) == 0 {
		c.broker.Without |= inmemory.Exact
	}
	deadLetters := c.IntN(2) == 0
	if !deadLetters {
		c.broker.Without |= inmemory.DeadLetterer
	}
	for _, queue := range []string{"sales", "error", "error-2", "audit", "shipping", "sales.quarantine"} {
		if c.IntN(3) == 0 {
			c.refusing[queue] = lossQueue{
				lossErrors[c.IntN(len(lossErrors))], time.Duration(c.Int64N(int64(lossHeals))), []float64{0.1, 0.5, 1}[c.IntN(3)],
			}
		}
	}
	for i, n := range c.Perm(lossMessages) { // the process may crash over the first
		deliveries := 0
		if i == 0 && c.IntN(2) == 0 {
			deliveries = 20
		}
		c.send(t, fmt.Sprint("m-", n), deliveries)
	}
	c.cfg = harness.Sales(&c.broker, endpoint.Handle(c.handle))
	c.cfg.Concurrency = 4
	if c.IntN(2) == 0 {
		c.cfg.AuditQueue = "audit"
	}
	switch c.IntN(3) {
	case 0:
		c.cfg.Transactions = endpoint.SendsAtomicWithReceive
	case 1:
		c.cfg.Outbox = &c.db
	}
	c.cfg.Recoverability = recoverability.Config{
		Immediate: []int{recoverability.None, 1, 3}[c.IntN(3)], Delayed: []int{recoverability.None, 1, 2}[c.IntN(3)],
	}
	if c.IntN(3) == 0 {
		c.cfg.Recoverability.RateLimit = recoverability.RateLimit{After: 2, Delay: time.Second, MaxFailures: 2, MaxTime: time.Minute}
	}
	if queue := c.one("", "error-2", "nowhere"); queue != "" {
		c.cfg.Recoverability.Policy = func(f recoverability.Failure) recoverability.Action {
			if _, last := f.Decide().(recoverability.MoveToError); last {
				return recoverability.MoveToError{Queue: queue}
			}
			return f.Decide()
		}
	}
	c.bounds(deadLetters)
	c.broker.Fail, c.broker.Refuse = c.fail, c.refuse
}

// bounds draws the bounds of the broker for messages. It had accepted the received messages.
func (c *lossCase) bounds(deadLetters bool) {
	largest, count := 0, 0
	for _, m := range c.sent {
		largest, count = max(largest, m.Headers.Size()), max(count, m.Headers.Len())
	}
	if c.IntN(4) > 0 {
		c.most = largest + c.IntN(1000)
	}
	if c.IntN(3) == 0 {
		c.count = count + c.IntN(20)
	}
	c.text = c.IntN(3) == 0
	if !deadLetters || c.cfg.Outbox != nil { // a packed copy has a place, as an outbox has no dead-letter queue
		if c.most > 0 {
			c.most = max(c.most, 4000)
		}
		if c.count > 0 {
			c.count = max(c.count, 30)
		}
	}
}

// send puts a message into the queue of the endpoint, which was delivered n times.
func (c *lossCase) send(t *testing.T, id string, n int) {
	m := wire(id)
	for i := range c.IntN(5) {
		m.Headers.Set(fmt.Sprint("Foreign-", i), strings.Repeat(c.one("x", "é", "\xff", "\x00"), c.IntN(1000)))
	}
	if c.IntN(4) == 0 { // it does not compress
		var b strings.Builder
		for b.Len() < 2000 {
			b.WriteString(strconv.FormatUint(c.Uint64(), 36))
		}
		m.Headers.Set("Foreign", b.String())
	}
	m.Body = fmt.Appendf(nil, `{"ID":%q}`, id)
	if c.IntN(10) == 0 {
		m.Undecodable = errors.New("undecodable")
	}
	delivered(t, &c.broker, "sales", m, n)
	c.sent[id] = m
}

// handle fails for some of the messages, always or once.
func (c *lossCase) handle(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
	n, err := strconv.Atoi(strings.TrimPrefix(o.ID, "m-"))
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.handled[o.ID]++
	attempts := c.handled[o.ID]
	c.mu.Unlock()
	switch {
	case n%4 == 0:
		return fmt.Errorf("no: %s", strings.Repeat("é", 300*n))
	case n%4 == 1 && attempts == 1:
		panic("once")
	case n%4 == 2:
		return s.Send(ctx, harness.ShipOrder(o))
	}
	return nil
}

// fail refuses the messages for a queue.
func (c *lossCase) fail(verb, object string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	q, ok := c.refusing[object]
	if !ok || verb != "Dispatch" && verb != "DeadLetter" || time.Since(c.begin) >= q.until || c.Float64() >= q.share {
		return nil
	}
	return q.err
}

// refuse refuses messages because of their content.
func (c *lossCase) refuse(op *transport.Operation) error {
	if op.Message == nil {
		return nil
	}
	size, count := op.Message.Headers.Size(), op.Message.Headers.Len()
	switch {
	case c.most > 0 && size > c.most:
		return &transport.TooLargeError{What: "headers", Size: size, Max: c.most}
	case c.count > 0 && count > c.count:
		return &transport.TooLargeError{What: "header count", Size: count, Max: c.count}
	case c.text:
		for name, value := range op.Message.Headers.All() {
			if !utf8.ValidString(value) || strings.ContainsRune(value, 0) {
				return fmt.Errorf("header %q: %w", name, transport.ErrContent)
			}
		}
	}
	return nil
}

func (c *lossCase) run(t *testing.T) {
	c.prepare(t)
	r := harness.Start(t, c.cfg)
	time.Sleep(lossEnds)
	r.End()
	for _, queue := range []string{"sales", "sales.quarantine"} {
		for _, m := range c.broker.Messages(queue) {
			t.Errorf("message %s is left in %s", m.ID, queue)
		}
	}
	if n := len(c.db.Messages("sales.outbox")); n > 0 {
		t.Errorf("%d messages are left in the outbox", n)
	}
	found := map[string]int{}
	for _, queue := range lossPlaces {
		for _, m := range c.broker.Messages(queue) {
			own := copies.Unpacked(m)
			if own.Undecodable != nil && c.sent[own.ID] != nil && c.sent[own.ID].Undecodable == nil {
				t.Errorf("message %s in %s: %v", m.ID, queue, own.Undecodable)
			}
			if sent := c.sent[own.ID]; sent != nil {
				found[own.ID]++
				c.compare(t, queue, sent, own)
			}
		}
	}
	for id := range c.sent {
		n, err := strconv.Atoi(strings.TrimPrefix(id, "m-"))
		if err != nil {
			t.Fatal(err)
		}
		fails := n%4 == 0 || c.sent[id].Undecodable != nil
		if found[id] == 0 && (fails || c.handled[id] == 0) {
			t.Errorf("message %s is lost: handled %d times, and in no queue", id, c.handled[id])
		}
	}
	if c.cfg.AuditQueue != "" {
		c.audited(t)
	}
}

// compare checks that a message in an error queue has all that was received.
func (c *lossCase) compare(t *testing.T, queue string, sent, got *transport.Message) {
	for name, value := range sent.Headers.All() {
		if got.Headers.Get(name) != value {
			t.Errorf("message %s in %s: header %s has %d bytes, want %d", sent.ID, queue, name, len(got.Headers.Get(name)), len(value))
		}
	}
	if string(got.Body) != string(sent.Body) {
		t.Errorf("message %s in %s: body %q", sent.ID, queue, got.Body)
	}
}

// audited checks that each message that succeeded has an audit copy, in whatever queue.
func (c *lossCase) audited(t *testing.T) {
	seen := map[string]bool{}
	for _, queue := range append(lossPlaces, "audit") {
		for _, m := range c.broker.Messages(queue) {
			seen[m.ID] = true
		}
	}
	for id := range c.sent {
		if !seen[id] {
			t.Errorf("message %s has no audit copy and is in no error queue", id)
		}
	}
}
