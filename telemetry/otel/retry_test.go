package otel_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/resilience"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// Each failed attempt ends its span, with the retry that was scheduled.
func TestRetriesOfAPolicyAreEventsOfTheSpan(t *testing.T) {
	policy := resilience.Policy{Name: "mail", Retry: resilience.Retry{Max: 1, Delay: 1500 * time.Millisecond}}
	for action, use := range map[string]resilience.Use{"inline": resilience.Inline(policy), "delayed": resilience.Deferred(policy)} {
		t.Run(action, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				tel := newTelemetry(t)
				cfg := harness.Sales(broker, failing(errors.New("no")))
				cfg.Recoverability.Rules = []recoverability.Rule{{Retry: use}}
				e := tel.start(cfg)
				e.send(t.Context(), harness.PlaceOrder{})
				time.Sleep(time.Minute)
				synctest.Wait()
				var got []string
				for _, span := range tel.named("process sales") {
					for _, event := range span.Events() {
						if event.Name == "exception" {
							continue
						}
						got = append(got, event.Name)
						got = append(got, told(event.Attributes)...)
					}
				}
				want := []string{
					"recoverability", "holdfast.recoverability.action=" + action, "holdfast.recoverability.delay=1.5",
					"retry scheduled", "resilience.policy.name=mail", "resilience.retry.attempt=1", "resilience.retry.delay_ms=1500",
					"recoverability", "holdfast.recoverability.action=error", "holdfast.recoverability.queue=error",
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Error(diff)
				}
				if n := tel.counted("holdfast.recoverability.actions", "action")[action]; n != 1 {
					t.Errorf("%v actions are counted", n)
				}
			})
		})
	}
}
