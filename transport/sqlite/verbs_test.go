package sqlite

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

func TestAMessageArrivesAsItWasSent(t *testing.T) {
	conn := dial(t, Transport{Path: temp(t)}, queue)
	sent := message("m1")
	send(t, conn, transport.Operation{Queue: queue, Message: sent})
	d := receive(t, receiver(t, conn, queue))
	got := d.Message()
	if diff := cmp.Diff(sent.Headers, got.Headers, cmp.AllowUnexported(header.Map{})); diff != "" {
		t.Error("headers (-sent +received):\n", diff)
	}
	if got.ID != "m1" || string(got.Body) != string(sent.Body) || got.NativeID == "" || got.Undecodable != nil {
		t.Errorf("received %+v", got)
	}
	if d.Attempt() != (transport.Attempt{N: 1, Exact: true}) {
		t.Errorf("attempt %+v, want the first and exact", d.Attempt())
	}
}

func TestAnEmptyBodyArrivesEmpty(t *testing.T) {
	conn := dial(t, Transport{Path: temp(t)}, queue)
	send(t, conn, transport.Operation{Queue: queue, Message: &transport.Message{ID: "m"}},
		transport.Operation{Queue: queue, Message: &transport.Message{ID: "n", Body: []byte{}}})
	r := receiver(t, conn, queue)
	for range 2 {
		if m := receive(t, r).Message(); len(m.Body) != 0 || m.Undecodable != nil {
			t.Errorf("received %+v", m)
		}
	}
}

func TestCompleteRemovesTheMessage(t *testing.T) {
	path := temp(t)
	conn := dial(t, Transport{Path: path}, queue)
	send(t, conn, to(queue, "m"))
	if err := receive(t, receiver(t, conn, queue)).Complete(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := count(t, mine(t, path), `select count(*) from holdfast_messages`); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

func TestRetryCountsAndReleaseDoesNot(t *testing.T) {
	conn := dial(t, Transport{Path: temp(t)}, queue)
	send(t, conn, to(queue, "m"))
	r := receiver(t, conn, queue)
	d := receive(t, r)
	if err := d.Retry(t.Context()); err != nil {
		t.Fatal(err)
	}
	d = receive(t, r)
	if d.Attempt().N != 2 {
		t.Errorf("after Retry the attempt is %d, want 2", d.Attempt().N)
	}
	if err := d.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := receive(t, r).Attempt().N; n != 2 {
		t.Errorf("after Release the attempt is %d, want 2", n)
	}
}

func TestCompleteWithSendsAndCompletes(t *testing.T) {
	conn := dial(t, Transport{Path: temp(t)}, queue, "shipping")
	send(t, conn, to(queue, "m"))
	d := receive(t, receiver(t, conn, queue))
	if err := d.(transport.Completer).CompleteWith(t.Context(), []transport.Operation{to("shipping", "a"), to("shipping", "b")}); err != nil {
		t.Fatal(err)
	}
	r := receiver(t, conn, "shipping")
	if a, b := receive(t, r).Message().ID, receive(t, r).Message().ID; a != "a" || b != "b" {
		t.Errorf("received %s, %s", a, b)
	}
	if err := d.Complete(t.Context()); !errors.Is(err, transport.ErrLeaseLost) {
		t.Errorf("completing it again: %v, want ErrLeaseLost", err)
	}
}

func TestCompleteWithAMissingQueueCompletesNothing(t *testing.T) {
	conn := dial(t, Transport{Path: temp(t)}, queue, "shipping")
	send(t, conn, to(queue, "m"))
	d := receive(t, receiver(t, conn, queue))
	err := d.(transport.Completer).CompleteWith(t.Context(), []transport.Operation{to("shipping", "a"), to("nowhere", "b")})
	var failed *transport.DispatchError
	if !errors.As(err, &failed) || len(failed.Ops) != 1 || failed.Ops[0].Index != 1 || !errors.Is(err, transport.ErrNoQueue) {
		t.Fatalf("error %v, want ErrNoQueue for operation 1", err)
	}
	stats := inspectAll(t, conn)
	want := []transport.QueueStats{{Name: queue, Unsettled: 1}, {Name: "shipping"}}
	if diff := cmp.Diff(want, stats); diff != "" {
		t.Error("queues (-want +got):\n", diff)
	}
	if err := d.Complete(t.Context()); err != nil {
		t.Error("it can still be completed:", err)
	}
}

func inspectAll(t *testing.T, conn transport.Conn, queues ...string) []transport.QueueStats {
	t.Helper()
	stats, err := conn.(transport.Inspector).Inspect(t.Context(), queues...)
	if err != nil {
		t.Fatal(err)
	}
	return stats
}

func TestAMissingQueueFailsItsOperationOnly(t *testing.T) {
	conn := dial(t, Transport{Path: temp(t)}, queue)
	_, err := conn.Dispatch(t.Context(), []transport.Operation{to(queue, "a"), to("nowhere", "b"), to(queue, "c")})
	var failed *transport.DispatchError
	if !errors.As(err, &failed) || len(failed.Ops) != 1 || failed.Ops[0].Index != 1 || !errors.Is(err, transport.ErrNoQueue) {
		t.Fatalf("error %v, want ErrNoQueue for operation 1", err)
	}
	if s := inspectAll(t, conn, queue); s[0].Ready != 2 {
		t.Errorf("%d messages are there, want 2", s[0].Ready)
	}
	_, err = conn.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: "nowhere"})
	if !errors.Is(err, transport.ErrNoQueue) {
		t.Errorf("receiver of a missing queue: %v, want ErrNoQueue", err)
	}
	_, err = conn.(transport.Inspector).Inspect(t.Context(), "nowhere")
	if !errors.Is(err, transport.ErrNoQueue) {
		t.Errorf("inspect of a missing queue: %v, want ErrNoQueue", err)
	}
}

