package inmemory_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

func TestMessagesArriveInTheOrderTheyWereDispatched(t *testing.T) {
	conn := open(t, &inmemory.Transport{}, "orders")
	dispatch(t, conn, to("orders", "1"), to("orders", "2"), to("orders", "3"))
	dispatch(t, conn, to("orders", "4"))
	r := receiver(t, conn, "orders")
	var got []string
	for _, d := range append(receive(t, r, 3), receive(t, r, 3)...) {
		got = append(got, d.Message().ID)
	}
	if diff := cmp.Diff([]string{"1", "2", "3", "4"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestConnectionsOfOneTransportReachEachOther(t *testing.T) {
	broker := &inmemory.Transport{}
	shop, billing := open(t, broker, "billing"), open(t, broker)
	dispatch(t, shop, to("billing", "1"))
	do(t, one(t, receiver(t, billing, "billing"), "1").Complete)

	other := open(t, &inmemory.Transport{}, "billing")
	dispatch(t, shop, to("billing", "2"))
	nothing(t, other, "billing")
}

func TestMessagesOutliveTheConnection(t *testing.T) {
	broker := &inmemory.Transport{}
	first := open(t, broker, "orders")
	dispatch(t, first, to("orders", "1"))
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	one(t, receiver(t, open(t, broker), "orders"), "1")
}

func TestSenderAndReceiverDoNotShareMemory(t *testing.T) {
	conn := open(t, &inmemory.Transport{}, "orders")
	op := to("orders", "1")
	dispatch(t, conn, op)
	op.Message.Body[0] = 'x'
	op.Message.Headers.Set(header.MessageID, "x")
	op.Message.ID = "x"

	got := one(t, receiver(t, conn, "orders"), "1").Message()
	if string(got.Body) != "1" || got.Headers.Get(header.MessageID) != "1" {
		t.Errorf("the message changed with the sender's: body %q, headers %v", got.Body, got.Headers)
	}
}

func TestSubscribersDoNotShareMemory(t *testing.T) {
	conn := open(t, &inmemory.Transport{}, "a", "b")
	subscribe(t, conn, "a", "Event")
	subscribe(t, conn, "b", "Event")
	dispatch(t, conn, published("1", "Event"))
	one(t, receiver(t, conn, "a"), "1").Message().Body[0] = 'x'
	if got := one(t, receiver(t, conn, "b"), "1").Message().Body; string(got) != "1" {
		t.Errorf("body = %q", got)
	}
}

func TestACopyLosesThePropertiesOfTheDelivery(t *testing.T) {
	broker := &inmemory.Transport{}
	conn := open(t, broker, "orders", "error")
	broken := errors.New("broken")
	err := broker.Put("orders", &transport.Message{
		ID: "1", NativeID: "7", Native: map[string]string{"k": "v"}, Undecodable: broken,
	})
	if err != nil {
		t.Fatal(err)
	}
	m := one(t, receiver(t, conn, "orders"), "1").Message()
	if !errors.Is(m.Undecodable, broken) || m.NativeID != "7" || m.Native["k"] != "v" {
		t.Errorf("received %+v, want it as it was put", m)
	}
	dispatch(t, conn, transport.Operation{Queue: "error", Message: m})
	m = one(t, receiver(t, conn, "error"), "1").Message()
	if m.Undecodable != nil || m.NativeID != "" || m.Native != nil {
		t.Errorf("the copy is %+v", m)
	}
}

func TestPublishGivesEachSubscriberOneCopy(t *testing.T) {
	broker := &inmemory.Transport{}
	conn := open(t, broker, "billing", "shipping", "audit")
	subscribe(t, conn, "billing", "OrderPlaced", "OrderEvent")
	subscribe(t, conn, "shipping", "OrderEvent")
	subscribe(t, conn, "shipping", "OrderEvent") // repeating it changes nothing
	subscribe(t, conn, "audit", "PaymentEvent")

	dispatch(t, conn, published("1", "OrderPlaced", "OrderEvent"), published("2", "OrderEvent"))
	waiting(t, broker, "billing", "1", "2")
	waiting(t, broker, "shipping", "1", "2")
	waiting(t, broker, "audit")
}

func TestUnsubscribeEndsTheCopies(t *testing.T) {
	broker := &inmemory.Transport{}
	conn := open(t, broker, "billing", "shipping")
	subscribe(t, conn, "billing", "OrderPlaced")
	subscribe(t, conn, "shipping", "OrderPlaced")
	err := conn.(transport.Subscriber).Unsubscribe(t.Context(), "billing", []string{"OrderPlaced", "Unknown"})
	if err != nil {
		t.Fatal(err)
	}
	dispatch(t, conn, published("1", "OrderPlaced"))
	waiting(t, broker, "billing")
	waiting(t, broker, "shipping", "1")
}

func TestPublishWithoutSubscribersIsAccepted(t *testing.T) {
	dispatch(t, open(t, &inmemory.Transport{}), published("1", "Unknown"))
}

func TestSubscribeNeedsTheQueue(t *testing.T) {
	conn := open(t, &inmemory.Transport{})
	err := conn.(transport.Subscriber).Subscribe(t.Context(), "nowhere", []string{"Event"})
	if !errors.Is(err, transport.ErrNoQueue) {
		t.Errorf("error = %v, want ErrNoQueue", err)
	}
}

func subscribe(tb testing.TB, conn transport.Conn, queue string, types ...string) {
	tb.Helper()
	if err := conn.(transport.Subscriber).Subscribe(tb.Context(), queue, types); err != nil {
		tb.Fatal(err)
	}
}

func TestARefusedOperationDoesNotFailItsNeighbours(t *testing.T) {
	broker := &inmemory.Transport{MaxBody: 4, MaxHeaders: 40}
	conn := open(t, broker, "orders")
	long := to("orders", "4")
	long.Message.Headers.Set("Long", "0123456789012345678901234567890123456789")
	_, err := conn.Dispatch(t.Context(), []transport.Operation{
		to("orders", "1"), to("nowhere", "2"), to("orders", "three"), long, {Message: message("5")}, to("orders", "6"),
	})
	waiting(t, broker, "orders", "1", "6")

	var failed *transport.DispatchError
	if !errors.As(err, &failed) {
		t.Fatalf("error = %v, want a DispatchError", err)
	}
	var got []int
	for _, op := range failed.Ops {
		got = append(got, op.Index)
	}
	if diff := cmp.Diff([]int{1, 2, 3, 4}, got); diff != "" || failed.Total != 6 {
		t.Errorf("failed operations of %d (-want +got):\n%s", failed.Total, diff)
	}
	if !errors.Is(failed.Ops[0].Err, transport.ErrNoQueue) {
		t.Errorf("missing queue: %v", failed.Ops[0].Err)
	}
	tooLarge(t, failed.Ops[1].Err, transport.TooLargeError{What: "body", Size: 5, Max: 4})
	tooLarge(t, failed.Ops[2].Err, transport.TooLargeError{What: "headers", Size: long.Message.Headers.Size(), Max: 40})
}

func tooLarge(tb testing.TB, err error, want transport.TooLargeError) {
	tb.Helper()
	var got *transport.TooLargeError
	if !errors.As(err, &got) || *got != want {
		tb.Errorf("error = %v, want %v", err, &want)
	}
}

func TestADelayedMessageArrivesWhenItIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := open(t, &inmemory.Transport{}, "orders")
		start := time.Now()
		after, at, past := to("orders", "after"), to("orders", "at"), to("orders", "past")
		after.After = time.Hour
		at.At, at.After = start.Add(time.Minute), time.Hour // At wins
		past.At = start.Add(-time.Minute)
		dispatch(t, conn, after, at, past)

		r := receiver(t, conn, "orders")
		for _, want := range []struct {
			id    string
			after time.Duration
		}{{"past", 0}, {"at", time.Minute}, {"after", time.Hour}} {
			one(t, r, want.id)
			if got := time.Since(start); got != want.after {
				t.Errorf("%q arrived after %v, want %v", want.id, got, want.after)
			}
		}
	})
}

func TestDelaysThatEndTogetherKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := &inmemory.Transport{}
		conn := open(t, broker, "orders")
		for _, id := range []string{"1", "2", "3", "4", "5"} {
			op := to("orders", id)
			op.After = time.Second
			dispatch(t, conn, op)
		}
		dispatch(t, conn, to("orders", "0"))
		time.Sleep(time.Second)
		waiting(t, broker, "orders", "0", "1", "2", "3", "4", "5")
	})
}

func TestAWaitingReceiveNoticesAnEarlierDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := open(t, &inmemory.Transport{}, "orders")
		start := time.Now()
		late, early := to("orders", "late"), to("orders", "early")
		late.After, early.After = time.Hour, time.Minute
		dispatch(t, conn, late)
		go func() {
			time.Sleep(time.Second)
			dispatch(t, conn, early)
		}()
		one(t, receiver(t, conn, "orders"), "early")
		if got, want := time.Since(start), time.Minute+time.Second; got != want {
			t.Errorf("arrived after %v, want %v", got, want)
		}
	})
}

func TestADelayOverTheLimitIsRefused(t *testing.T) {
	conn := open(t, &inmemory.Transport{MaxDelay: time.Minute}, "orders")
	if got := conn.Limits().MaxDelay; got != time.Minute {
		t.Errorf("Limits.MaxDelay = %v", got)
	}
	op := to("orders", "1")
	op.After = time.Minute
	dispatch(t, conn, op)
	op.After++
	if _, err := conn.Dispatch(t.Context(), []transport.Operation{op}); err == nil {
		t.Error("a longer delay was accepted")
	}
}

func TestAnExpiredMessageIsDiscarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := &inmemory.Transport{}
		conn := open(t, broker, "orders")
		brief, delayed := to("orders", "brief"), to("orders", "delayed")
		brief.TTL = time.Minute
		delayed.TTL, delayed.After = time.Minute, time.Hour
		dispatch(t, conn, brief, to("orders", "kept"), delayed)

		time.Sleep(time.Minute - 1)
		waiting(t, broker, "orders", "brief", "kept")
		time.Sleep(time.Nanosecond)
		waiting(t, broker, "orders", "kept")
		time.Sleep(time.Hour - time.Minute)
		waiting(t, broker, "orders", "kept", "delayed") // its TTL counts from here
		time.Sleep(time.Minute)
		waiting(t, broker, "orders", "kept")
	})
}

func TestAReceivedMessageExpiresWhenItReturns(t *testing.T) {
	for name, test := range map[string]struct {
		before, after time.Duration // handling, and in the queue again
		settle        func(transport.Delivery) func(context.Context) error
		delivered     bool
	}{
		"retried in time":            {time.Second, time.Second, func(d transport.Delivery) func(context.Context) error { return d.Retry }, true},
		"retried late":               {time.Hour, 0, func(d transport.Delivery) func(context.Context) error { return d.Retry }, false},
		"released late":              {time.Hour, 0, func(d transport.Delivery) func(context.Context) error { return d.Release }, false},
		"waiting when its time ends": {time.Second, time.Hour, func(d transport.Delivery) func(context.Context) error { return d.Retry }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := open(t, &inmemory.Transport{}, "orders")
				op := to("orders", "1")
				op.TTL = time.Minute
				dispatch(t, conn, op, to("orders", "2"))
				r := receiver(t, conn, "orders")
				d := one(t, r, "1")
				time.Sleep(test.before)
				do(t, test.settle(d))
				time.Sleep(test.after)
				next := "2"
				if test.delivered {
					next = "1"
				}
				one(t, r, next)
			})
		})
	}
}

func TestCancelCallsADelayedMessageBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := open(t, &inmemory.Transport{}, "orders")
		canceler := conn.(transport.Canceler)
		a, b, c := to("orders", "a"), to("orders", "b"), to("orders", "c")
		a.After, b.After, c.After = time.Minute, time.Minute, time.Hour
		receipts := dispatch(t, conn, to("orders", "now"), a, b, c)
		if len(receipts) != 4 || receipts[0].Cancel != "" {
			t.Fatalf("receipts = %v, want one for each delayed message", receipts)
		}
		cancel := func(i int) error { return canceler.Cancel(t.Context(), receipts[i].Cancel) }
		if err := cancel(2); err != nil {
			t.Fatal(err)
		}
		if err := cancel(2); !errors.Is(err, transport.ErrNotFound) {
			t.Errorf("cancelled twice: %v", err)
		}
		time.Sleep(time.Minute)
		r := receiver(t, conn, "orders")
		do(t, one(t, r, "now").Complete)
		do(t, one(t, r, "a").Complete)
		if err := cancel(1); !errors.Is(err, transport.ErrNotFound) {
			t.Errorf("cancelled after it was delivered: %v", err)
		}
		if err := cancel(3); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(transport.QueueStats{Name: "orders"}, stats(t, conn, "orders")); diff != "" {
			t.Error(diff)
		}
	})
}

func TestADueMessageCanBeCancelledUntilItIsHandedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := open(t, &inmemory.Transport{}, "orders")
		op := to("orders", "1")
		op.After = time.Minute
		receipt := dispatch(t, conn, op)[0].Cancel
		time.Sleep(time.Minute)
		if got := stats(t, conn, "orders").Ready; got != 1 {
			t.Fatalf("%d ready messages, want 1", got)
		}
		if err := conn.(transport.Canceler).Cancel(t.Context(), receipt); err != nil {
			t.Fatal(err)
		}
		nothing(t, conn, "orders")
	})
}

func TestADelayedPublishHasNoReceipt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := open(t, &inmemory.Transport{}, "a", "b")
		subscribe(t, conn, "a", "Event")
		subscribe(t, conn, "b", "Event")
		op := published("1", "Event")
		op.After = time.Minute
		if receipts := dispatch(t, conn, op); receipts != nil {
			t.Errorf("receipts = %v", receipts)
		}
		for _, queue := range []string{"a", "b"} {
			one(t, receiver(t, conn, queue), "1")
		}
	})
}
