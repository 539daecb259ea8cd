package inmemory_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

func TestInstallMakesTheQueues(t *testing.T) {
	conn := open(t, &inmemory.Transport{})
	plan := transport.Plan{Queues: []transport.Queue{{Name: "orders"}, {Name: "error", Shared: true}}}
	for range 2 {
		if err := conn.(transport.Installer).Install(t.Context(), plan); err != nil {
			t.Fatal(err)
		}
		dispatch(t, conn, to("orders", "1"), to("error", "2"))
	}
	if got := stats(t, conn, "orders").Ready; got != 2 {
		t.Errorf("%d messages, want that the second Install left the first alone", got)
	}
}

func TestARemovedCapabilityCannotBeFound(t *testing.T) {
	all := []inmemory.Capability{
		inmemory.Installer, inmemory.Subscriber, inmemory.Inspector, inmemory.Completer, inmemory.Transactor,
		inmemory.DeadLetterer, inmemory.ByteReceiver, inmemory.OutboxStore,
	}
	for set := range 1 << len(all) {
		var without inmemory.Capability
		for i, c := range all {
			if set&(1<<i) != 0 {
				without |= c
			}
		}
		broker := &inmemory.Transport{Without: without}
		conn := open(t, broker, "orders")
		dispatch(t, conn, to("orders", "1"))
		r := receiver(t, conn, "orders")
		d := one(t, r, "1")
		got := inmemory.Capability(0)
		add := func(found bool, c inmemory.Capability) {
			if !found {
				got |= c
			}
		}
		add(is[transport.Installer](conn), inmemory.Installer)
		add(is[transport.Verifier](conn), inmemory.Installer)
		add(is[transport.SubscriptionVerifier](conn), inmemory.Installer)
		add(is[transport.Remover](conn), inmemory.Installer)
		add(is[transport.Subscriber](conn), inmemory.Subscriber)
		add(is[transport.Inspector](conn), inmemory.Inspector)
		add(is[transport.Completer](d), inmemory.Completer)
		add(is[transport.Transactor](d), inmemory.Transactor)
		add(is[transport.DeadLetterer](d), inmemory.DeadLetterer)
		add(is[transport.ByteReceiver](r), inmemory.ByteReceiver)
		inboxes := without&(inmemory.Installer|inmemory.OutboxStore) == 0
		for name, right := range map[string]bool{
			"OutboxStore":     is[transport.OutboxStore](conn) == inboxes,
			"InboxInspector":  is[transport.InboxInspector](conn) == inboxes,
			"HandledRecorder": is[transport.HandledRecorder](d) == (inboxes && without&inmemory.Transactor == 0),
		} {
			if !right {
				t.Errorf("without %b, a type assertion finds the wrong answer for %s", without, name)
			}
		}
		got |= without & inmemory.OutboxStore
		if got != without {
			t.Errorf("without %b, %b are missing", without, got)
		}
		if !is[transport.Satellites](conn) {
			t.Errorf("without %b, there are no satellites", without)
		}
		do(t, d.Complete)
	}
}

func is[T any](v any) bool {
	_, ok := v.(T)
	return ok
}

func TestWithoutSubscriberPublishingIsRefused(t *testing.T) {
	conn := open(t, &inmemory.Transport{Without: inmemory.Subscriber})
	if _, err := conn.Dispatch(t.Context(), []transport.Operation{published("1", "Event")}); err == nil {
		t.Error("the publish was accepted")
	}
}

func TestWithoutDelayDelaysAreRefused(t *testing.T) {
	conn := open(t, &inmemory.Transport{Without: inmemory.Delay}, "orders")
	if got := conn.Limits().MaxDelay; got != 0 {
		t.Errorf("Limits.MaxDelay = %v", got)
	}
	op := to("orders", "1")
	op.At = time.Now().Add(time.Hour)
	if _, err := conn.Dispatch(t.Context(), []transport.Operation{op}); err == nil {
		t.Error("the delay was accepted")
	}
}

func TestWithDelaysAnyDelayIsTaken(t *testing.T) {
	if got := open(t, &inmemory.Transport{}).Limits().MaxDelay; got != transport.Unlimited {
		t.Errorf("Limits.MaxDelay = %v, want Unlimited", got)
	}
}

