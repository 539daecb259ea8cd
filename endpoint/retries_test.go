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
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// failingAll fails commands and events alike, and counts them by type.
func failingAll(calls *harness.Tally) []endpoint.Handler {
	fail := func(s *endpoint.Session, m any) error {
		calls.Add(fmt.Sprintf("%T %d", m, s.Attempt().N))
		return fmt.Errorf("charge: %w", errNo)
	}
	return []endpoint.Handler{
		endpoint.Handle(func(_ context.Context, s *endpoint.Session, m harness.PlaceOrder) error { return fail(s, m) }),
		endpoint.Handle(func(_ context.Context, s *endpoint.Session, m harness.OrderPlaced) error { return fail(s, m) }),
	}
}

func TestRulesAreOfMessageTypesAndTheirBases(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls harness.Tally
		cfg := harness.Sales(broker, failingAll(&calls)...)
		cfg.Recoverability = recoverability.Config{
			Immediate: 1, Delayed: recoverability.None,
			Rules: []recoverability.Rule{{Types: []string{"Shop.IOrderEvent"}, Immediate: 3, ErrorQueue: "events-failed"}},
		}
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{})
		if err := r.Publish(t.Context(), harness.OrderPlaced{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		counts := map[string]int{}
		for _, call := range calls.List() {
			name, _, _ := strings.Cut(call, " ")
			counts[name]++
		}
		if diff := cmp.Diff(map[string]int{"harness.PlaceOrder": 2, "harness.OrderPlaced": 4}, counts); diff != "" {
			t.Error(diff)
		}
		if a, b := len(broker.Messages("error")), len(broker.Messages("events-failed")); a != 1 || b != 1 {
			t.Errorf("error has %d messages and events-failed %d, want 1 and 1", a, b)
		}
	})
}

func TestARuleOfAnUnknownTypeIsRefused(t *testing.T) {
	cfg := harness.Sales(&inmemory.Transport{})
	cfg.Recoverability.Rules = []recoverability.Rule{
		{Types: []string{"Shop.PlaceOrder", "Shop.IOrderEvent"}}, {Types: []string{"Shop.PlaceOrder", "Shop.PlacedOrder"}},
	}
	_, err := endpoint.New(cfg)
	const want = `recoverability: rule 2: no message in Config.Messages is called "Shop.PlacedOrder" or has that base`
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "rule 1") {
		t.Errorf("New says %v, want %s", err, want)
	}
}

func TestAnEndpointIsNoErrorQueueOfARule(t *testing.T) {
	for _, queue := range []string{"sales", "sales-a"} {
		cfg := harness.Sales(&inmemory.Transport{})
		cfg.Instance, cfg.InstanceQueue = "a", true
		cfg.Recoverability.Rules = []recoverability.Rule{{Action: recoverability.MoveToError{Queue: queue}}}
		if _, err := endpoint.New(cfg); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("are both %q", queue)) {
			t.Errorf("New says %v", err)
		}
	}
}

func TestConfiguredErrorsAreFoundInWhatAHandlerReturns(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls harness.Tally
		cfg := harness.Sales(broker, failingAll(&calls)...)
		cfg.Recoverability.Unrecoverable = []recoverability.Matcher{recoverability.Is(errNo)}
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
		synctest.Wait()
		if a, b := len(calls.List()), len(broker.Messages("error")); a != 1 || b != 1 {
			t.Errorf("%d attempts, %d in the error queue, want 1 and 1", a, b)
		}
	})
}

func TestAFeatureMayAddUnrecoverableErrors(t *testing.T) {
	feature := func(cfg *endpoint.Config) {
		cfg.Recoverability.Unrecoverable = append(cfg.Recoverability.Unrecoverable, recoverability.Is(errNo))
	}
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls harness.Tally
		cfg := harness.Sales(broker, failingAll(&calls)...)
		feature(&cfg)
		e, err := endpoint.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Recoverability.Unrecoverable[0] = nil // New has copied it
		harness.Run(t, e).MustSend(harness.PlaceOrder{})
		synctest.Wait()
		if got := len(calls.List()); got != 1 {
			t.Errorf("%d attempts, want 1", got)
		}
	})
}

