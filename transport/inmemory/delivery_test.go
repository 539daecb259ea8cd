package inmemory_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

func TestCompleteRemovesTheMessage(t *testing.T) {
	conn := open(t, &inmemory.Transport{}, "orders")
	dispatch(t, conn, to("orders", "1"), to("orders", "2"))
	do(t, one(t, receiver(t, conn, "orders"), "1").Complete)
	want := transport.QueueStats{Name: "orders", Ready: 1}
	got := stats(t, conn, "orders")
	got.Oldest = 0
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestARetriedMessageComesNextAndCounts(t *testing.T) {
	conn := open(t, &inmemory.Transport{}, "orders")
	dispatch(t, conn, to("orders", "1"), to("orders", "2"))
	r := receiver(t, conn, "orders")
	for want := 1; want <= 3; want++ {
		d := one(t, r, "1")
		if got := d.Attempt(); got != (transport.Attempt{N: want, Exact: true}) {
			t.Fatalf("attempt = %+v, want %d", got, want)
		}
		do(t, d.Retry)
	}
	if got := one(t, r, "1").Attempt().N; got != 4 {
		t.Errorf("attempt = %d, want 4", got)
	}
	if got := one(t, r, "2").Attempt().N; got != 1 {
		t.Errorf("the neighbour's attempt = %d, want 1", got)
	}
}

func TestAReleasedMessageIsUntouched(t *testing.T) {
	conn := open(t, &inmemory.Transport{}, "orders")
	if !conn.Limits().FreeRelease {
		t.Error("Limits.FreeRelease is false")
	}
	dispatch(t, conn, to("orders", "1"))
	r := receiver(t, conn, "orders")
	do(t, one(t, r, "1").Release)
	if got := one(t, r, "1").Attempt().N; got != 1 {
		t.Errorf("attempt = %d, want 1", got)
	}
}

func TestAReturnedMessageKeepsItsPlace(t *testing.T) {
	broker := &inmemory.Transport{}
	conn := open(t, broker, "orders")
	dispatch(t, conn, to("orders", "1"), to("orders", "2"), to("orders", "3"), to("orders", "4"), to("orders", "5"))
	ds := receive(t, receiver(t, conn, "orders"), 4)
	for _, i := range []int{2, 0, 3, 1} {
		do(t, ds[i].Release)
	}
	waiting(t, broker, "orders", "1", "2", "3", "4", "5")
}

func TestDeadLetterMovesToTheQueuesOwn(t *testing.T) {
	conn := open(t, &inmemory.Transport{}, "orders")
	dispatch(t, conn, to("orders", "1"))
	d := one(t, receiver(t, conn, "orders"), "1").(transport.DeadLetterer)
	if err := d.DeadLetter(t.Context(), "poison"); err != nil {
		t.Fatal(err)
	}
	if got := stats(t, conn, "orders"); got.Ready+got.Unsettled != 0 {
		t.Errorf("stats = %+v, want an empty queue", got)
	}
	dead := one(t, receiver(t, conn, "orders.dead"), "1")
	if got := dead.Message().Native["DeadLetterReason"]; got != "poison" {
		t.Errorf("reason = %q", got)
	}
	if got := dead.Attempt().N; got != 1 {
		t.Errorf("attempt = %d, want 1", got)
	}
}

// settles are all the ways to settle a delivery.
var settles = map[string]func(transport.Delivery, context.Context) error{
	"Complete": transport.Delivery.Complete,
	"Retry":    transport.Delivery.Retry,
	"Release":  transport.Delivery.Release,
	"CompleteWith": func(d transport.Delivery, ctx context.Context) error {
		return d.(transport.Completer).CompleteWith(ctx, nil)
	},
	"DeadLetter": func(d transport.Delivery, ctx context.Context) error {
		return d.(transport.DeadLetterer).DeadLetter(ctx, "reason")
	},
	"Begin": func(d transport.Delivery, ctx context.Context) error {
		_, err := d.(transport.Transactor).Begin(ctx)
		return err
	},
}

func TestASecondSettleNeverHitsALaterDelivery(t *testing.T) {
	for verb, settle := range settles {
		t.Run(verb, func(t *testing.T) {
			conn := open(t, &inmemory.Transport{}, "orders")
			dispatch(t, conn, to("orders", "1"))
			r := receiver(t, conn, "orders")
			stale := one(t, r, "1")
			do(t, stale.Retry)
			current := one(t, r, "1")
			if err := settle(stale, t.Context()); !errors.Is(err, transport.ErrLeaseLost) {
				t.Errorf("%s of the earlier delivery: %v, want ErrLeaseLost", verb, err)
			}
			do(t, current.Complete)
		})
	}
}

func TestASettleWithAnEndedContextChangesNothing(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for verb, settle := range settles {
		t.Run(verb, func(t *testing.T) {
			conn := open(t, &inmemory.Transport{}, "orders")
			dispatch(t, conn, to("orders", "1"))
			d := one(t, receiver(t, conn, "orders"), "1")
			if err := settle(d, ended); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v, want the context's error", verb, err)
			}
			do(t, d.Complete)
		})
	}
}

func TestCompleteWithSendsAndCompletes(t *testing.T) {
	broker := &inmemory.Transport{}
	conn := open(t, broker, "orders", "billing", "shipping")
	subscribe(t, conn, "shipping", "OrderPlaced")
	dispatch(t, conn, to("orders", "1"))
	d := one(t, receiver(t, conn, "orders"), "1").(transport.Completer)
	err := d.CompleteWith(t.Context(), []transport.Operation{
		to("billing", "2"), published("3", "OrderPlaced"), to("billing", "4"),
	})
	if err != nil {
		t.Fatal(err)
	}
	waiting(t, broker, "billing", "2", "4")
	waiting(t, broker, "shipping", "3")
	if got := stats(t, conn, "orders"); got.Unsettled != 0 {
		t.Errorf("stats = %+v, want none unsettled", got)
	}
}

// CompleteWith does nothing when an operation is refused.
func TestCompleteWithARefusedOperationDoesNothing(t *testing.T) {
	for name, bad := range map[string]transport.Operation{
		"no queue":  to("nowhere", "3"),
		"too large": to("billing", "three"),
	} {
		t.Run(name, func(t *testing.T) {
			broker := &inmemory.Transport{MaxBody: 4}
			conn := open(t, broker, "orders", "billing")
			dispatch(t, conn, to("orders", "1"))
			d := one(t, receiver(t, conn, "orders"), "1")
			err := d.(transport.Completer).CompleteWith(t.Context(), []transport.Operation{to("billing", "2"), bad})
			var failed *transport.DispatchError
			if !errors.As(err, &failed) || len(failed.Ops) != 1 || failed.Ops[0].Index != 1 {
				t.Errorf("error = %v, want that operation 1 was refused", err)
			}
			waiting(t, broker, "billing")
			do(t, d.Complete) // it is still ours
		})
	}
}

func TestCompleteWithOfALostDeliverySendsNothing(t *testing.T) {
	broker := &inmemory.Transport{}
	conn := open(t, broker, "orders", "billing")
	dispatch(t, conn, to("orders", "1"))
	d := one(t, receiver(t, conn, "orders"), "1")
	do(t, d.Retry)
	err := d.(transport.Completer).CompleteWith(t.Context(), []transport.Operation{to("billing", "2")})
	if !errors.Is(err, transport.ErrLeaseLost) {
		t.Errorf("error = %v, want ErrLeaseLost", err)
	}
	waiting(t, broker, "billing")
}
