package asb_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

func TestMessagesToOneQueueShareRequests(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	c := open(t, on(ns))
	install(t, c, "in", "other")
	var ops []transport.Operation
	var want []string
	for i := range 200 {
		want = append(want, fmt.Sprint("m-", i))
		ops = append(ops, to("in", want[i]))
	}
	dispatch(t, c, append(ops, to("other", "m"))...)
	if got := ns.Control.State().Counts; got.Sends > 3 || got.Messages != 201 {
		t.Errorf("%d messages went in %d requests", got.Messages, got.Sends)
	}
	if diff := cmp.Diff(want, idsIn(queued(t, c, "in"))); diff != "" {
		t.Error(diff)
	}
}

func idsIn(ms []*transport.Message) (ids []string) {
	for _, m := range ms {
		ids = append(ids, m.ID)
	}
	return ids
}

// queued returns the messages of a queue in its order. Receiving may change the order: the client
// library releases messages that come after its Receive has returned.
func queued(t *testing.T, c transport.Conn, queue string) (all []*transport.Message) {
	t.Helper()
	cursor, err := c.(transport.Browser).Browse(within(t), queue)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { must(t, cursor.Close()) }()
	for {
		ms, err := cursor.Next(within(t), 100)
		if err != nil {
			t.Fatal(err)
		}
		if len(ms) == 0 {
			return all
		}
		all = append(all, ms...)
	}
}

func TestManyThatSendAtOnceShareRequests(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	c := open(t, on(ns))
	install(t, c, "in")
	ns.Control.Set(brokertest.ServiceBusFaults{Delay: 5 * time.Millisecond}) // a request takes a while
	const n = 200
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { dispatch(t, c, to("in", fmt.Sprint("m-", i))) })
	}
	all.Wait()
	if got := ns.Control.State().Counts; got.Sends > n/4 || got.Messages != n {
		t.Errorf("%d messages went in %d requests", got.Messages, got.Sends)
	}
}

func TestLargeMessagesGoByThemselvesInTheirOrder(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBus(t)
	c := open(t, on(ns))
	install(t, c, "in")
	var ops []transport.Operation
	var want []string
	for i, size := range []int{10, 150_000, 150_000, 10, 240_000, 10, 100_000, 100_000} {
		want = append(want, fmt.Sprint("m-", i))
		op := to("in", want[i])
		op.Message.Body = []byte(strings.Repeat("x", size))
		ops = append(ops, op)
	}
	dispatch(t, c, ops...)
	ms := queued(t, c, "in")
	if diff := cmp.Diff(want, idsIn(ms)); diff != "" {
		t.Fatal(diff)
	}
	for i, m := range ms {
		if len(m.Body) != len(ops[i].Message.Body) {
			t.Errorf("%s has %d bytes", m.ID, len(m.Body))
		}
	}
}

// Clients do not learn the namespace's own limit: the error of a message that it refuses has sizes
// all the same.
func TestATooLargeMessageFailsAlone(t *testing.T) {
	ns := brokertest.OwnServiceBusSized(t, 100<<10, 100<<10)
	c := open(t, on(ns))
	install(t, c, "in")
	large := to("in", "large")
	large.Message.Body = make([]byte, 150<<10)
	_, err := c.Dispatch(within(t), []transport.Operation{to("in", "m-1"), large, to("in", "m-2")})
	var failed *transport.DispatchError
	var size *transport.TooLargeError
	if !errors.As(err, &failed) || len(failed.Ops) != 1 || failed.Ops[0].Index != 1 || !errors.As(err, &size) || size.Size < 150<<10 || size.Size <= size.Max {
		t.Errorf("%v", err)
	}
	if got := idsIn(queued(t, c, "in")); !slices.Equal(got, []string{"m-1", "m-2"}) {
		t.Errorf("%q are in the queue", got)
	}
}