// What a policy is told is what the transport and the mode can do.
func TestImpossibleRetriesAreWarnedOf(t *testing.T) {
	set := recoverability.Config{Immediate: 2, Delayed: 4}
	noNumbers := recoverability.Config{}
	ruled := recoverability.Config{Rules: []recoverability.Rule{{Types: []string{"Shop.PlaceOrder"}, Immediate: 1}}}
	const none, noDelays = "transaction mode None has none", "the transport offers no delays"
	for name, test := range map[string]struct {
		without inmemory.Capability
		mode    endpoint.TransactionMode
		config  recoverability.Config
		warned  string
		allowed recoverability.Retries
	}{
		"all of them":                  {0, endpoint.ReceiveOnly, set, "", recoverability.Retries{Immediate: 2, Delayed: 4}},
		"the defaults":                 {0, endpoint.ReceiveOnly, noNumbers, "", recoverability.Retries{Immediate: 5, Delayed: 3}},
		"no delays":                    {inmemory.Delay, endpoint.ReceiveOnly, set, noDelays, recoverability.Retries{Immediate: 2}},
		"no delays, defaults":          {inmemory.Delay, endpoint.ReceiveOnly, noNumbers, noDelays, recoverability.Retries{Immediate: 5}},
		"no delays, none wanted":       {inmemory.Delay, endpoint.ReceiveOnly, once, "", recoverability.Retries{}},
		"None":                         {0, endpoint.None, set, none, recoverability.Retries{}},
		"None, by a rule":              {0, endpoint.None, ruled, none, recoverability.Retries{}},
		"None, the defaults":           {0, endpoint.None, noNumbers, none, recoverability.Retries{}},
		"None, none wanted":            {0, endpoint.None, once, "", recoverability.Retries{}},
		"None, without delays":         {inmemory.Delay, endpoint.None, set, none, recoverability.Retries{}},
		"None, none wanted, no delays": {inmemory.Delay, endpoint.None, once, "", recoverability.Retries{}},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				broker.Without = test.without
				var log harness.Log
				var allowed []recoverability.Retries
				cfg := harness.Sales(broker, failing(&harness.Tally{}))
				cfg.Transactions, cfg.Recoverability = test.mode, test.config
				cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
				cfg.Recoverability.Policy = func(f recoverability.Failure) recoverability.Action {
					allowed = append(allowed, f.Allowed())
					return recoverability.MoveToError{}
				}
				r := harness.Start(t, cfg)
				warned := log.String()
				if !strings.Contains(warned, test.warned) || (test.warned == "") == strings.Contains(warned, "retries are off") {
					t.Errorf("the log says\n%swant %q", warned, test.warned)
				}
				r.MustSend(harness.PlaceOrder{})
				synctest.Wait()
				if diff := cmp.Diff([]recoverability.Retries{test.allowed}, allowed); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// A policy of one's own for one case, around what the endpoint is configured to do.
func TestAPolicyAroundTheConfigurationInForce(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Without = inmemory.Delay
		var calls harness.Tally
		cfg := harness.Sales(broker, failing(&calls))
		cfg.Recoverability = recoverability.Config{Immediate: 2, Delayed: 4, ErrorQueue: "failed"}
		cfg.Recoverability.Policy = func(f recoverability.Failure) recoverability.Action { return f.Decide() }
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
		synctest.Wait()
		if a, b := len(calls.List()), len(broker.Messages("failed")); a != 3 || b != 1 {
			t.Errorf("%d attempts, %d in the error queue, want 3 and 1", a, b)
		}
	})
}

// What a behavior of the Recover stage decides is held to the same as what the policy does.
func TestAnImpossibleDecisionMovesToTheErrorQueue(t *testing.T) {
	for name, test := range map[string]struct {
		mode   endpoint.TransactionMode
		action recoverability.Action
	}{
		"a retry in mode None":                 {endpoint.None, recoverability.Retry{}},
		"a delay in mode None":                 {endpoint.None, recoverability.Delay{For: time.Second}},
		"a delay where there is none":          {endpoint.ReceiveOnly, recoverability.Delay{For: time.Second}},
		"a dead letter where there is none":    {endpoint.ReceiveOnly, recoverability.DeadLetter{Reason: "no"}},
		"nothing":                              {endpoint.ReceiveOnly, nil},
		"the configured queue, by no name":     {endpoint.ReceiveOnly, recoverability.MoveToError{}},
		"the queue that it is in":              {endpoint.ReceiveOnly, recoverability.MoveToError{Queue: "sales"}},
		"the quarantine":                       {endpoint.ReceiveOnly, recoverability.MoveToError{Queue: "sales.quarantine"}},
		"a queue that is not there":            {endpoint.ReceiveOnly, recoverability.MoveToError{Queue: "nowhere"}},
		"a queue that is not there, mode None": {endpoint.None, recoverability.MoveToError{Queue: "nowhere"}},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				broker.Without = inmemory.Delay | inmemory.DeadLetterer
				var calls harness.Tally
				cfg := harness.Sales(broker, failing(&calls))
				cfg.Transactions = test.mode
				cfg.Pipeline.Recover.Use("decide", func(next pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
					return func(ctx context.Context, rec *pipeline.Recover) error {
						rec.Action = test.action
						return next(ctx, rec)
					}
				})
				harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
				time.Sleep(time.Minute)
				if a, b := len(calls.List()), len(broker.Messages("error")); a != 1 || b != 1 {
					t.Errorf("%d attempts, %d in the error queue, want 1 and 1", a, b)
				}
			})
		})
	}
}

func TestADiscardedMessageIsLoggedAndGone(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var log harness.Log
		var calls harness.Tally
		cfg := harness.Sales(broker, failing(&calls))
		cfg.AuditQueue = "audit"
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		cfg.Recoverability.Rules = []recoverability.Rule{{
			Errors: []recoverability.Matcher{recoverability.Is(errNo)}, Action: recoverability.Discard{Reason: "too late for it"},
		}}
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{}, endpoint.MessageID("m-1"))
		time.Sleep(time.Minute)
		for _, queue := range []string{"sales", "error", "audit"} {
			if got := len(broker.Messages(queue)); got != 0 {
				t.Errorf("%s has %d messages, want none", queue, got)
			}
		}
		if len(calls.List()) != 1 {
			t.Errorf("%d attempts, want 1", len(calls.List()))
		}
		for _, want := range []string{"logger=Discard", "m-1", "too late for it", errNo.Error()} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log does not say %q:\n%s", want, log.String())
			}
		}
	})
}

func TestDelaysBeyondTheTransportAreWarnedOf(t *testing.T) {
	for increase, warned := range map[time.Duration]bool{20 * time.Minute: false, 21 * time.Minute: true} { // three of them
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			broker.MaxDelay = time.Hour
			var log harness.Log
			cfg := harness.Sales(broker, failing(&harness.Tally{}))
			cfg.Recoverability.Delays.Delay = increase
			cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
			harness.Start(t, cfg)
			if got := strings.Contains(log.String(), "level=WARN") && strings.Contains(log.String(), "longest=1h3m0s offered=1h0m0s"); got != warned {
				t.Errorf("warned: %v, want %v\n%s", got, warned, log.String())
			}
		})
	}
}
