package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/resilience"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// quick has two retries, after 10 s and 20 s.
var quick = resilience.Policy{Name: "quick", Retry: resilience.Retry{Max: 2, Delay: 10 * time.Second, Backoff: resilience.Linear}}

// retrying is sales with a policy for PlaceOrder.
func retrying(broker *inmemory.Transport, use resilience.Use, handlers ...endpoint.Handler) endpoint.Config {
	cfg := harness.Sales(broker, handlers...)
	cfg.Recoverability.Rules = []recoverability.Rule{{Types: []string{"Shop.PlaceOrder"}, Retry: use}}
	return cfg
}

// attempts records the time, the delivery and the number of each attempt, and fails up to the last
// of them.
func attempts(calls *harness.Tally, failures int, err error) endpoint.Handler {
	began := time.Now()
	return endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m harness.PlaceOrder) error {
		n, most := resilience.Attempt(ctx)
		made := calls.Add(fmt.Sprintf("%v: delivery %d, attempt %d of %d", time.Since(began), s.Attempt().N, n, most))
		if sent := s.Send(ctx, harness.ShipOrder{ID: fmt.Sprint(made)}); sent != nil {
			return sent
		}
		if made <= failures {
			return err
		}
		return nil
	})
}

func TestInlineRetriesAreMadeWithinTheDelivery(t *testing.T) {
	for name, mode := range map[string]endpoint.TransactionMode{"receive only": endpoint.ReceiveOnly, "atomic": endpoint.SendsAtomicWithReceive} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				broker.Lease = 3 * time.Second
				var calls, committed harness.Tally
				cfg := retrying(broker, resilience.Inline(quick), attempts(&calls, 2, errNo))
				cfg.Transactions = mode
				if mode == endpoint.SendsAtomicWithReceive {
					inner := cfg.Handlers[0]
					cfg.Handlers = []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
						return inmemory.OnCommit(ctx, s, func() { committed.Add("") })
					}), inner}
				}
				harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
				time.Sleep(time.Hour)
				want := []string{"0s: delivery 1, attempt 1 of 3", "10s: delivery 1, attempt 2 of 3", "30s: delivery 1, attempt 3 of 3"}
				if diff := cmp.Diff(want, calls.List()); diff != "" {
					t.Error(diff)
				}
				if sent := broker.Messages("shipping"); len(sent) != 1 || string(sent[0].Body) != `{"ID":"3"}` {
					t.Errorf("%d messages were sent, want the one of the last attempt", len(sent))
				}
				if n := len(committed.List()); mode == endpoint.SendsAtomicWithReceive && n != 1 {
					t.Errorf("%d transactions were committed, want that of the last attempt", n)
				}
				if left := len(broker.Messages("sales")) + len(broker.Messages("error")); left > 0 {
					t.Errorf("%d messages are left", left)
				}
			})
		})
	}
}

// After the inline retries the message is in the error queue.
func TestInlineRetriesEndInTheErrorQueue(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls, log harness.Tally
		cfg := retrying(broker, resilience.Inline(quick), attempts(&calls, 99, errNo))
		var kinds harness.Tally
		cfg.Notify = append(cfg.Notify, func(_ context.Context, n recoverability.Notification) {
			kinds.Add(fmt.Sprintf("%s %d %v", n.Kind, n.Retry, n.Action))
		})
		cfg.Logger = slog.New(lines{&log})
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{}, endpoint.MessageID("m-1"))
		time.Sleep(time.Hour)
		if n := len(calls.List()); n != 3 {
			t.Errorf("%d attempts, want 3", n)
		}
		failed := broker.Messages("error")
		if len(failed) != 1 {
			t.Fatalf("the error queue has %d messages", len(failed))
		}
		h := failed[0].Headers
		for name, want := range map[string]string{
			header.ExceptionMessage: "handler endpoint_test.attempts.func1: " + errNo.Error(), header.HoldfastFaultPolicy: "quick",
			header.HoldfastFaultInline: "2", header.HoldfastAttempts: "1", header.FailedQ: "sales",
		} {
			if got := h.Get(name); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
		if n := strings.Count(h.Get(header.HoldfastFaultHistory), errNo.Error()); n != 2 {
			t.Errorf("the history has %d failures, want 2: %s", n, h.Get(header.HoldfastFaultHistory))
		}
		want := []string{"inline_retry 1 retry inline after 10s", "inline_retry 2 retry inline after 20s", `moved_to_error 0 move to error queue "error"`}
		if diff := cmp.Diff(want, kinds.List()); diff != "" {
			t.Error(diff)
		}
		wantLog := []string{
			"INFO InlineRetry: Inline Retry is going to retry message 'm-1' after a delay of 00:00:10 because of an exception:",
			"INFO InlineRetry: Inline Retry is going to retry message 'm-1' after a delay of 00:00:20 because of an exception:",
			"ERROR MoveToError: Moving message 'm-1' to the error queue 'error' because processing failed due to an exception:",
		}
		if diff := cmp.Diff(wantLog, log.List()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestErrorsThatNoRetryHelpsEndTheInlineRetries(t *testing.T) {
	for name, fail := range map[string]func() error{
		"non-retryable": func() error { return fmt.Errorf("pay: %w", resilience.NonRetryable(errNo)) },
		"joined":        func() error { return errors.Join(errNo, resilience.NonRetryable(errNo)) },
		"unrecoverable": func() error { return recoverability.Unrecoverable(errNo) },
		"a panic":       func() error { panic("at the disco") },
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				calls := 0
				harness.Start(t, retrying(broker, resilience.Inline(quick), endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error {
					calls++
					return fail()
				}))).MustSend(harness.PlaceOrder{})
				synctest.Wait()
				if n := len(broker.Messages("error")); calls != 1 || n != 1 {
					t.Errorf("%d attempts, %d messages in the error queue, want 1 and 1", calls, n)
				}
			})
		})
	}
}

