package endpoint_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/resilience"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// mail has four retries, of which the last one is cut: 10 s, 20 s, 40 s, 1 min.
var mail = resilience.Policy{Name: "mail", Retry: resilience.Retry{
	Max: 4, Delay: 10 * time.Second, Backoff: resilience.Exponential, MaxDelay: time.Minute,
}}

func TestDeferredRetriesAreDelayedCopies(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls, log harness.Tally
		var last header.Map
		cfg := retrying(broker, resilience.Deferred(mail), attempts(&calls, 99, errNo), endpoint.Handle(
			func(context.Context, *endpoint.Session, *harness.ShipOrder) error { return nil }))
		cfg.Recoverability.Immediate = 7
		cfg.Logger = quietExcept(&log, "WARN DelayedRetry: Delayed Retry will reschedule message")
		cfg.Notify = append(cfg.Notify, func(_ context.Context, n recoverability.Notification) { last = n.Failure.Headers })
		began := time.Now().UTC()
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{}, endpoint.MessageID("m-1"))
		time.Sleep(time.Hour)
		synctest.Wait()
		var want []string
		var at time.Duration
		for n := 1; n <= 5; n++ {
			want = append(want, fmt.Sprintf("%v: delivery 1, attempt %d of 5", at, n))
			at += mail.DelayFor(n, nil)
		}
		if diff := cmp.Diff(want, calls.List()); diff != "" {
			t.Error(diff)
		}
		for name, want := range map[string]string{
			header.HoldfastRetryPolicy: "mail", header.HoldfastRetryAttempt: "5", header.Retries: "4",
			header.HoldfastFirstFailure: header.FormatTime(began), header.MessageID: "m-1",
			header.HoldfastRetryLastError: "handler endpoint_test.attempts.func1: " + errNo.Error(),
		} {
			if got := last.Get(name); got != want {
				t.Errorf("the last attempt has %s %q, want %q", name, got, want)
			}
		}
		if n := len(log.List()); n != 4 {
			t.Errorf("%d lines about retries, want 4: %q", n, log.List())
		}
		failed := broker.Messages("error")
		if len(failed) != 1 {
			t.Fatalf("the error queue has %d messages", len(failed))
		}
		for name := range failed[0].Headers.All() {
			if strings.HasPrefix(name, "Holdfast.Retry.") || name == header.Retries {
				t.Errorf("the copy in the error queue has %s", name)
			}
		}
		if got := failed[0].Headers.Get(header.HoldfastFaultPolicy); got != "mail" {
			t.Errorf("the copy in the error queue names policy %q", got)
		}
		if n := len(broker.Messages("shipping")); n != 0 {
			t.Errorf("failed attempts sent %d messages", n)
		}
	})
}

// A message that waits for its deferred retry survives a restart of the endpoint.
func TestADeferredRetrySurvivesARestart(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls harness.Tally
		cfg := retrying(broker, resilience.Deferred(mail), attempts(&calls, 2, errNo))
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{})
		time.Sleep(15 * time.Second)
		r.End()
		time.Sleep(time.Minute)
		harness.Start(t, cfg)
		time.Sleep(time.Hour)
		want := []string{"0s: delivery 1, attempt 1 of 5", "10s: delivery 1, attempt 2 of 5", "1m15s: delivery 1, attempt 3 of 5"}
		if diff := cmp.Diff(want, calls.List()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestDeferredRetriesEndWithAnErrorThatNoRetryHelps(t *testing.T) {
	for name, err := range map[string]error{"non-retryable": resilience.NonRetryable(errNo), "unrecoverable": recoverability.Unrecoverable(errNo)} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			var calls harness.Tally
			harness.Start(t, retrying(broker, resilience.Deferred(mail), attempts(&calls, 99, err))).MustSend(harness.PlaceOrder{})
			time.Sleep(time.Hour)
			if a, b := len(calls.List()), len(broker.Messages("error")); a != 1 || b != 1 {
				t.Errorf("%s: %d attempts, %d in the error queue, want 1 and 1", name, a, b)
			}
		})
	}
}

// A policy of days is as good as one of seconds, unlike the default's delayed retries.
func TestDeferredRetriesMayTakeDays(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		daily := resilience.Policy{Name: "daily", Retry: resilience.Retry{Max: 6, Delay: 24 * time.Hour}}
		var calls harness.Tally
		harness.Start(t, retrying(broker, resilience.Deferred(daily), attempts(&calls, 99, errNo))).MustSend(harness.PlaceOrder{})
		time.Sleep(9 * 24 * time.Hour)
		if n := len(calls.List()); n != 7 {
			t.Errorf("%d attempts, want 7", n)
		}
	})
}

