package endpoint_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/resilience"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

func TestInlinePoliciesThatCannotBeCarriedOutAreRefused(t *testing.T) {
	cfg := retrying(&inmemory.Transport{}, resilience.Inline(quick))
	cfg.Transactions = endpoint.None
	if _, err := endpoint.New(cfg); err == nil || !strings.Contains(err.Error(), `policy "quick" has retries, but Transactions is None`) {
		t.Errorf("with transaction mode None, New says %v", err)
	}
	policy := func(timeout, delay time.Duration) resilience.Policy {
		return resilience.Policy{Name: "p", Timeout: timeout, Retry: resilience.Retry{Max: 4, Delay: delay}}
	}
	for name, test := range map[string]struct {
		policy resilience.Policy
		typed  time.Duration // Message.Timeout
		each   time.Duration // Config.HandlerTimeout
		ok     bool
	}{
		"enough time":           {policy: policy(time.Minute, 30*time.Second), ok: true}, // 5 and 2 minutes of 10
		"delays too long":       {policy: policy(0, 3*time.Minute)},
		"attempts too long":     {policy: policy(2*time.Minute, time.Second)},
		"both too long":         {policy: policy(70*time.Second, 70*time.Second)},
		"by the type":           {policy: policy(0, time.Second), typed: 2 * time.Minute},
		"by the handlers":       {policy: policy(0, time.Second), each: time.Minute},
		"the policy is shorter": {policy: policy(time.Second, time.Second), typed: time.Hour, each: time.Hour, ok: true},
		"days":                  {policy: policy(24*time.Hour, time.Minute)},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				h := failing(&harness.Tally{})
				cfg := retrying(broker, resilience.Inline(test.policy), h, h)
				cfg.Transport, cfg.HandlerTimeout = &holdingBroker{broker, 20 * time.Minute}, test.each
				if test.typed > 0 {
					cfg.Messages[0] = cfg.Messages[0].Timeout(test.typed)
				}
				e, err := endpoint.New(cfg)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				err = e.Run(ctx)
				if refused := err != nil && strings.Contains(err.Error(), "use resilience.Deferred"); refused == test.ok {
					t.Errorf("Run says %v", err)
				}
			})
		})
	}
}

// A handler without a limit may take longer than the broker waits: then the retry is not made.
func TestAnInlineRetryEndsBeforeTheBrokerDeliversAgain(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		calls := 0
		cfg := retrying(broker, resilience.Inline(quick), endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error {
			calls++
			time.Sleep(25 * time.Second)
			return errNo
		}))
		cfg.Transport = &holdingBroker{broker, time.Minute}
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := len(broker.Messages("error")); calls != 1 || n != 1 {
			t.Errorf("%d attempts, %d messages in the error queue, want 1 and 1", calls, n)
		}
	})
}