// Other messages are handled while one message waits for its inline retry.
func TestAnInlineRetryHoldsUpNoOtherMessage(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls, placed harness.Tally
		cfg := retrying(broker, resilience.Inline(quick),
			attempts(&calls, 8, errNo), // four messages wait twice
			endpoint.HandleInOrderBy(func(m harness.ShipOrder) string { return m.ID }, func(context.Context, *endpoint.Session, harness.ShipOrder) error {
				placed.Add("")
				return nil
			}))
		cfg.Concurrency = 2
		r := harness.Start(t, cfg)
		r.MustSendMany(4)
		synctest.Wait()
		for k := range 6 {
			r.MustSend(harness.ShipOrder{ID: fmt.Sprint(k)}, endpoint.To("sales"))
		}
		synctest.Wait()
		if a, b := len(calls.List()), len(placed.List()); a != 4 || b != 6 {
			t.Errorf("%d first attempts and %d other messages at once, want 4 and 6", a, b)
		}
		time.Sleep(time.Hour)
		if n := len(broker.Messages("error")); len(calls.List()) != 12 || n != 0 {
			t.Errorf("%d attempts, %d in the error queue", len(calls.List()), n)
		}
	})
}

// A message that waits for its retry is not one of those that are handled at once.
func TestAnInlineWaitIsOutsideTheTypeLimit(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls harness.Tally
		cfg := retrying(broker, resilience.Inline(quick), attempts(&calls, 3, errNo))
		cfg.Messages[0] = cfg.Messages[0].AtMost(1)
		harness.Start(t, cfg).MustSendMany(3)
		synctest.Wait()
		if n := len(calls.List()); n != 3 {
			t.Errorf("%d first attempts at once, want 3", n)
		}
		time.Sleep(time.Hour)
		if n := len(calls.List()); n != 6 {
			t.Errorf("%d attempts, want 6", n)
		}
	})
}

// A behavior of the Recover stage sees each inline retry, can change it, and what it sends is sent.
func TestTheRecoverStageSeesInlineRetries(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls harness.Tally
		var late func() error
		cfg := retrying(broker, resilience.Inline(quick), attempts(&calls, 99, errNo))
		cfg.Pipeline.Recover.Use("change", func(next pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
			return func(ctx context.Context, rec *pipeline.Recover) error {
				if late != nil { // a call from an earlier attempt does nothing
					if err := late(); err == nil {
						t.Error("the recovery of another attempt went on")
					}
				}
				late = func() error { return next(ctx, rec) }
				if _, ok := rec.Action.(recoverability.RetryInline); ok {
					rec.Action = recoverability.RetryInline{For: time.Second}
				}
				return errors.Join(rec.Sender().Send(ctx, harness.ShipOrder{ID: fmt.Sprint(rec.Action)}), next(ctx, rec))
			}
		})
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
		time.Sleep(time.Hour)
		want := []string{"0s: delivery 1, attempt 1 of 3", "1s: delivery 1, attempt 2 of 3", "2s: delivery 1, attempt 3 of 3"}
		if diff := cmp.Diff(want, calls.List()); diff != "" {
			t.Error(diff)
		}
		sent := []string{`{"ID":"retry inline after 1s"}`, `{"ID":"retry inline after 1s"}`, `{"ID":"move to error queue \"error\""}`}
		if diff := cmp.Diff(sent, bodies(broker, "shipping")); diff != "" {
			t.Error(diff)
		}
	})
}

// The number of messages that wait for inline retries is bounded.
func TestInlineWaitsAreBounded(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls harness.Tally
		cfg := retrying(broker, resilience.Inline(quick), attempts(&calls, 99, errNo))
		cfg.Concurrency = 2
		harness.Start(t, cfg).MustSendMany(20)
		synctest.Wait()
		if n := len(calls.List()); n != 10 {
			t.Errorf("%d first attempts at once, want five times the concurrency", n)
		}
		time.Sleep(time.Hour)
		if a, b := len(calls.List()), len(broker.Messages("error")); a != 60 || b != 20 {
			t.Errorf("%d attempts, %d in the error queue, want 60 and 20", a, b)
		}
	})
}