func TestWithoutExactTheAttemptIsALowerBound(t *testing.T) {
	conn := open(t, &inmemory.Transport{Without: inmemory.Exact}, "orders")
	dispatch(t, conn, to("orders", "1"))
	r := receiver(t, conn, "orders")
	var got []transport.Attempt
	for range 3 {
		d := one(t, r, "1")
		got = append(got, d.Attempt())
		do(t, d.Retry)
	}
	if diff := cmp.Diff([]transport.Attempt{{N: 1}, {N: 2}, {N: 2}}, got); diff != "" {
		t.Error(diff)
	}
}

func TestWithoutFreeReleaseAReleaseCounts(t *testing.T) {
	conn := open(t, &inmemory.Transport{Without: inmemory.FreeRelease}, "orders")
	if conn.Limits().FreeRelease {
		t.Error("Limits.FreeRelease is true")
	}
	dispatch(t, conn, to("orders", "1"))
	r := receiver(t, conn, "orders")
	do(t, one(t, r, "1").Release)
	if got := one(t, r, "1").Attempt().N; got != 2 {
		t.Errorf("attempt = %d, want 2", got)
	}
}

func TestWithoutTransactorAtomicModeIsNotOffered(t *testing.T) {
	if open(t, &inmemory.Transport{Without: inmemory.Transactor}).Limits().Atomic {
		t.Error("Limits.Atomic is true")
	}
}

func TestFailRefusesACallOnce(t *testing.T) {
	away := errors.New("away")
	failing := map[string]bool{}
	broker := &inmemory.Transport{Lease: time.Minute, Fail: func(verb, object string) error {
		if !failing[verb] {
			return nil
		}
		delete(failing, verb)
		return fmt.Errorf("%s: %w", object, away)
	}}
	conn := open(t, broker, "orders")
	dispatch(t, conn, to("orders", "1"))
	r := receiver(t, conn, "orders")
	d := one(t, r, "1")
	calls := map[string]func() error{
		"Open": func() error {
			_, err := broker.Open(t.Context(), transport.Env{})
			return err
		},
		"OpenReceiver": func() error {
			_, err := conn.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: "orders"})
			return err
		},
		"Dispatch": func() error {
			_, err := conn.Dispatch(t.Context(), []transport.Operation{to("orders", "2")})
			return err
		},
		"Receive": func() error {
			_, err := r.Receive(t.Context(), 1)
			return err
		},
		"Renew":   func() error { return r.(transport.Renewer).Renew(t.Context(), []transport.Delivery{d})[0] },
		"Install": func() error { return conn.(transport.Installer).Install(t.Context(), transport.Plan{}) },
		"Verify": func() error {
			_, err := conn.(transport.Verifier).Verify(t.Context(), transport.Plan{})
			return err
		},
		"VerifySubscriptions": func() error {
			_, err := conn.(transport.SubscriptionVerifier).VerifySubscriptions(t.Context(), "orders", nil)
			return err
		},
		"Remove":      func() error { return conn.(transport.Remover).Remove(t.Context(), "orders") },
		"Subscribe":   func() error { return conn.(transport.Subscriber).Subscribe(t.Context(), "orders", nil) },
		"Unsubscribe": func() error { return conn.(transport.Subscriber).Unsubscribe(t.Context(), "orders", nil) },
		"Cancel":      func() error { return conn.(transport.Canceler).Cancel(t.Context(), "1") },
		"Inspect": func() error {
			_, err := conn.(transport.Inspector).Inspect(t.Context())
			return err
		},
		"FindHandled": func() error {
			_, err := conn.(transport.OutboxStore).FindHandled(t.Context(), "handled", nil)
			return err
		},
		"Store": func() error {
			return conn.(transport.OutboxStore).Store(t.Context(), transport.OutboxEntry{Ops: []transport.Operation{to("orders", "2")}})
		},
		"BeginStore": func() error {
			_, err := conn.(transport.OutboxStore).BeginStore(t.Context(), transport.OutboxEntry{})
			return err
		},
		"InspectInbox": func() error {
			_, err := conn.(transport.InboxInspector).InspectInbox(t.Context(), "handled")
			return err
		},
		"ForgetHandled": func() error {
			_, err := conn.(transport.InboxInspector).ForgetHandled(t.Context(), "handled", nil)
			return err
		},
	}
	for verb, settle := range settles {
		calls[verb] = func() error { return settle(d, t.Context()) }
	}
	for verb, call := range calls {
		failing[verb] = true
		if err := call(); !errors.Is(err, away) {
			t.Errorf("%s: %v, want the error of Fail", verb, err)
		}
	}
	do(t, d.Complete) // none of it did anything
	nothing(t, conn, "orders")
}