func TestAMessageCanNameItsPolicy(t *testing.T) {
	named := func(name string) endpoint.SendOption { return endpoint.Header(header.HoldfastPolicy, name) }
	for name, test := range map[string]struct {
		rule   resilience.Use
		header string
		want   int // attempts
		log    bool
	}{
		"without a rule":       {header: "mail", want: 5},
		"before a rule":        {rule: resilience.Inline(quick), header: "mail", want: 5},
		"the policy of a rule": {rule: resilience.Inline(quick), header: "quick", want: 3},
		"unknown, with a rule": {rule: resilience.Inline(quick), header: "nail", want: 3, log: true},
		"unknown":              {header: "nail", want: 2, log: true},
		"a long name":          {header: strings.Repeat("x", 1<<20), want: 2, log: true},
		"empty":                {header: "", want: 2},
		"odd":                  {header: "mail\x00", want: 2, log: true},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				var calls, log harness.Tally
				cfg := retrying(broker, test.rule, attempts(&calls, 99, errNo))
				cfg.Recoverability.Immediate, cfg.Recoverability.Delayed = 1, recoverability.None
				cfg.Recoverability.Policies = resilience.MustCatalog(mail)
				cfg.Logger = quietExcept(&log, "WARN: a message names a retry policy that the endpoint does not have")
				harness.Start(t, cfg).MustSend(harness.PlaceOrder{}, named(test.header))
				time.Sleep(time.Hour)
				if n := len(calls.List()); n != test.want {
					t.Errorf("%d attempts, want %d: %q", n, test.want, calls.List())
				}
				failed := broker.Messages("error")
				if len(failed) != 1 || failed[0].Headers.Get(header.HoldfastPolicy) != test.header {
					t.Errorf("the error queue has %d messages", len(failed))
				}
				if logged := len(log.List()) > 0; logged != test.log {
					t.Errorf("the log says %q", log.List())
				}
			})
		})
	}
}

// A message waits while its policy is renamed: its type's retries count from then on.
func TestAPolicyThatIsGoneAtRedeliveryIsLogged(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls, log harness.Tally
		cfg := retrying(broker, resilience.Deferred(mail), attempts(&calls, 99, errNo))
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{})
		time.Sleep(5 * time.Second)
		r.End()
		cfg = harness.Sales(broker, cfg.Handlers...)
		cfg.Recoverability = recoverability.Config{Immediate: 1, Delayed: recoverability.None}
		cfg.Logger = quietExcept(&log, "WARN: a message names a retry policy that the endpoint does not have")
		harness.Start(t, cfg)
		time.Sleep(time.Hour)
		if a, b := len(calls.List()), len(log.List()); a != 3 || b != 2 {
			t.Errorf("%d attempts and %d lines, want 3 and 2", a, b)
		}
	})
}

// The number of retries is that of the policy when the message fails, and not of that when it
// failed first.
func TestDeferredRetriesAreReadAtTheFailure(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls harness.Tally
		cfg := retrying(broker, resilience.Deferred(mail), attempts(&calls, 99, errNo))
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{})
		time.Sleep(5 * time.Second)
		r.End()
		fewer := mail
		fewer.Retry.Max = 1
		harness.Start(t, retrying(broker, resilience.Deferred(fewer), cfg.Handlers...))
		time.Sleep(time.Hour)
		if n := len(calls.List()); n != 2 {
			t.Errorf("%d attempts, want 2", n)
		}
	})
}

func TestHostileRetryHeadersBreakNothing(t *testing.T) {
	for _, value := range []string{"-1", "1000000000000000000000000000000", "garbage", "", "0x10", strings.Repeat("9", 1<<20)} {
		for _, name := range []string{header.HoldfastRetryAttempt, header.HoldfastRetryPolicy, header.HoldfastRetryLastError, header.Retries} {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				var calls harness.Tally
				cfg := retrying(broker, resilience.Deferred(mail), attempts(&calls, 99, errNo))
				harness.Start(t, cfg).MustSend(harness.PlaceOrder{}, stateful.Header{Name: name, Value: value})
				time.Sleep(time.Hour)
				if a, b := len(calls.List()), len(broker.Messages("error")); a != 5 || b != 1 {
					t.Errorf("%s %.20q: %d attempts, %d in the error queue, want 5 and 1", name, value, a, b)
				}
			})
		}
	}
}

