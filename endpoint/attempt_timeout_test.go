package endpoint_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/resilience"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// takes returns a handler that takes a time, or less when its context ends and it obeys.
func takes(d time.Duration, obeys bool, calls *harness.Tally, result error) endpoint.Handler {
	return endpoint.Handle(func(ctx context.Context, _ *endpoint.Session, _ harness.PlaceOrder) error {
		deadline, _ := ctx.Deadline()
		calls.Add(time.Until(deadline).String())
		if !obeys {
			time.Sleep(d)
			return result
		}
		select {
		case <-time.After(d):
			return result
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

func TestATimeoutIsOfTheAttemptAtAllHandlers(t *testing.T) {
	timed := func(p resilience.Policy, d time.Duration) resilience.Policy {
		p.Timeout = d
		return p
	}
	const s = time.Second
	for name, test := range map[string]struct {
		use      resilience.Use
		of       time.Duration // Message.Timeout
		each     time.Duration // Config.HandlerTimeout
		obeys    bool
		result   error
		attempts int
		failed   string // in the text of the error
	}{
		"a policy, inline":             {use: resilience.Inline(timed(quick, 5*s)), obeys: true, attempts: 3, failed: `policy "quick": the attempt has timed out after 5s`},
		"a policy, deferred":           {use: resilience.Deferred(timed(mail, 5*s)), obeys: true, attempts: 5, failed: `policy "mail": the attempt has timed out after 5s`},
		"a policy with a limit alone":  {use: resilience.Deferred(resilience.Policy{Name: "limit", Timeout: 5 * s}), obeys: true, attempts: 24, failed: `policy "limit": the attempt has timed out after 5s`},
		"a type":                       {of: 5 * s, obeys: true, attempts: 24, failed: "Message.Timeout: the attempt has timed out after 5s"},
		"enough time":                  {use: resilience.Inline(timed(quick, 7*s)), obeys: true, attempts: 1},
		"the policy before the type":   {use: resilience.Inline(timed(quick, 5*s)), of: time.Hour, each: s, obeys: true, attempts: 3, failed: "policy \"quick\": "},
		"the type before the endpoint": {of: 7 * s, each: s, obeys: true, attempts: 1},
		"a policy without":             {use: resilience.Inline(quick), of: 5 * s, obeys: true, attempts: 3, failed: "Message.Timeout: "},
		"of the endpoint, each":        {each: 4 * s, obeys: true, attempts: 1},
		"ignored, and then a success":  {use: resilience.Inline(timed(quick, s)), attempts: 1},
		"ignored, and then an error":   {use: resilience.Inline(timed(quick, s)), result: errNo, attempts: 3, failed: `policy "quick": the attempt has timed out after 1s: handler`},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				var calls, second harness.Tally
				cfg := harness.Sales(broker, takes(3*s, test.obeys, &calls, test.result), takes(3*s, test.obeys, &second, nil))
				if !test.obeys {
					cfg.Handlers = cfg.Handlers[:1] // a handler is not called when the time is over
				}
				cfg.HandlerTimeout = test.each
				if test.use != (resilience.Use{}) {
					cfg.Recoverability.Rules = []recoverability.Rule{{Types: []string{"Shop.PlaceOrder"}, Retry: test.use}}
				}
				if test.of > 0 {
					cfg.Messages[0] = cfg.Messages[0].Timeout(test.of)
				}
				harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
				time.Sleep(time.Hour)
				if n := len(calls.List()); n != test.attempts {
					t.Errorf("%d attempts, want %d", n, test.attempts)
				}
				failed := broker.Messages("error")
				if (len(failed) > 0) != (test.failed != "") {
					t.Fatalf("the error queue has %d messages", len(failed))
				}
				if test.failed == "" {
					return
				}
				if text := failed[0].Headers.Get(header.ExceptionMessage); !strings.Contains(text, test.failed) {
					t.Errorf("the error is %q, want %q in it", text, test.failed)
				}
				if class := failed[0].Headers.Get(header.HoldfastFaultClass); class != recoverability.ClassTimeout {
					t.Errorf("its class is %q", class)
				}
			})
		})
	}
}