func TestADelayedMessageWakesAReceiverWhenDue(t *testing.T) {
	conn := dial(t, Transport{Path: temp(t)}, queue)
	r := receiver(t, conn, queue)
	start := time.Now()
	op := to(queue, "m")
	op.After = 200 * time.Millisecond
	send(t, conn, op)
	receive(t, r)
	if took := time.Since(start); took < op.After || took > op.After+20*time.Second {
		t.Errorf("a message due after %v came after %v", op.After, took)
	}
}

func TestAMessageForTheFarFutureIsNotDelivered(t *testing.T) {
	conn := dial(t, Transport{Path: temp(t)}, queue)
	never := []time.Time{time.Unix(1<<62, 0), time.Unix(1<<63-62135596801, 999999999), time.UnixMicro(1<<62 + 1)}
	for i, at := range never {
		op := to(queue, strconv.Itoa(i))
		op.At = at
		if _, err := conn.Dispatch(t.Context(), []transport.Operation{op}); err != nil {
			t.Fatal(err)
		}
	}
	stats, err := conn.(transport.Inspector).Inspect(t.Context(), queue)
	if err != nil {
		t.Fatal(err)
	}
	if got := stats[0]; got.Delayed != int64(len(never)) || got.Ready != 0 {
		t.Errorf("%d messages are ready and %d delayed, want all %d delayed", got.Ready, got.Delayed, len(never))
	}
}