// A message that an operator returns has all its attempts again, and the policy that it names.
func TestAReturnedMessageStartsItsDeferredRetriesAnew(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls harness.Tally
		cfg := harness.Sales(broker, attempts(&calls, 99, errNo))
		cfg.Recoverability.Policies = resilience.MustCatalog(mail)
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{}, endpoint.Header(header.HoldfastPolicy, "mail"))
		time.Sleep(time.Hour)
		failed := broker.Messages("error")
		if len(failed) != 1 {
			t.Fatalf("the error queue has %d messages", len(failed))
		}
		again := *failed[0]
		again.Headers = fault.ReturnHeaders(again.Headers)
		if err := broker.Put("sales", &again); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		time.Sleep(time.Hour)
		if got := calls.List(); len(got) != 10 || !strings.HasSuffix(got[5], "attempt 1 of 5") || !strings.HasSuffix(got[9], "attempt 5 of 5") {
			t.Errorf("attempts: %q", got)
		}
	})
}

// While messages wait for their deferred retries, others are handled in the only slot.
func TestAMessageThatWaitsForItsDeferredRetryHasNoSlot(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls, placed harness.Tally
		cfg := retrying(broker, resilience.Deferred(mail), attempts(&calls, 99, errNo),
			endpoint.Handle(func(context.Context, *endpoint.Session, harness.ShipOrder) error { placed.Add(""); return nil }))
		cfg.Concurrency = 1
		r := harness.Start(t, cfg)
		r.MustSendMany(10)
		r.MustSend(harness.ShipOrder{}, endpoint.To("sales"))
		synctest.Wait()
		if a, b := len(calls.List()), len(placed.List()); a != 10 || b != 1 {
			t.Errorf("%d first attempts and %d other messages, want 10 and 1", a, b)
		}
		if h := r.Health(); h.Queues[0].Handling+h.Queues[0].Settling != 0 {
			t.Errorf("messages that wait are held: %+v", h.Queues[0])
		}
	})
}

// New refuses deferred policies that cannot be carried out.
func TestImpossibleDeferredPoliciesAreRefused(t *testing.T) {
	named := func(c *endpoint.Config) {
		c.Recoverability = recoverability.Config{Policies: resilience.MustCatalog(mail)}
	}
	for name, test := range map[string]struct {
		change  func(*endpoint.Config)
		without inmemory.Capability
		longest time.Duration
		want    string
	}{
		"no delays":             {without: inmemory.Delay, want: `rule 1: policy "mail" is deferred, but the transport offers no delays: use resilience.Inline`},
		"no delays, named":      {change: named, without: inmemory.Delay, want: `Policies: policy "mail" is deferred, but the transport offers no delays`},
		"short delays":          {longest: 59 * time.Second, want: `policy "mail" has a delay of 1m0s, but the transport offers at most 59s: set Retry.MaxDelay`},
		"transaction mode None": {change: func(c *endpoint.Config) { c.Transactions = endpoint.None }, want: "Transactions is None"},
		"None, named":           {change: func(c *endpoint.Config) { named(c); c.Transactions = endpoint.None }, want: "policy \"mail\" of Policies has retries, but Transactions is None"},
		"ids are forgotten before": {change: func(c *endpoint.Config) {
			c.Transactions, c.Remember = endpoint.SendsAtomicWithReceive, 24*time.Hour
			slow := mail
			slow.Retry.Delay, slow.Retry.MaxDelay = 7*time.Hour, 0
			c.Recoverability.Rules[0].Retry = resilience.Deferred(slow)
		}, want: "raise Remember"},
		"delays that fit": {longest: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				broker.Without, broker.MaxDelay = test.without, test.longest
				cfg := retrying(broker, resilience.Deferred(mail), failing(&harness.Tally{}))
				if test.change != nil {
					test.change(&cfg)
				}
				e, err := endpoint.New(cfg)
				if err == nil {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					err = e.Run(ctx)
				}
				switch {
				case test.want == "" && err != nil:
					t.Errorf("refused with %v", err)
				case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
					t.Errorf("%v, want %s", err, test.want)
				}
			})
		})
	}
}

// quietExcept returns a logger of the lines that begin with a text.
func quietExcept(log *harness.Tally, begin string) *slog.Logger {
	return slog.New(withPrefix{lines{log}, begin})
}

type withPrefix struct {
	lines
	begin string
}

func (b withPrefix) Handle(ctx context.Context, r slog.Record) error {
	var one harness.Tally
	err := lines{&one}.Handle(ctx, r)
	for _, line := range one.List() {
		if strings.HasPrefix(line, b.begin) {
			b.Add(line)
		}
	}
	return err
}
