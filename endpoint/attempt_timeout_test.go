package endpoint_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/resilience"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// takes returns a handler that takes a time, or less when its context ends and it obeys.
func takes(d time.Duration, obeys bool, calls *tally, result error) endpoint.Handler {
	return endpoint.Handle(func(ctx context.Context, _ *endpoint.Session, _ placeOrder) error {
		deadline, _ := ctx.Deadline()
		calls.add(time.Until(deadline).String())
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
			inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
				var calls, second tally
				cfg := sales(broker, takes(3*s, test.obeys, &calls, test.result), takes(3*s, test.obeys, &second, nil))
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
				start(t, cfg).send(placeOrder{})
				time.Sleep(time.Hour)
				if n := len(calls.list()); n != test.attempts {
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
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		p := quick
		p.Timeout = 5 * time.Second
		var calls tally
		start(t, retrying(broker, resilience.Inline(p), takes(time.Minute, true, &calls, nil))).send(placeOrder{})
		time.Sleep(time.Hour)
		if got := calls.list(); len(got) != 3 || got[0] != "5s" || got[1] != "5s" || got[2] != "5s" {
			t.Errorf("times until the deadline: %q, want three of 5s", got)
		}
	})
}

// The end of the endpoint is no time-out.
func TestAStopDuringALimitedAttemptIsNoFailure(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		p := quick
		p.Timeout = time.Hour
		var cause error
		cfg := retrying(broker, resilience.Inline(p), endpoint.Handle(func(ctx context.Context, _ *endpoint.Session, _ placeOrder) error {
			<-ctx.Done()
			cause = context.Cause(ctx)
			return ctx.Err()
		}))
		cfg.StopTimeout = time.Second
		r := start(t, cfg)
		r.send(placeOrder{})
		synctest.Wait()
		r.end()
		if errors.Is(cause, resilience.ErrAttemptTimeout) || len(broker.Messages("sales")) != 1 || len(broker.Messages("error")) != 0 {
			t.Errorf("cause %v, %d messages in the queue", cause, len(broker.Messages("sales")))
		}
	})
}

func TestATimeoutOfATypeIsPositive(t *testing.T) {
	for _, d := range []time.Duration{0, -1} {
		cfg := sales(&inmemory.Transport{})
		cfg.Messages[0] = cfg.Messages[0].Timeout(d)
		if _, err := endpoint.New(cfg); err == nil || !strings.Contains(err.Error(), "it must be positive") {
			t.Errorf("Timeout(%v): New says %v", d, err)
		}
	}
}
