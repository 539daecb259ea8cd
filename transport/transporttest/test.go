package transporttest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// timeout bounds a rule. It is reached only if an awaited event never happens.
const timeout = 2 * time.Minute

// test is one run of a rule. Methods that fail the rule at once are called from the rule's own
// goroutine only.
type test struct {
	testing.TB
	harness Harness
	tr      transport.Transport
	until   time.Time
	ending  time.Duration // how long goroutines that end may take
	suffix  string
	markers int

	receivers map[string][]transport.Receiver // open ones, by queue
}

func newTest(tb testing.TB, h Harness) *test {
	tb.Helper()
	return &test{
		TB:      tb,
		harness: h,
		tr:      h.Open(tb),
		until:   time.Now().Add(timeout),
		ending:  30 * time.Second,
		suffix:  "-" + strings.ToLower(rand.Text()[:10]),

		receivers: map[string][]transport.Receiver{},
	}
}

// ctx returns a context that ends after the rule's timeout.
func (t *test) ctx() context.Context {
	ctx, cancel := context.WithDeadline(context.Background(), t.until)
	t.Cleanup(cancel)
	return ctx
}

// shortly returns a context that ends in d.
func (t *test) shortly(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.ctx(), d)
	t.Cleanup(cancel)
	return ctx
}

// ended returns a context that has ended.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// open opens the rule's transport once more. It is closed with the rule.
func (t *test) open() transport.Conn {
	t.Helper()
	return t.openWith(transport.Env{})
}

// openWith is open with settings of env.
func (t *test) openWith(env transport.Env) transport.Conn {
	t.Helper()
	env.Endpoint, env.Instance = "kit", "kit"+t.suffix
	c, err := t.tr.Open(t.ctx(), env)
	t.must("Open", err)
	t.Cleanup(func() { t.ok("Close", c.Close()) })
	return c
}

// name returns a name that no other rule uses.
func (t *test) name(s string) string {
	if t.harness.Name != nil {
		return t.harness.Name(t.TB, s)
	}
	return s + t.suffix
}

