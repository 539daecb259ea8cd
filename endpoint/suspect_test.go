package endpoint_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// Failures that this process has seen explain a high delivery count: the policy decides how often a
// message is retried.
func TestAPolicyMayRetryMoreOftenThanImmediate(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls, told, want harness.Tally
		for n := range 21 {
			want.Add(fmt.Sprint(n + 1))
		}
		cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
			calls.Add(fmt.Sprint(s.Attempt().N))
			return errNo
		}))
		cfg.Notify = telling(&told)
		cfg.Recoverability.Policy = func(f recoverability.Failure) recoverability.Action {
			if f.Immediate <= 20 {
				return recoverability.Retry{}
			}
			return recoverability.MoveToError{}
		}
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{ID: "m"})
		time.Sleep(time.Minute)
		synctest.Wait()
		if diff := cmp.Diff(want.List(), calls.List()); diff != "" {
			t.Errorf("attempts (-want +got):\n%s", diff)
		}
		if got := told.List(); len(got) != 21 || got[20] != "moved_to_error to error" {
			t.Errorf("told %q", got)
		}
		failed := broker.Messages("error")
		if len(failed) != 1 || failed[0].Headers.Get(header.HoldfastFaultQuarantined) != "" {
			t.Errorf("the error queue has %v", failed)
		}
	})
}

// A message that fails first and then ends each process is parked all the same, and nothing beside
// it is.
func TestFailuresSeenHereDoNotHideWhatEndsTheProcess(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		m := &mortal{Transport: broker}
		var bad, good harness.Tally
		cfg := harness.Sales(m, endpoint.Handle(func(_ context.Context, _ *endpoint.Session, o harness.PlaceOrder) error {
			if o.ID != "bad" {
				good.Add(o.ID)
				return nil
			}
			if bad.Add(o.ID) <= 5 {
				return errNo
			}
			return m.die()
		}))
		cfg.Concurrency = 8
		cfg.Recoverability.Policy = func(f recoverability.Failure) recoverability.Action {
			if f.Quarantined == 0 && f.Immediate <= 20 {
				return recoverability.Retry{}
			}
			return recoverability.MoveToError{}
		}
		broker.CreateQueues("sales")
		for _, id := range []string{"a", "b", "bad", "c", "d"} {
			if err := broker.Put("sales", wire(id)); err != nil {
				t.Fatal(err)
			}
		}
		stop := make(chan struct{})
		time.AfterFunc(time.Hour, func() { close(stop) })
		if deaths := m.supervise(t, cfg, stop); deaths > 9 {
			t.Errorf("the process died %d times", deaths)
		}
		failed := broker.Messages("error")
		if len(failed) != 1 || failed[0].ID != "bad" || failed[0].Headers.Get(header.HoldfastFaultClass) != recoverability.ClassCrashLoop {
			t.Errorf("the error queue has %v", failed)
		}
		if got := titleOf(failed[0].Headers); got != "*recoverability.CrashLoopError: github.com/holdfast-go/holdfast/pipeline.Receive()" {
			t.Errorf("group %q", got)
		}
		for _, id := range []string{"a", "b", "c", "d"} {
			if count(good.List(), id) == 0 {
				t.Errorf("%s is not handled: %q", id, good.List())
			}
		}
	})
}