// A message with a key gives it up while it waits, and takes it again.
func TestAMessageThatWaitsForItsInlineRetryHasNoKey(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var order harness.Tally
		seen := map[string]int{}
		cfg := retrying(broker, resilience.Inline(quick), endpoint.HandleInOrderBy(func(harness.PlaceOrder) string { return "k" },
			func(_ context.Context, _ *endpoint.Session, m harness.PlaceOrder) error {
				order.Add(m.ID)
				if seen[m.ID]++; m.ID == "bad" && seen[m.ID] == 1 {
					return errNo
				}
				return nil
			}))
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{ID: "bad"})
		r.MustSend(harness.PlaceOrder{ID: "good"})
		time.Sleep(time.Minute)
		if diff := cmp.Diff([]string{"bad", "good", "bad"}, order.List()); diff != "" {
			t.Error(diff)
		}
	})
}

// A stop releases a message that waits for its inline retry.
func TestAStopReleasesInlineWaits(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls harness.Tally
		cfg := retrying(broker, resilience.Inline(quick), attempts(&calls, 1, errNo))
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{})
		time.Sleep(5 * time.Second)
		began := time.Now()
		r.End()
		if took := time.Since(began); took > 0 {
			t.Errorf("the stop took %v", took)
		}
		left := broker.Messages("sales")
		if len(left) != 1 || len(broker.Messages("error")) != 0 {
			t.Fatalf("%d messages are in the queue, want 1", len(left))
		}
		for _, name := range []string{header.Retries, header.HoldfastRetryAttempt, header.HoldfastHistory} {
			if v, ok := left[0].Headers.Lookup(name); ok {
				t.Errorf("the message has %s %q", name, v)
			}
		}
		harness.Start(t, cfg)
		synctest.Wait()
		if n := len(calls.List()); n != 2 || len(broker.Messages("sales")) != 0 {
			t.Errorf("%d attempts, want 2", n)
		}
	})
}

// A message whose lease is lost while it waits is another delivery's: the retry is not made.
func TestALostLeaseEndsTheWaitForAnInlineRetry(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Lease = 3 * time.Second
		var lost atomic.Bool
		broker.Fail = func(verb, _ string) error {
			if verb == "Renew" && lost.Load() {
				return errNo
			}
			return nil
		}
		var calls harness.Tally
		r := harness.Start(t, retrying(broker, resilience.Inline(quick), attempts(&calls, 1, errNo)))
		lost.Store(true)
		r.MustSend(harness.PlaceOrder{})
		time.Sleep(time.Hour)
		if diff := cmp.Diff([]string{"0s: delivery 1, attempt 1 of 3", "3s: delivery 2, attempt 1 of 3"}, calls.List()); diff != "" {
			t.Error(diff)
		}
		if n := len(broker.Messages("sales")) + len(broker.Messages("error")); n != 0 {
			t.Errorf("%d messages are left", n)
		}
	})
}

// Deliveries before this one do not count: a crash is no failure of the message.
func TestInlineRetriesStartAnewWithEachDelivery(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Without = inmemory.FreeRelease
		var calls harness.Tally
		cfg := retrying(broker, resilience.Inline(quick), attempts(&calls, 4, errNo))
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{})
		time.Sleep(12 * time.Second)
		r.End()
		r = harness.Start(t, cfg)
		time.Sleep(time.Second)
		r.End()
		harness.Start(t, cfg)
		time.Sleep(time.Hour)
		want := []string{
			"0s: delivery 1, attempt 1 of 3", "10s: delivery 1, attempt 2 of 3", "12s: delivery 2, attempt 1 of 3",
			"13s: delivery 3, attempt 1 of 3", "23s: delivery 3, attempt 2 of 3",
		}
		if diff := cmp.Diff(want, calls.List()); diff != "" {
			t.Error(diff)
		}
		if n := len(broker.Messages("error")); n != 0 {
			t.Errorf("%d messages are in the error queue", n)
		}
	})
}

// In quarantine all other messages would wait for a retry: it follows in the message's own queue.
func TestNoRetryIsMadeInlineInQuarantine(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Without = inmemory.FreeRelease
		var calls harness.Tally
		cfg := retrying(broker, resilience.Inline(quick), attempts(&calls, 2, errNo))
		cfg.Recoverability.Quarantine.After = 1
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{})
		time.Sleep(time.Second)
		r.End() // counts as a delivery that was lost, in another process
		harness.Start(t, cfg)
		time.Sleep(time.Hour)
		want := []string{"0s: delivery 1, attempt 1 of 3", "1s: delivery 1, attempt 1 of 3", "11s: delivery 1, attempt 1 of 3"}
		if diff := cmp.Diff(want, calls.List()); diff != "" {
			t.Error(diff)
		}
		if n := len(broker.Messages("error")); n != 0 {
			t.Errorf("%d messages are in the error queue", n)
		}
	})
}