// must ends the rule if err is not nil.
func (t *test) must(what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// ok fails the rule, which continues, if err is not nil. Any goroutine may call it.
func (t *test) ok(what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// close closes a connection or a receiver.
func (t *test) close(c io.Closer) {
	t.Helper()
	t.must("Close", c.Close())
}

// reopen closes a connection and opens another.
func (t *test) reopen(c transport.Conn) transport.Conn {
	t.Helper()
	t.close(c)
	return t.open()
}

// queue creates a queue and returns its name.
func (t *test) queue(c transport.Conn, s string) string {
	t.Helper()
	return t.install(c, transport.Queue{Name: t.name(s)})
}

// queueOf creates a queue of these messages.
func (t *test) queueOf(c transport.Conn, ids ...string) (same transport.Conn, queue string) {
	t.Helper()
	queue = t.queue(c, "in")
	if len(ids) > 0 {
		t.send(c, queue, ids...)
	}
	return c, queue
}

// receiverOf opens a receiver of a queue of these messages.
func (t *test) receiverOf(c transport.Conn, ids ...string) (same transport.Conn, queue string, r transport.Receiver) {
	t.Helper()
	c, queue = t.queueOf(c, ids...)
	return c, queue, t.receiver(c, queue)
}

func (t *test) install(c transport.Conn, q transport.Queue) (name string) {
	t.Helper()
	if i, ok := c.(transport.Installer); ok {
		t.must("Install", i.Install(t.ctx(), transport.Plan{Queues: []transport.Queue{q}}))
	} else if t.harness.CreateQueue != nil {
		t.harness.CreateQueue(t.TB, t.tr, q.Name)
	} else {
		t.Fatal("the Conn is no Installer: set Harness.CreateQueue")
	}
	return q.Name
}

// window is the maximum number of unsettled deliveries of a rule, unless it says otherwise.
const window = 250

func (t *test) receiver(c transport.Conn, queue string) transport.Receiver {
	t.Helper()
	return t.receiverWith(c, queue, window)
}

func (t *test) receiverWith(c transport.Conn, queue string, window int) transport.Receiver {
	t.Helper()
	r, err := c.OpenReceiver(t.ctx(), transport.ReceiverOptions{Queue: queue})
	if err != nil {
		t.Fatalf("OpenReceiver %q: %v", queue, err)
	}
	r.Window(window)
	t.receivers[queue] = append(t.receivers[queue], r)
	return r
}

// leave closes the receivers of a queue, so that others receive their prefetched messages.
func (t *test) leave(queue string) {
	t.Helper()
	for _, r := range t.receivers[queue] {
		t.ok("close a receiver", r.Close())
	}
	delete(t.receivers, queue)
}

// message returns a message as endpoints send them.
func message(id string) *transport.Message {
	return &transport.Message{
		ID: id,
		Headers: header.New(
			header.Field{Name: header.MessageID, Value: id},
			header.Field{Name: header.CorrelationID, Value: "of " + id},
			header.Field{Name: header.ContentType, Value: "application/json"},
			header.Field{Name: header.EnclosedMessageTypes, Value: "Kit.Ordered"},
			header.Field{Name: header.ReplyToAddress, Value: "sales"},
			header.Field{Name: "Kit.Name", Value: "value of " + id},
		),
		Body: []byte(`{"id":"` + id + `"}`),
	}
}

func to(queue, id string) transport.Operation {
	return transport.Operation{Message: message(id), Queue: queue}
}

func toAll(queue string, ids []string) []transport.Operation {
	ops := make([]transport.Operation, len(ids))
	for i, id := range ids {
		ops[i] = to(queue, id)
	}
	return ops
}

// ids returns n ids in ascending order.
func ids(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("%s-%04d", prefix, i)
	}
	return all
}

func (t *test) send(c transport.Conn, queue string, ids ...string) {
	t.Helper()
	t.dispatch(c, toAll(queue, ids)...)
}

func dispatch(ctx context.Context, c transport.Conn, ops ...transport.Operation) error {
	_, err := c.Dispatch(ctx, ops)
	return err
}

func (t *test) dispatch(c transport.Conn, ops ...transport.Operation) []transport.Receipt {
	t.Helper()
	receipts, err := c.Dispatch(t.ctx(), ops)
	t.must("Dispatch", err)
	return receipts
}

// take receives n deliveries.
func (t *test) take(r transport.Receiver, n int) []transport.Delivery {
	t.Helper()
	all, err := gather(t.ctx(), r, n)
	if err != nil {
		t.Fatalf("Receive, after %d of %d messages: %v", len(all), n, err)
	}
	return all
}

var (
	errNothing = errors.New("it returned neither a message nor an error")
	errOver    = errors.New("it returned more than its limit")
)

// gather receives n deliveries, or fewer before an error.
func gather(ctx context.Context, r transport.Receiver, n int) (all []transport.Delivery, err error) {
	for len(all) < n {
		ds, err := r.Receive(ctx, n-len(all))
		switch {
		case err != nil:
			return all, err
		case len(ds) == 0:
			return all, errNothing
		case len(ds) > n-len(all):
			return all, errOver
		}
		all = append(all, ds...)
	}
	return all, nil
}

// one receives the next delivery and checks its message.
func (t *test) one(r transport.Receiver, id string) transport.Delivery {
	t.Helper()
	d := t.take(r, 1)[0]
	if got := d.Message().ID; got != id {
		t.Fatalf("received message %q, want %q", got, id)
	}
	return d
}

// nth receives the nth delivery of the message "m".
func (t *test) nth(r transport.Receiver, n int) transport.Delivery {
	t.Helper()
	d := t.one(r, "m")
	t.attempt(d, n)
	return d
}

// whole receives the next delivery and checks that its message is want.
func (t *test) whole(r transport.Receiver, want *transport.Message) transport.Delivery {
	t.Helper()
	d := t.take(r, 1)[0]
	t.sameMessage(d.Message(), want)
	return d
}

// do settles a delivery, which must succeed.
func (t *test) do(verb string, settle func(context.Context) error) {
	t.Helper()
	t.must(verb, settle(t.ctx()))
}

func (t *test) complete(ds ...transport.Delivery) {
	t.Helper()
	for _, d := range ds {
		t.do("Complete", d.Complete)
	}
}

// empty checks that no message is ready in a queue: a message that is sent now is received next. It
// closes the rule's own receivers of the queue.
func (t *test) empty(c transport.Conn, queue string) {
	t.Helper()
	t.leave(queue)
	r := t.receiver(c, queue)
	defer t.leave(queue)
	t.markers++
	marker := fmt.Sprint("marker-", t.markers)
	t.send(c, queue, marker)
	for {
		d := t.take(r, 1)[0]
		t.complete(d)
		if d.Message().ID == marker {
			return
		}
		t.Errorf("message %q is in the queue, in its delivery %d", d.Message().ID, d.Attempt().N)
	}
}

// holds receives and completes the wanted messages of a queue, in any order, and checks that there
// are no others. It closes the rule's own receivers of the queue.
func (t *test) holds(c transport.Conn, queue string, want ...string) {
	t.Helper()
	t.leave(queue)
	t.all(t.receiver(c, queue), want...)
	t.empty(c, queue)
}

// all receives and completes these messages, in any order.
func (t *test) all(r transport.Receiver, want ...string) {
	t.Helper()
	ds := t.take(r, len(want))
	t.complete(ds...)
	t.sameIDs(idsOf(ds), want)
}

// inOrder receives and completes these messages, in their order.
func (t *test) inOrder(r transport.Receiver, want ...string) []transport.Delivery {
	t.Helper()
	var ds []transport.Delivery
	if t.harness.OneAtATime {
		for range want {
			ds = append(ds, t.take(r, 1)...)
		}
	} else {
		ds = t.take(r, len(want))
	}
	t.complete(ds...)
	t.sameOrder(idsOf(ds), want)
	if t.harness.Unordered {
		slices.SortStableFunc(ds, func(a, b transport.Delivery) int {
			return slices.Index(want, a.Message().ID) - slices.Index(want, b.Message().ID)
		})
	}
	return ds
}
