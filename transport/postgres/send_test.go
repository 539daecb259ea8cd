package postgres

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/transport"
)

// failedOps are the indexes of the operations that err says failed.
func failedOps(t testing.TB, err error) (indexes []int) {
	t.Helper()
	var d *transport.DispatchError
	if !errors.As(err, &d) {
		t.Fatalf("error = %v, want a DispatchError", err)
	}
	for _, op := range d.Ops {
		indexes = append(indexes, op.Index)
	}
	return indexes
}

func TestABadOperationDoesNotFailItsNeighbours(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in", "out")
	w.exec(`ALTER TABLE %s"out" ADD CHECK (headers::json ->> 'NServiceBus.MessageId' <> 'refused')`)
	c := w.open()
	var ops []transport.Operation
	want := []int{3, 10, 17, 24}
	for i := range 25 {
		ops = append(ops, to("out", msg(fmt.Sprint(i))))
	}
	ops[3].Queue = "missing"
	ops[10].Message = msg("refused")
	ops[17].Queue = strings.Repeat("x", 64)
	ops[24].Message = &transport.Message{ID: "large", Body: make([]byte, MaxBody+1)}
	_, err := c.Dispatch(t.Context(), ops)
	if got := failedOps(t, err); !slices.Equal(got, want) {
		t.Errorf("failed operations %v, want %v: %v", got, want, err)
	}
	isErr(t, err, transport.ErrNoQueue)
	isErr(t, err, transport.ErrTooLarge)
	if n := w.count("out"); n != 21 {
		t.Errorf("%d messages arrived, want 21", n)
	}
}

func TestABadCompletionFailsAloneAndCanBeRepeated(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in", "out")
	c := w.open()
	const n = 20
	for i := range n {
		send(t, c, to("in", msg(fmt.Sprint(i))))
	}
	ds := receive(t, receiver(t, c, "in"), n)
	errs := make(chan error, n)
	for i, d := range ds {
		go func() {
			if i == 7 {
				errs <- completeWith(t, d, to("out", msg("good")), to("missing", msg("bad")))
				return
			}
			errs <- completeWith(t, d, to("out", msg("good")))
		}()
	}
	var failed error
	for range n {
		if err := <-errs; err != nil {
			failed = errors.Join(failed, err)
		}
	}
	isErr(t, failed, transport.ErrNoQueue)
	if got := failedOps(t, failed); !slices.Equal(got, []int{1}) {
		t.Errorf("failed operations %v, want 1 alone", got)
	}
	if in, out := w.count("in"), w.count("out"); in != 1 || out != n-1 {
		t.Errorf("%d left in, %d sent, want 1 and %d", in, out, n-1)
	}
	ok(t, completeWith(t, ds[7], to("out", msg("good"))))
}

func TestTheMessagesOfADispatchKeepTheirOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	c := w.open()
	var ops []transport.Operation
	var want []string
	for i := range 1200 {
		want = append(want, fmt.Sprint(i))
		ops = append(ops, to("in", msg(want[i])))
	}
	send(t, c, ops...)
	var got []string
	for _, d := range receive(t, receiver(t, c, "in"), len(want)) {
		got = append(got, d.Message().ID)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order (-sent +received):\n%s", diff)
	}
}

func TestADelayedMessageIsVisibleWhenItIsDue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	c := w.open()
	r := receiver(t, c, "in")
	delay := 300 * time.Millisecond
	start := time.Now()
	later := to("in", msg("later"))
	later.After = delay
	past := to("in", msg("past"))
	past.At = start.Add(-time.Hour)
	send(t, c, later, past)
	if id := receive(t, r, 1)[0].Message().ID; id != "past" {
		t.Fatalf("received %q first", id)
	}
	receive(t, r, 1)
	if took := time.Since(start); took < delay {
		t.Errorf("arrived after %v, want %v or more", took, delay)
	}
}

func TestDueTimesAreTheDatabases(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	c := w.open()
	after, at := to("in", msg("after")), to("in", msg("at"))
	after.After = 2 * time.Hour
	at.At = time.Now().Add(3 * time.Hour)
	longest := to("in", msg("longest"))
	longest.After = transport.Unlimited
	send(t, c, after, at, longest)
	for id, want := range map[string]float64{"after": 7200, "at": 10800, "longest": transport.Unlimited.Seconds()} {
		var got float64
		ok(t, w.sql.QueryRow(t.Context(), `SELECT extract(epoch FROM visible_at - now())::float8 FROM `+
			quote(w.schema, "in")+` WHERE headers::json ->> 'NServiceBus.MessageId' = $1`, id).Scan(&got))
		if got < want-60 || got > want+60 {
			t.Errorf("%s is due in %v s, want %v", id, got, want)
		}
	}
	nothing(t, receiver(t, c, "in"))
}

