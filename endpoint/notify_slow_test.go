package endpoint_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// A slow function holds up no message, whatever Concurrency is: neither after a move nor when a
// rate limit begins.
func TestASlowNotifyFunctionHoldsUpNoMessage(t *testing.T) {
	for _, concurrency := range []int{1, 2, 8} {
		for _, limit := range []int{0, 3} {
			t.Run(fmt.Sprint(concurrency, " limit ", limit), func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
					const bad = 30
					var told, handled harness.Tally
					cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, _ *endpoint.Session, o harness.PlaceOrder) error {
						handled.Add(o.ID)
						if o.ID != "good" {
							return errNo
						}
						return nil
					}))
					cfg.Concurrency, cfg.Recoverability = concurrency, once
					messages, notifications := bad, bad
					if limit > 0 {
						cfg.Recoverability.RateLimit = recoverability.RateLimit{After: limit, Delay: time.Millisecond}
						messages, notifications = limit, limit+2 // that the limit begins and ends
					}
					cfg.Notify = append(telling(&told), func(context.Context, recoverability.Notification) { time.Sleep(9 * time.Second) })
					r := harness.Start(t, cfg)
					for n := range messages {
						r.MustSend(harness.PlaceOrder{ID: fmt.Sprint("bad-", n)})
					}
					synctest.Wait() // with Concurrency 1 the functions run by now
					r.MustSend(harness.PlaceOrder{ID: "good"})
					time.Sleep(time.Second)
					synctest.Wait()
					if got := handled.List(); len(got) != messages+1 {
						t.Errorf("%d messages are handled within a second, want %d", len(got), messages+1)
					}
					r.End()
					if n := len(told.List()); n != notifications {
						t.Errorf("%d notifications were told when Run returned, want %d", n, notifications)
					}
				})
			})
		}
	}
}

// Functions that cannot keep up slow the endpoint down; none is left out, and those of one message
// keep their order.
func TestASlowNotifyFunctionMissesNothing(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		const bad = 300
		var told harness.Tally
		cfg := harness.Sales(broker, failing(&harness.Tally{}))
		cfg.Concurrency = 1
		cfg.Recoverability = recoverability.Config{Immediate: 1, Delayed: recoverability.None}
		cfg.Notify = append(cfg.Notify, func(_ context.Context, n recoverability.Notification) {
			time.Sleep(time.Second)
			told.Add(n.Failure.MessageID + " " + string(n.Kind))
		})
		r := harness.Start(t, cfg)
		for n := range bad {
			r.MustSend(harness.PlaceOrder{}, endpoint.MessageID(fmt.Sprint(n)))
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		order := map[string][]string{}
		for _, line := range told.List() {
			var id, kind string
			if _, err := fmt.Sscan(line, &id, &kind); err != nil {
				t.Fatal(err)
			}
			order[id] = append(order[id], kind)
		}
		if len(order) != bad {
			t.Errorf("told of %d messages, want %d", len(order), bad)
		}
		for id, kinds := range order {
			if diff := cmp.Diff([]string{"immediate_retry", "moved_to_error"}, kinds); diff != "" {
				t.Errorf("message %s: %s", id, diff)
			}
		}
	})
}