func TestEachAttemptHasItsTimeAndADeadline(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		p := quick
		p.Timeout = 5 * time.Second
		var calls harness.Tally
		harness.Start(t, retrying(broker, resilience.Inline(p), takes(time.Minute, true, &calls, nil))).MustSend(harness.PlaceOrder{})
		time.Sleep(time.Hour)
		if got := calls.List(); len(got) != 3 || got[0] != "5s" || got[1] != "5s" || got[2] != "5s" {
			t.Errorf("times until the deadline: %q, want three of 5s", got)
		}
	})
}

// The end of the endpoint is no time-out.
func TestAStopDuringALimitedAttemptIsNoFailure(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		p := quick
		p.Timeout = time.Hour
		var cause error
		cfg := retrying(broker, resilience.Inline(p), endpoint.Handle(func(ctx context.Context, _ *endpoint.Session, _ harness.PlaceOrder) error {
			<-ctx.Done()
			cause = context.Cause(ctx)
			return ctx.Err()
		}))
		cfg.StopTimeout = time.Second
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{})
		synctest.Wait()
		r.End()
		if errors.Is(cause, resilience.ErrAttemptTimeout) || len(broker.Messages("sales")) != 1 || len(broker.Messages("error")) != 0 {
			t.Errorf("cause %v, %d messages in the queue", cause, len(broker.Messages("sales")))
		}
	})
}

func TestATimeoutOfATypeIsPositive(t *testing.T) {
	for _, d := range []time.Duration{0, -1} {
		cfg := harness.Sales(&inmemory.Transport{})
		cfg.Messages[0] = cfg.Messages[0].Timeout(d)
		if _, err := endpoint.New(cfg); err == nil || !strings.Contains(err.Error(), "it must be positive") {
			t.Errorf("Timeout(%v): New says %v", d, err)
		}
	}
}

// A handler that begins its transaction when its time is over has failed. That is no outage of the
// database, which other messages would wait for.
func TestATransactionAfterTheTimeoutIsNoOutage(t *testing.T) {
	for name, limit := range map[string]func(*endpoint.Config){
		"a policy": func(c *endpoint.Config) {
			p := quick
			p.Timeout = time.Second
			c.Recoverability.Rules = []recoverability.Rule{{Retry: resilience.Inline(p)}}
		},
		"the endpoint": func(c *endpoint.Config) {
			c.HandlerTimeout, c.Recoverability = time.Second, recoverability.Config{Immediate: 2, Delayed: recoverability.None}
		},
	} {
		t.Run(name, func(t *testing.T) {
			withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
				var calls, written, log harness.Tally
				cfg := storing(broker, db, &written)
				cfg.Handlers = append([]endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
					calls.Add("")
					time.Sleep(2 * time.Second)
					return inmemory.OnCommit(ctx, s, func() {})
				})}, cfg.Handlers...)
				cfg.Logger = quietExcept(&log, "WARN: the outbox or the inbox cannot be used")
				limit(&cfg)
				harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
				time.Sleep(time.Hour)
				if a, b := len(calls.List()), len(broker.Messages("error")); a != 3 || b != 1 || len(log.List()) > 0 {
					t.Errorf("%d attempts, %d in the error queue, want 3 and 1; %d lines about an outage", a, b, len(log.List()))
				}
			})
		})
	}
}

// A database that cannot be reached uses up no retry, also when the handler waits for it until its
// time is over.
func TestAnOutageDuringALimitedAttemptUsesUpNoRetry(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var written harness.Tally
		var down atomic.Bool
		db.Fail = func(verb, _ string) error {
			if down.Load() && (verb == "Store" || verb == "FindHandled" || verb == "BeginStore") {
				return transport.ErrUnreachable
			}
			return nil
		}
		cfg := storing(broker, db, &written)
		inner := cfg.Handlers[0]
		cfg.Handlers = []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
			if down.Load() {
				<-ctx.Done()
			}
			_, err := s.Tx(ctx)
			return err
		}), inner}
		p := quick
		p.Timeout = time.Second
		cfg.Recoverability.Rules = []recoverability.Rule{{Retry: resilience.Inline(p)}}
		r := harness.Start(t, cfg)
		down.Store(true)
		r.MustSend(harness.PlaceOrder{ID: "1"})
		time.Sleep(10 * time.Minute)
		down.Store(false)
		time.Sleep(10 * time.Minute)
		if a, b := len(written.List()), len(broker.Messages("error")); a != 1 || b != 0 {
			t.Errorf("%d committed, %d in the error queue, want 1 and 0", a, b)
		}
	})
}
