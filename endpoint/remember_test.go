package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// watching is a configuration that puts down what the policy is told.
func watching(broker *inmemory.Transport, told *harness.Tally, handle func(context.Context, *endpoint.Session, harness.PlaceOrder) error) endpoint.Config {
	cfg := harness.Sales(broker, endpoint.Handle(handle))
	cfg.Recoverability = recoverability.Config{Immediate: 4, Delayed: recoverability.None}
	cfg.Recoverability.Policy = func(f recoverability.Failure) recoverability.Action {
		var past []string
		for _, p := range f.History {
			_, text, _ := strings.Cut(p.Text, ": ")
			past = append(past, text)
		}
		told.Add(fmt.Sprintf("attempt %d, immediate %d, handled %d, lost %d, after %q", f.Attempt, f.Immediate, f.Handled, f.Lost, past))
		return f.Decide()
	}
	return cfg
}

func TestFailuresCrashesAndLostLeasesAreToldApart(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Lease = 10 * time.Second
		var broken atomic.Bool
		broker.Fail = func(verb, _ string) error {
			if broken.Load() && verb == "Renew" {
				return errors.New("away")
			}
			return nil
		}
		var told harness.Tally
		cfg := watching(broker, &told, func(ctx context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
			if s.Attempt().N != 2 {
				time.Sleep(time.Second) // the handler that lost its lease comes to its end
				return fmt.Errorf("failure %d", s.Attempt().N)
			}
			broken.Store(true)
			<-ctx.Done()
			broken.Store(false)
			return ctx.Err()
		})
		r := harness.Start(t, cfg)
		if err := broker.Put("sales", native("Shop.PlaceOrder", "application/json", `{}`)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		want := []string{
			`attempt 1, immediate 1, handled 1, lost 0, after []`,
			`attempt 3, immediate 3, handled 2, lost 1, after ["failure 1"]`,
			`attempt 4, immediate 4, handled 3, lost 1, after ["failure 1" "failure 3"]`,
			`attempt 5, immediate 5, handled 4, lost 1, after ["failure 1" "failure 3" "failure 4"]`,
		}
		if diff := cmp.Diff(want, told.List()); diff != "" {
			t.Error(diff)
		}
		r.End()
	})
}

// What another process has handled is not known, but the broker counts it.
func TestAFreshProcessKnowsOnlyWhatTheBrokerCounts(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		fail := func(_ context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
			return fmt.Errorf("failure %d", s.Attempt().N)
		}
		put := native("Shop.PlaceOrder", "application/json", `{}`)
		broker.CreateQueues("sales")
		conn, err := broker.Open(t.Context(), transport.Env{})
		if err != nil {
			t.Fatal(err)
		}
		if err := broker.Put("sales", put); err != nil {
			t.Fatal(err)
		}
		for range 2 { // two processes that crash
			crash(t, conn)
		}
		var told harness.Tally
		harness.Start(t, watching(broker, &told, fail))
		synctest.Wait()
		want := []string{
			`attempt 3, immediate 3, handled 1, lost 0, after []`,
			`attempt 4, immediate 4, handled 2, lost 0, after ["failure 3"]`,
			`attempt 5, immediate 5, handled 3, lost 0, after ["failure 3" "failure 4"]`,
		}
		if diff := cmp.Diff(want, told.List()); diff != "" {
			t.Error(diff)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
}

// crash takes a message and does not settle it.
func crash(t *testing.T, conn transport.Conn) {
	t.Helper()
	receiver, err := conn.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: "sales"})
	if err != nil {
		t.Fatal(err)
	}
	ds, err := receiver.Receive(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := ds[0].Retry(t.Context()); err != nil { // counts like the end of a lease
		t.Fatal(err)
	}
	if err := receiver.Close(); err != nil {
		t.Fatal(err)
	}
}

// A message that comes back under its id, from the error queue for instance, starts afresh.
func TestAMessageThatComesBackHasNoPast(t *testing.T) {
	for _, without := range []inmemory.Capability{0, inmemory.Exact} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			broker.Without = without
			var told harness.Tally
			cfg := watching(broker, &told, func(context.Context, *endpoint.Session, harness.PlaceOrder) error { return errNo })
			cfg.Recoverability.Immediate = 1
			r := harness.Start(t, cfg)
			for range 2 {
				r.MustSend(harness.PlaceOrder{}, endpoint.MessageID("same"))
				synctest.Wait()
			}
			want := []string{
				`attempt 1, immediate 1, handled 1, lost 0, after []`,
				`attempt 2, immediate 2, handled 2, lost 0, after ["the bank says no"]`,
				`attempt 1, immediate 1, handled 1, lost 0, after []`,
				`attempt 2, immediate 2, handled 2, lost 0, after ["the bank says no"]`,
			}
			if diff := cmp.Diff(want, told.List()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// More messages fail in turn than are remembered: what the broker does not count ends all the same,
// because the memory holds all that can be out.
func TestRetriesEndHoweverFewFailuresAreRemembered(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Without = inmemory.Exact
		var calls harness.Tally
		cfg := harness.Sales(broker, failing(&calls))
		cfg.Concurrency = 4
		cfg.Recoverability = recoverability.Config{Immediate: 3, Delayed: recoverability.None, Memory: recoverability.Memory{Messages: 1, Bytes: 1}}
		r := harness.Start(t, cfg)
		const messages = 200
		for range messages {
			r.MustSend(harness.PlaceOrder{})
		}
		time.Sleep(time.Minute)
		if got := len(broker.Messages("error")); got != messages {
			t.Errorf("%d messages are in the error queue, want %d", got, messages)
		}
		t.Logf("%d attempts at %d messages", len(calls.List()), messages)
	})
}

// The 24 hours of delayed retries begin with the first attempt that failed, not with the last of
// its cycle.
func TestTheFirstFailureIsThatOfTheFirstAttempt(t *testing.T) {
	for _, without := range []inmemory.Capability{0, inmemory.Exact} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			broker.Without = without
			var first harness.Tally
			begin := time.Now()
			cfg := harness.Sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error {
				time.Sleep(5 * time.Hour)
				return errNo
			}))
			cfg.Recoverability = recoverability.Config{Immediate: 2, Delayed: 5}
			cfg.Recoverability.Policy = func(f recoverability.Failure) recoverability.Action {
				first.Add(f.FirstFailure.Sub(begin).String())
				return f.Decide()
			}
			harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
			time.Sleep(10 * 24 * time.Hour)
			// after 5, 10 and 15 hours, delayed, after 20 and 25 and 30: the end of 24 hours is
			// over
			if diff := cmp.Diff([]string{"5h0m0s", "5h0m0s", "5h0m0s", "5h0m0s", "5h0m0s", "5h0m0s"}, first.List()); diff != "" {
				t.Errorf("without %b: %s", without, diff)
			}
			if got := len(broker.Messages("error")); got != 1 {
				t.Errorf("the error queue has %d messages", got)
			}
		})
	}
}