func TestFailCanRefuseOneDestination(t *testing.T) {
	full := errors.New("full")
	broker := &inmemory.Transport{Fail: func(verb, object string) error {
		if verb == "Dispatch" && (object == "full" || object == "Event") {
			return full
		}
		return nil
	}}
	conn := open(t, broker, "orders", "full")
	_, err := conn.Dispatch(t.Context(), []transport.Operation{
		to("full", "1"), to("orders", "2"), published("3", "Event"),
	})
	var failed *transport.DispatchError
	if !errors.As(err, &failed) || len(failed.Ops) != 2 || !errors.Is(err, full) {
		t.Errorf("error = %v, want operations 0 and 2 refused", err)
	}
	waiting(t, broker, "orders", "2")
}

func TestDispatchWithAnEndedContextSendsNothing(t *testing.T) {
	broker := &inmemory.Transport{}
	conn := open(t, broker, "orders")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := conn.Dispatch(ctx, []transport.Operation{to("orders", "1")})
	var failed *transport.DispatchError
	if !errors.As(err, &failed) || !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v", err)
	}
	waiting(t, broker, "orders")
}

func TestPutNeedsTheQueue(t *testing.T) {
	broker := &inmemory.Transport{}
	if err := broker.Put("nowhere", message("1")); !errors.Is(err, transport.ErrNoQueue) {
		t.Errorf("error = %v, want ErrNoQueue", err)
	}
	waiting(t, broker, "nowhere")
}

func TestRemoveEndsReceiversAndDeliveries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := &inmemory.Transport{}
		conn := open(t, broker, "orders", "orders.dead")
		delayed := to("orders", "delayed")
		delayed.After = time.Hour
		receipt := dispatch(t, conn, delayed, to("orders", "1"))[0].Cancel
		r := receiver(t, conn, "orders")
		stale := one(t, r, "1")
		failed := make(chan error, 1)
		go func() {
			_, err := r.Receive(t.Context(), 1)
			failed <- err
		}()
		synctest.Wait()
		if err := conn.(transport.Remover).Remove(t.Context(), "orders"); err != nil {
			t.Fatal(err)
		}
		if err := <-failed; !errors.Is(err, transport.ErrNoQueue) {
			t.Errorf("Receive: %v, want ErrNoQueue", err)
		}
		if err := stale.Complete(t.Context()); !errors.Is(err, transport.ErrLeaseLost) {
			t.Errorf("Complete: %v, want ErrLeaseLost", err)
		}
		if err := conn.(transport.Canceler).Cancel(t.Context(), receipt); !errors.Is(err, transport.ErrNotFound) {
			t.Errorf("Cancel: %v, want ErrNotFound", err)
		}
		if all, err := conn.(transport.Inspector).Inspect(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("queues = %v, %v, want none", all, err)
		}
		broker.CreateQueues("orders")
		dispatch(t, conn, to("orders", "2"))
		one(t, r, "2")
	})
}

func TestSatellitesArePassedOn(t *testing.T) {
	broker := &inmemory.Transport{Satellites: []transport.Satellite{{Queue: "orders.dead"}}}
	got, err := open(t, broker).(transport.Satellites).Satellites(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0].Queue != "orders.dead" {
		t.Errorf("satellites = %v", got)
	}
}

func TestUnsubscribeDoesNothingWithoutASubscription(t *testing.T) {
	conn := open(t, &inmemory.Transport{})
	if err := conn.(transport.Subscriber).Unsubscribe(t.Context(), "orders", []string{"Shop.Order"}); err != nil {
		t.Error(err)
	}
}