func TestThrottlingIsWaitedForAndDoublesNothing(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBus(t)
	c := open(t, on(ns))
	install(t, c, "in")
	dispatch(t, c, to("in", "before"))
	ns.Control.Set(brokertest.ServiceBusFaults{Throttle: 1})
	dispatch(t, c, to("in", "m-1"), to("in", "m-2"))
	ns.Control.Set(brokertest.ServiceBusFaults{Throttle: 1000})
	brokertest.Longer(t, 3*time.Second, func(d time.Duration) error {
		short, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		_, err := c.Dispatch(short, []transport.Operation{to("in", "never")})
		if !errors.Is(err, transport.ErrUnreachable) || errors.Is(err, transport.ErrOutcomeUnknown) || !strings.Contains(err.Error(), "throttled") {
			return fmt.Errorf("while it is throttled for long: %w", err)
		}
		return nil
	})
	ns.Control.Set(brokertest.ServiceBusFaults{})
	dispatch(t, c, to("in", "after"))
	if got := idsIn(queued(t, c, "in")); !slices.Equal(got, []string{"before", "m-1", "m-2", "after"}) {
		t.Errorf("%q came", got)
	}
}

func TestAnAnswerThatIsLostLeavesTheOutcomeUnknown(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	c := open(t, on(ns))
	install(t, c, "in")
	ns.Control.Set(brokertest.ServiceBusFaults{Unanswered: 1})
	if _, err := c.Dispatch(within(t), []transport.Operation{to("in", "m")}); !errors.Is(err, transport.ErrOutcomeUnknown) {
		t.Errorf("%v, want ErrOutcomeUnknown", err)
	}
	ns.Control.Set(brokertest.ServiceBusFaults{})
	dispatch(t, c, to("in", "after"))
}

func TestDuplicateDetectionDropsTwinsAndNoCopies(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBus(t)
	tr := on(ns)
	tr.DuplicateDetection = time.Minute
	c := open(t, tr)
	install(t, c, "in")
	copyOf := func(native string, pairs ...string) transport.Operation {
		op := to("in", "m")
		op.Message.NativeID = native
		for i := 0; i < len(pairs); i += 2 {
			op.Message.Headers.Set(pairs[i], pairs[i+1])
		}
		return op
	}
	twice := []transport.Operation{
		to("in", "m"),
		copyOf("1", header.Retries, "1"), copyOf("2", header.Retries, "2"), // delayed retries
		copyOf("3", header.Retries, "2"),         // postponed by a rate limit, which is no retry
		copyOf("4", header.HoldfastReturns, "1"), // returned from the error queue
	}
	dispatch(t, c, twice...)
	dispatch(t, c, twice...) // as after a crash between sending a copy and completing the original
	r := receive(t, c, "in")
	for _, d := range nextN(t, r, len(twice)) {
		if d.Message().ID != "m" {
			t.Errorf("%q came", d.Message().ID)
		}
		must(t, d.Complete(within(t)))
	}
	nothing(t, r)
}

func TestDelayedMessagesHaveReceiptsThatCallThemBack(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBus(t)
	c := open(t, on(ns))
	install(t, c, "in")
	later := to("in", "later")
	later.After, later.Receipt = time.Hour, true
	soon := to("in", "soon")
	soon.After, soon.Receipt = 200*time.Millisecond, true
	receipts := dispatch(t, c, later, to("in", "now"), soon)
	if len(receipts) != 3 || receipts[0].Cancel == "" || receipts[1].Cancel != "" || receipts[2].Cancel == "" {
		t.Fatalf("%q", receipts)
	}
	canceler := c.(transport.Canceler)
	must(t, canceler.Cancel(within(t), receipts[0].Cancel))
	for _, receipt := range []string{receipts[0].Cancel, "", "1@missing", "x@in", "@"} {
		if err := canceler.Cancel(within(t), receipt); !errors.Is(err, transport.ErrNotFound) {
			t.Errorf("cancel %q: %v", receipt, err)
		}
	}
	r := receive(t, c, "in")
	if got := idsOf(nextN(t, r, 2)); !slices.Equal(slices.Sorted(slices.Values(got)), []string{"now", "soon"}) { // both may be due at once
		t.Errorf("%q came", got)
	}
	nothing(t, r)
	if q := ns.Control.State().Queues["in"]; q.Scheduled != 0 {
		t.Errorf("%+v", q)
	}
}