// A delayed message can be cancelled until it is delivered.
func TestCancelUntilDelivered(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	c := w.open()
	now, first, second := to("in", msg("now")), to("in", msg("first")), to("in", msg("second"))
	first.After, second.After = time.Hour, time.Hour
	receipts := send(t, c, now, first, second)
	if len(receipts) != 3 || receipts[0].Cancel != "" || receipts[1].Cancel == "" {
		t.Fatalf("receipts %+v, want one for each delayed message", receipts)
	}
	cancel := c.(transport.Canceler).Cancel
	ok(t, cancel(t.Context(), receipts[1].Cancel))
	isErr(t, cancel(t.Context(), receipts[1].Cancel), transport.ErrNotFound)
	w.exec(`UPDATE %sin SET visible_at = now()`)
	for _, d := range receive(t, receiver(t, c, "in"), 2) {
		if d.Message().ID == "first" {
			t.Error("a cancelled message was delivered")
		}
	}
	isErr(t, cancel(t.Context(), receipts[2].Cancel), transport.ErrNotFound)
	for _, bad := range []string{"", "x@in", "1", "1@" + strings.Repeat("q", 64)} {
		isErr(t, cancel(t.Context(), bad), transport.ErrNotFound)
	}
}

func TestAnExpiredMessageIsRemovedAndNeverHandedOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	c := w.open()
	r := receiver(t, c, "in")
	var ops []transport.Operation
	for i := range 10 {
		ops = append(ops, to("in", msg(fmt.Sprint("expired ", i))))
		ops[i].TTL = time.Hour
	}
	kept := to("in", msg("kept"))
	kept.TTL, kept.After = time.Hour, time.Minute
	send(t, c, append(ops, kept)...)
	w.exec(`UPDATE %sin SET expires = expires - interval '2 hours' WHERE visible_at <= now()`)
	w.exec(`UPDATE %sin SET visible_at = now() WHERE visible_at > now()`)
	if id := receive(t, r, 1)[0].Message().ID; id != "kept" {
		t.Errorf("received %q", id)
	}
	nothing(t, r)
	if n := w.count("in"); n != 1 {
		t.Errorf("%d rows, want the one that is kept", n)
	}
}

func TestAPublishedMessageReachesEachSubscriberOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "billing", "shipping", "audit")
	c := w.open()
	subscribe := c.(transport.Subscriber).Subscribe
	ok(t, subscribe(t.Context(), "billing", []string{"Shop.OrderPlaced", "Shop.IEvent"}))
	ok(t, subscribe(t.Context(), "billing", []string{"Shop.OrderPlaced"}))
	ok(t, subscribe(t.Context(), "shipping", []string{"Shop.OrderCancelled"}))
	ok(t, subscribe(t.Context(), "audit", []string{"Shop.IEvent"}))
	placed := transport.Operation{Message: msg("1"), Types: []string{"Shop.OrderPlaced", "Shop.IEvent"}}
	send(t, c, placed, transport.Operation{Message: msg("2"), Types: []string{"No.Subscriber'; DROP TABLE x"}})
	counts := func() [3]int { return [3]int{w.count("billing"), w.count("shipping"), w.count("audit")} }
	if got, want := counts(), [3]int{1, 0, 1}; got != want {
		t.Errorf("copies in billing, shipping, audit: %v, want %v", got, want)
	}
	ok(t, c.(transport.Subscriber).Unsubscribe(t.Context(), "audit", []string{"Shop.IEvent", "Unknown"}))
	d := receive(t, receiver(t, c, "billing"), 1)[0]
	ok(t, completeWith(t, d, placed))
	if got, want := counts(), [3]int{1, 0, 1}; got != want {
		t.Errorf("after a publish by a completion: %v, want %v", got, want)
	}
}

// A message without readable headers is delivered, so that it reaches the error queue.
func TestUnreadableHeadersAreDelivered(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	w.exec(`INSERT INTO %sin (id, headers, body) VALUES ($1, '{"half', 'body')`, anID)
	w.exec(`INSERT INTO %sin (headers) VALUES ('{}')`) // what plain SQL need not give has defaults
	ds := receive(t, receiver(t, w.open(), "in"), 2)
	bad, good := ds[0].Message(), ds[1].Message()
	if bad.Undecodable == nil || bad.ID != anID || string(bad.Body) != "body" || bad.Native["headers"] != `{"half` {
		t.Errorf("undecodable message %+v", bad)
	}
	if good.Undecodable != nil || len(good.ID) != 36 || len(good.Body) != 0 {
		t.Errorf("message from plain SQL %+v", good)
	}
	ok(t, ds[0].Complete(t.Context()))
}