func TestWhatAnotherProcessWritesWakesTheListener(t *testing.T) {
	path := temp(t)
	other := dial(t, Transport{Path: path}, queue)
	s, err := open(t.Context(), path, false)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, _, err := s.Claim(t.Context(), tablequeue.Claim{Queue: queue, Limit: 1, Lease: 1, For: time.Second}, nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, woken, ended := make(chan struct{}), make(chan string, 100), make(chan error)
	go func() {
		ended <- s.Listen(ctx, func() { close(ready) }, func(queue string) { woken <- queue })
	}()
	<-ready
	<-woken // on what came before
	send(t, other, to(queue, "m"))
	if q := <-woken; q != queue {
		t.Errorf("woken for %q", q)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}

func TestACancelledMessageNeverArrives(t *testing.T) {
	conn := dial(t, Transport{Path: temp(t)}, queue)
	op := to(queue, "m")
	op.After = time.Hour
	receipt := send(t, conn, op)[0].Cancel
	cancel := conn.(transport.Canceler).Cancel
	if err := cancel(t.Context(), receipt); err != nil {
		t.Fatal(err)
	}
	if err := cancel(t.Context(), receipt); !errors.Is(err, transport.ErrNotFound) {
		t.Errorf("again: %v, want ErrNotFound", err)
	}
	// The number of a row is never used twice.
	again := send(t, conn, op)[0].Cancel
	if again == receipt {
		t.Errorf("two messages have the receipt %q", receipt)
	}
	if err := cancel(t.Context(), receipt); !errors.Is(err, transport.ErrNotFound) {
		t.Errorf("with another message there: %v, want ErrNotFound", err)
	}
}

func TestAnExpiredMessageIsRemoved(t *testing.T) {
	path := temp(t)
	conn := dial(t, Transport{Path: path}, queue)
	stale := to(queue, "stale")
	stale.TTL = time.Microsecond
	send(t, conn, stale, to(queue, "good"))
	if id := receive(t, receiver(t, conn, queue)).Message().ID; id != "good" {
		t.Errorf("received %q", id)
	}
	if n := count(t, mine(t, path), `select count(*) from holdfast_messages`); n != 1 {
		t.Errorf("%d rows are left, want the good one", n)
	}
}

func TestASubscriberOfSeveralTypesGetsOneCopy(t *testing.T) {
	conn := dial(t, Transport{Path: temp(t)}, queue, "shipping", "idle")
	sub := conn.(transport.Subscriber)
	subscribe := func(queue string, types ...string) {
		t.Helper()
		for range 2 { // repeating it changes nothing
			if err := sub.Subscribe(t.Context(), queue, types); err != nil {
				t.Fatal(err)
			}
		}
	}
	subscribe(queue, "OrderPlaced", "IOrder")
	subscribe("shipping", "IOrder")
	subscribe("idle", "IOrder")
	if err := sub.Unsubscribe(t.Context(), "idle", []string{"IOrder", "Never"}); err != nil {
		t.Fatal(err)
	}
	send(t, conn, transport.Operation{Message: message("e"), Types: []string{"OrderPlaced", "IOrder"}})
	send(t, conn, transport.Operation{Message: message("f"), Types: []string{"Unheard"}})
	var ready []int64
	for _, s := range inspectAll(t, conn, queue, "shipping", "idle") {
		ready = append(ready, s.Ready)
	}
	if diff := cmp.Diff([]int64{1, 1, 0}, ready); diff != "" {
		t.Error("copies (-want +got):\n", diff)
	}
	if err := sub.Subscribe(t.Context(), "nowhere", []string{"T"}); !errors.Is(err, transport.ErrNoQueue) {
		t.Errorf("subscribing a missing queue: %v, want ErrNoQueue", err)
	}
}

func TestInspectTellsReadyFromUnsettledFromDelayed(t *testing.T) {
	conn := dial(t, Transport{Path: temp(t)}, queue, "empty")
	later := to(queue, "later")
	later.After = time.Hour
	gone := to(queue, "gone")
	gone.TTL = time.Microsecond
	send(t, conn, to(queue, "a"), to(queue, "b"), to(queue, "c"), later)
	receive(t, receiver(t, conn, queue))
	send(t, conn, gone)
	stats := inspectAll(t, conn)
	if stats[0].Oldest <= 0 || stats[0].Oldest > time.Minute {
		t.Errorf("the oldest is %v old", stats[0].Oldest)
	}
	stats[0].Oldest = 0
	want := []transport.QueueStats{{Name: queue, Ready: 2, Unsettled: 1, Delayed: 1}, {Name: "empty"}}
	if diff := cmp.Diff(want, stats); diff != "" {
		t.Error("queues (-want +got):\n", diff)
	}
}

func TestMessagesInsertedWithPlainSQLAreReceived(t *testing.T) {
	path := temp(t)
	conn := dial(t, Transport{Path: path}, queue)
	db := mine(t, path)
	execute(t, db, `insert into holdfast_messages (queue, headers, body) values (?, '{"a":1}', '{"order":7}')`, queue)
	execute(t, db, `insert into holdfast_messages (queue, headers, body) values (?, 'not json', x'00ff')`, queue)
	execute(t, db, `insert into holdfast_messages (queue, headers) values (?, cast(x'7b22fffe22' as text))`, queue)
	r := receiver(t, conn, queue)
	m := receive(t, r).Message()
	if m.Headers.Get("a") != "1" || string(m.Body) != `{"order":7}` || m.ID == "" {
		t.Errorf("received %+v", m)
	}
	bad := receive(t, r).Message()
	if bad.Undecodable == nil || string(bad.Body) != "\x00\xff" {
		t.Errorf("a row that cannot be decoded came as %+v", bad)
	}
	if bad := receive(t, r).Message(); bad.Undecodable == nil {
		t.Errorf("a row that cannot be decoded came as %+v", bad)
	}
}

func TestALargeBodyPassesAndAnOversizedOneIsRefused(t *testing.T) {
	conn := dial(t, Transport{Path: temp(t)}, queue)
	big := message("big")
	big.Body = make([]byte, 8<<20)
	send(t, conn, transport.Operation{Queue: queue, Message: big})
	if n := len(receive(t, receiver(t, conn, queue)).Message().Body); n != 8<<20 {
		t.Errorf("received %d bytes", n)
	}
	big.Body = make([]byte, conn.Limits().MaxBody+1)
	_, err := conn.Dispatch(t.Context(), []transport.Operation{{Queue: queue, Message: big}})
	if !errors.Is(err, transport.ErrTooLarge) {
		t.Errorf("error %v, want ErrTooLarge", err)
	}
}

func TestTheReasonOfARetryIsTheRowsLastError(t *testing.T) {
	path := temp(t)
	conn := dial(t, Transport{Path: path}, queue)
	db := mine(t, path)
	send(t, conn, to(queue, "m"))
	r := receiver(t, conn, queue)
	for range 2 {
		if err := receive(t, r).(transport.RetryReasoner).RetryBecause(t.Context(), "no such order"); err != nil {
			t.Fatal(err)
		}
		if err := receive(t, r).Retry(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := count(t, db, `select count(*) from holdfast_messages where last_error = 'no such order'`); n != 1 {
			t.Errorf("%d rows have it", n)
		}
	}
}
