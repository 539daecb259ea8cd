package endpoint_test

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// tries counts the attempts at each message, all of which fail.
type tries struct {
	mu sync.Mutex
	of map[string]int
}

func (c *tries) handle(_ context.Context, _ *endpoint.Session, m harness.PlaceOrder) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[string]int{}
	}
	c.of[m.ID]++
	return errNo
}

// soFar is how often each message has been attempted.
func (c *tries) soFar() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.of)
}

// An outage passes: with few messages, each of which is tried often, none goes to the error queue.
func TestAnOutageOfAnHourCostsNoneOfAFewMessages(t *testing.T) {
	for _, messages := range []int{2, 3, 30} {
		for _, without := range []inmemory.Capability{0, inmemory.Exact} {
			t.Run(fmt.Sprint(messages, " without ", without), func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
					broker.Without = without
					o := &outage{takes: 50 * time.Millisecond}
					o.down.Store(true)
					cfg := harness.Sales(broker, endpoint.Handle(o.handle))
					cfg.Recoverability.RateLimit = recoverability.RateLimit{After: 7}
					r := harness.Start(t, cfg)
					r.MustSendMany(messages)
					time.Sleep(time.Hour)
					o.down.Store(false)
					t.Logf("%d attempts during the outage", len(o.attempts.List()))
					time.Sleep(time.Hour)
					if lost := len(broker.Messages("error")); lost > 0 {
						t.Errorf("%d messages are in the error queue", lost)
					}
					o.once(t, messages)
				})
			})
		}
	}
}

// A bad deployment or producer does not pass: no message is good, and each ends in the error queue.
func TestABadDeploymentUnderALimitEndsInTheErrorQueue(t *testing.T) {
	const messages = 30
	for name, c := range map[string]struct {
		scope   recoverability.RateLimitScope
		without inmemory.Capability
	}{
		"by endpoint":          {},
		"by type":              {scope: recoverability.ByType},
		"without exact counts": {without: inmemory.Exact},
		"without delays":       {without: inmemory.Delay},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				broker.Without = c.without
				var bad tries
				cfg := harness.Sales(broker, endpoint.Handle(bad.handle))
				cfg.Recoverability = recoverability.Config{
					Immediate: 2, Delayed: recoverability.None,
					RateLimit: recoverability.RateLimit{After: 5, Scope: c.scope, MaxTime: 1000 * time.Hour},
				}
				r := harness.Start(t, cfg)
				r.MustSendMany(messages)
				time.Sleep(24 * time.Hour)
				synctest.Wait()
				if n := len(broker.Messages("error")); n != messages {
					t.Errorf("%d of %d messages are in the error queue", n, messages)
				}
				for id, n := range bad.soFar() {
					if n < 3 || n > 30 {
						t.Errorf("message %s was attempted %d times, want 3 to 30: one failure of ten uses up a retry", id, n)
					}
				}
			})
		})
	}
}

// A message that fails seldom, because many take turns, goes to the policy by time.
func TestMaxTimeBoundsTheFailuresThatUseUpNoRetry(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var bad tries
		cfg := harness.Sales(broker, endpoint.Handle(bad.handle))
		cfg.Recoverability = recoverability.Config{
			Immediate: recoverability.None, Delayed: recoverability.None,
			RateLimit: recoverability.RateLimit{After: 3, Delay: time.Minute, MaxFailures: 1_000_000, MaxTime: 2 * time.Hour},
		}
		r := harness.Start(t, cfg)
		r.MustSendMany(20) // three fail before the limit begins
		time.Sleep(time.Hour + 59*time.Minute)
		if n := len(broker.Messages("error")); n != 3 {
			t.Errorf("%d messages are in the error queue before MaxTime, want 3", n)
		}
		time.Sleep(6 * time.Hour)
		if n := len(broker.Messages("error")); n != 20 {
			t.Errorf("%d messages are in the error queue, want all", n)
		}
	})
}

// One message that fails again and again, with delays in between, begins a limit: it is the first
// of an outage.
func TestDelayedRetriesOfOneMessageBeginALimit(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		o := &outage{}
		o.down.Store(true)
		cfg := harness.Sales(broker, endpoint.Handle(o.handle))
		cfg.Recoverability = recoverability.Config{
			Immediate: 1, Delayed: 2, RateLimit: recoverability.RateLimit{After: 4},
		}
		r := harness.Start(t, cfg)
		r.MustSendMany(1)
		time.Sleep(5 * time.Second)
		if h := r.Health(); len(h.RateLimits) != 0 {
			t.Error("two failures begin a limit of four")
		}
		time.Sleep(time.Minute)
		if h := r.Health(); len(h.RateLimits) != 1 {
			t.Error("attempts are not limited")
		}
		o.down.Store(false)
		time.Sleep(time.Hour)
		o.once(t, 1)
		if n := len(broker.Messages("error")); n > 0 {
			t.Errorf("%d messages are in the error queue", n)
		}
	})
}

// Where the broker does not count, the attempts that one process has used up go with the postponed
// copy to the next.
func TestAttemptsUsedUpGoWithThePostponedCopy(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Without = inmemory.Exact
		var in [2]tries
		configure := func(i int) endpoint.Config {
			cfg := harness.Sales(broker, endpoint.Handle(in[i].handle))
			cfg.Concurrency = 1
			cfg.Recoverability = recoverability.Config{Immediate: 5, Delayed: recoverability.None}
			return cfg
		}
		a := configure(0)
		a.Recoverability.RateLimit = lasting(recoverability.RateLimit{After: 6, Delay: time.Minute})
		r := harness.Start(t, a)
		r.MustSendMany(2)
		time.Sleep(time.Second)
		limited := in[0].soFar() // the sixth failure has begun the limit
		time.Sleep(30 * time.Minute)
		r.End()
		harness.Start(t, configure(1))
		time.Sleep(time.Hour)
		for id, n := range limited {
			if later := in[1].soFar()[id]; n+later > 6 {
				t.Errorf("message %s used up %d attempts before the limit and %d in the second process, want 6 at most", id, n, later)
			}
		}
		if n := len(broker.Messages("error")); n != 2 {
			t.Errorf("%d messages are in the error queue, want both", n)
		}
	})
}
