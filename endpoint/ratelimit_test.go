package endpoint_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// outage is a handler of which nothing succeeds while it is down.
type outage struct {
	down     atomic.Bool
	takes    time.Duration
	attempts harness.Tally // the ids of the messages, each time
	handled  harness.Tally
	running  harness.Gauge
}

func (o *outage) handle(ctx context.Context, _ *endpoint.Session, m harness.PlaceOrder) error {
	o.running.Change(1)
	defer o.running.Change(-1)
	o.attempts.Add(m.ID)
	select {
	case <-time.After(o.takes):
	case <-ctx.Done():
		return ctx.Err()
	}
	if o.down.Load() {
		return errNo
	}
	o.handled.Add(m.ID)
	return nil
}

func (o *outage) once(t *testing.T, messages int) {
	t.Helper()
	seen := map[string]int{}
	for _, id := range o.handled.List() {
		seen[id]++
	}
	if len(seen) != messages || len(o.handled.List()) != messages {
		t.Errorf("%d messages handled %d times, want %d once each", len(seen), len(o.handled.List()), messages)
	}
}

// slowed attempts one message at a time after ten failures in a row.
var slowed = recoverability.RateLimit{After: 10, Delay: 2 * time.Second}

// lasting is limit for outages that last: no message goes to the policy meanwhile.
func lasting(limit recoverability.RateLimit) recoverability.RateLimit {
	limit.MaxFailures, limit.MaxTime = 1_000_000, 1000*time.Hour
	return limit
}

func TestAnOutageCostsNoMessageWhileAttemptsAreLimited(t *testing.T) {
	const messages = 500
	for name, c := range map[string]struct {
		limit   recoverability.RateLimit
		without inmemory.Capability
		lease   time.Duration
		mode    endpoint.TransactionMode
		loses   bool
	}{
		"limited":                 {limit: slowed},
		"by type":                 {limit: recoverability.RateLimit{After: 10, Delay: 2 * time.Second, Scope: recoverability.ByType}},
		"with leases":             {limit: slowed, lease: 10 * time.Second},
		"atomic":                  {limit: slowed, lease: 10 * time.Second, mode: endpoint.SendsAtomicWithReceive},
		"without delays":          {limit: lasting(slowed), without: inmemory.Delay}, // the same message comes again and again
		"without exact counts":    {limit: slowed, without: inmemory.Exact},
		"without free releases":   {limit: slowed, without: inmemory.FreeRelease},
		"without completing with": {limit: slowed, without: inmemory.Completer},
		"not limited":             {loses: true},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				broker.Without, broker.Lease = c.without, c.lease
				o := &outage{takes: 50 * time.Millisecond}
				o.down.Store(true)
				cfg := harness.Sales(broker, endpoint.Handle(o.handle))
				cfg.Concurrency, cfg.Transactions = 8, c.mode
				cfg.Recoverability.RateLimit = c.limit
				if c.mode == endpoint.SendsAtomicWithReceive {
					cfg.Pipeline.Logical.Use("write", writing)
				}
				r := harness.Start(t, cfg)
				r.MustSendMany(messages)
				time.Sleep(10 * time.Minute)
				o.down.Store(false)
				attempts := len(o.attempts.List())
				time.Sleep(10 * time.Minute)
				lost := len(broker.Messages("error"))
				t.Logf("%d attempts during the outage, %d messages in the error queue", attempts, lost)
				if c.loses {
					if lost == 0 {
						t.Error("the control loses nothing: the outage proves nothing")
					}
					return
				}
				if lost > 0 {
					t.Errorf("%d messages are in the error queue", lost)
				}
				o.once(t, messages)
				if h := r.Health(); !h.Ready {
					t.Errorf("afterwards: %v", h.Reasons)
				}
			})
		})
	}
}

// While attempts are limited, the endpoint attempts one message at a time and waits between
// attempts.
func TestALimitAttemptsOneMessageAtATime(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		o := &outage{takes: time.Second}
		o.down.Store(true)
		cfg := harness.Sales(broker, endpoint.Handle(o.handle))
		cfg.Concurrency = 4
		cfg.Recoverability.RateLimit = recoverability.RateLimit{After: 4, Delay: 10 * time.Second}
		var told harness.Tally
		cfg.Notify = append(cfg.Notify, func(_ context.Context, n recoverability.Notification) {
			if strings.HasPrefix(string(n.Kind), "rate_limit") {
				told.Add(fmt.Sprintf("%s %v", n.Kind, n.Failure.Err))
			}
		})
		r := harness.Start(t, cfg)
		r.MustSendMany(100)
		time.Sleep(time.Second + time.Millisecond) // four have failed
		before := len(o.attempts.List())
		began := time.Now()
		for range 20 {
			time.Sleep(11 * time.Second)
			if now := o.running.Now(); now > 1 {
				t.Errorf("%d attempts at once", now)
			}
		}
		attempts := o.attempts.List()[before:]
		if len(attempts) < 19 || len(attempts) > 21 {
			t.Errorf("%d attempts in %v, want one in 11 s", len(attempts), time.Since(began))
		}
		per := map[string]int{}
		for _, id := range attempts {
			per[id]++
		}
		for id, n := range per {
			if n > 4 {
				t.Errorf("message %s was attempted %d times in a row", id, n)
			}
		}
		h := r.Health()
		if len(h.RateLimits) != 1 || h.Ready || !strings.Contains(h.Reasons[0], "one at a time") {
			t.Errorf("health: %+v", h)
		}
		o.down.Store(false)
		time.Sleep(time.Hour)
		o.once(t, 100)
		want := []string{"rate_limit_started handler", "rate_limit_ended <nil>"}
		got := told.List()
		if len(got) != 2 || !strings.HasPrefix(got[0], want[0]) || got[1] != want[1] {
			t.Errorf("told %q", got)
		}
	})
}

// A bad message among good ones moves to the error queue, and limits the others only
// briefly.
func TestABadMessageLimitsNoGoodOnesForLong(t *testing.T) {
	for after, every := range map[int]int{1: 20, 2: 20, 6: 10, 7: 1} {
		t.Run(fmt.Sprintf("after %d, a good one every %d s", after, every), func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				var good harness.Tally
				cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m harness.PlaceOrder) error {
					if strings.HasPrefix(m.ID, "bad") {
						return errNo
					}
					good.Add(m.ID)
					return nil
				}))
				cfg.Recoverability.RateLimit = recoverability.RateLimit{After: after, Delay: time.Second}
				cfg.Recoverability.Immediate, cfg.Recoverability.Delayed = 3, 2
				r := harness.Start(t, cfg)
				for k := range 3 {
					r.MustSend(harness.PlaceOrder{ID: fmt.Sprint("bad", k)})
				}
				limited := 0
				for k := range 600 {
					if k%every == 0 {
						r.MustSend(harness.PlaceOrder{ID: fmt.Sprint(k)})
					}
					time.Sleep(time.Second)
					if len(r.Health().RateLimits) > 0 {
						limited++
					}
				}
				if n := len(broker.Messages("error")); n != 3 {
					t.Errorf("%d of 3 bad messages are in the error queue", n)
				}
				time.Sleep(time.Minute)
				if n := len(good.List()); n != 600/every {
					t.Errorf("%d of %d good messages are handled", n, 600/every)
				}
				t.Logf("limited in %d of 600 seconds", limited)
				if limited > 20*every+20 {
					t.Errorf("limited in %d of 600 seconds", limited)
				}
			})
		})
	}
}

func TestALimitOfATypeLetsOtherTypesPass(t *testing.T) {
	for _, without := range []inmemory.Capability{0, inmemory.Exact} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			broker.Without = without
			o := &outage{}
			o.down.Store(true)
			var shipped harness.Tally
			cfg := harness.Sales(broker, endpoint.Handle(o.handle), working[harness.ShipOrder](&shipped))
			cfg.Routes = []endpoint.Route{endpoint.RouteTo[harness.ShipOrder]("sales"), endpoint.RouteTo[harness.PlaceOrder]("sales")}
			cfg.Concurrency = 2
			cfg.Recoverability.RateLimit = recoverability.RateLimit{After: 5, Delay: 10 * time.Second, Scope: recoverability.ByType}
			r := harness.Start(t, cfg)
			r.MustSendMany(200)
			for range 20 {
				r.MustSend(harness.ShipOrder{})
			}
			time.Sleep(11 * time.Second) // 20 s of work, two at a time
			if n := len(shipped.List()); n < 19 {
				t.Errorf("%d of 20 of the other type are handled", n)
			}
			h := r.Health()
			if len(h.RateLimits) != 1 || h.RateLimits[0].Type != "Shop.PlaceOrder" {
				t.Errorf("health: %+v", h)
			}
			o.down.Store(false)
			time.Sleep(time.Hour)
			o.once(t, 200)
		})
	}
}

func TestUnrecoverableErrorsNeitherCountNorProbe(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var down atomic.Bool
		var attempts harness.Tally
		cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m harness.PlaceOrder) error {
			attempts.Add(m.ID)
			if strings.HasPrefix(m.ID, "never") {
				return recoverability.Unrecoverable(errNo)
			}
			if down.Load() {
				return errNo
			}
			return nil
		}))
		cfg.Concurrency = 1
		cfg.Recoverability.RateLimit = lasting(recoverability.RateLimit{After: 3, Delay: time.Minute})
		r := harness.Start(t, cfg)
		for k := range 20 {
			r.MustSend(harness.PlaceOrder{ID: fmt.Sprint("never", k)})
		}
		if err := broker.Put("sales", &transport.Message{ID: "odd", Undecodable: errNo}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if h := r.Health(); len(h.RateLimits) > 0 {
			t.Error("unrecoverable errors begin a limit")
		}
		down.Store(true)
		r.MustSendMany(3)
		synctest.Wait()
		if h := r.Health(); len(h.RateLimits) != 1 {
			t.Fatalf("not limited: %+v", h)
		}
		for k := range 5 {
			r.MustSend(harness.PlaceOrder{ID: fmt.Sprint("never-late", k)})
		}
		time.Sleep(8 * time.Hour)
		if n := len(broker.Messages("error")); n != 26 {
			t.Errorf("%d in the error queue, want the 26 that cannot be mended", n)
		}
		if h := r.Health(); len(h.RateLimits) != 1 {
			t.Error("an unrecoverable error ended the limit")
		}
	})
}

// A stop or a pause while attempts are limited releases messages at once.
func TestAStopOrPauseReleasesLimitedMessages(t *testing.T) {
	for _, pause := range []bool{false, true} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			broker.Lease = 10 * time.Second
			o := &outage{}
			o.down.Store(true)
			cfg := harness.Sales(broker, endpoint.Handle(o.handle))
			cfg.Concurrency = 4
			cfg.Recoverability.RateLimit = recoverability.RateLimit{After: 10, Delay: time.Hour}
			r := harness.Start(t, cfg)
			r.MustSendMany(50)
			time.Sleep(10 * time.Minute)
			began := time.Now()
			if pause {
				if err := r.Pause(t.Context()); err != nil {
					t.Fatal(err)
				}
			} else {
				r.End()
			}
			if took := time.Since(began); took != 0 {
				t.Errorf("it took %v", took)
			}
			o.down.Store(false)
			if pause {
				if err := r.Resume(t.Context()); err != nil {
					t.Fatal(err)
				}
			} else {
				harness.Start(t, cfg)
			}
			time.Sleep(24 * time.Hour)
			o.once(t, 50)
			if n := len(broker.Messages("error")); n > 0 {
				t.Errorf("%d in the error queue", n)
			}
		})
	}
}

func TestThrottledMessagesUseUpNoRetriesAndLookNew(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var down, failing atomic.Bool
		down.Store(true)
		var of7 harness.Tally
		sent := make(chan struct{}) // before the others are in the queue, the first could fail for good
		cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, s *endpoint.Session, m harness.PlaceOrder) error {
			<-sent
			if m.ID == "7" {
				of7.Add(fmt.Sprintf("%d delayed %q first %q", s.Attempt().N, s.Header(header.Retries), s.Header(header.HoldfastFirstFailure)))
			}
			if err := s.Send(t.Context(), harness.ShipOrder(m)); err != nil {
				return err
			}
			if down.Load() || failing.Load() && m.ID == "7" {
				return errNo
			}
			return nil
		}))
		cfg.Concurrency = 1
		cfg.Recoverability.RateLimit = lasting(recoverability.RateLimit{After: 2, Delay: time.Second})
		cfg.Recoverability.Immediate, cfg.Recoverability.Delayed = 1, recoverability.None
		r := harness.Start(t, cfg)
		r.MustSendMany(8)
		close(sent)
		time.Sleep(10*time.Minute + time.Second/2) // between two attempts, which are at whole seconds
		failing.Store(true)
		down.Store(false)
		during := len(of7.List())
		if during < 10 {
			t.Fatalf("message 7 was attempted %d times during the outage", during)
		}
		for _, line := range of7.List() {
			if line != `1 delayed "" first ""` {
				t.Errorf("an attempt saw %s", line)
			}
		}
		time.Sleep(time.Hour)
		if n := len(of7.List()) - during; n < 2 {
			t.Errorf("after the outage it had %d attempts, want all of its 2", n)
		}
		if n := len(broker.Messages("error")); n != 1 {
			t.Errorf("%d in the error queue", n)
		}
		if n := len(broker.Messages("shipping")); n != 7 {
			t.Errorf("%d messages were sent, want those of the 7 that succeeded", n)
		}
	})
}

func TestABrokerThatTakesMessagesBackIsGivenThemInTime(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		o := &outage{}
		o.down.Store(true)
		cfg := harness.Sales(broker, endpoint.Handle(o.handle))
		cfg.Transport = &holdingBroker{broker, 2 * time.Minute}
		cfg.Concurrency = 4
		cfg.Recoverability.RateLimit = recoverability.RateLimit{After: 8, Delay: time.Hour}
		r := harness.Start(t, cfg)
		const n, most = 4, time.Minute // a message waits in the process for half the time that the broker allows
		r.MustSendMany(n)
		time.Sleep(most - 10*time.Second)
		if h := r.Health(); len(h.RateLimits) != 1 {
			t.Fatalf("not limited: %+v", h)
		}
		inHand := func() int { q := r.Health().Queues[0]; return q.Buffered + q.Handling + q.Settling }
		if inHand() == 0 {
			t.Error("no message is throttled in place")
		}
		time.Sleep(n * most) // those that were released are redelivered in their place, one at a time
		if n := inHand(); n > 0 {
			t.Errorf("%d messages are still unsettled", n)
		}
	})
}

// holdingBroker says that no delivery may be kept for longer than most.
type holdingBroker struct {
	*inmemory.Transport
	most time.Duration
}

func (b *holdingBroker) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := b.Transport.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	return &holdingConn{conn, conn.(transport.Installer), conn.(transport.Subscriber), b.most}, nil
}

type holdingConn struct {
	transport.Conn
	transport.Installer
	transport.Subscriber
	most time.Duration
}

func (c *holdingConn) Limits() transport.Limits {
	l := c.Conn.Limits()
	l.MaxHold = c.most
	return l
}

// Without transactions, a limit slows attempts down, and no message is handled twice.
func TestALimitWithoutTransactionsHandlesOnce(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		o := &outage{}
		o.down.Store(true)
		cfg := harness.Sales(broker, endpoint.Handle(o.handle))
		cfg.Transactions, cfg.Concurrency = endpoint.None, 4
		cfg.Recoverability.RateLimit = recoverability.RateLimit{After: 4, Delay: 10 * time.Second}
		r := harness.Start(t, cfg)
		r.MustSendMany(100)
		time.Sleep(10*time.Minute + time.Second)
		// One message in 10 s, and the messages that began before the limit: 4 handled, up to 16 settling.
		if n := len(broker.Messages("error")); n < 60 || n > 61+4+16 {
			t.Errorf("%d are in the error queue, want one in 10 s", n)
		}
		o.down.Store(false)
		time.Sleep(time.Minute)
		seen := map[string]int{}
		for _, id := range o.attempts.List() {
			seen[id]++
			if seen[id] > 1 {
				t.Errorf("message %s was attempted %d times", id, seen[id])
			}
		}
		if len(seen) != 100 {
			t.Errorf("%d attempted", len(seen))
		}
	})
}

func TestALimitSurvivesChaos(t *testing.T) {
	for seed := range uint64(6) {
		for _, scope := range []recoverability.RateLimitScope{recoverability.ByEndpoint, recoverability.ByType} {
			t.Run(fmt.Sprintf("%d %d", seed, scope), func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
					if seed%3 == 1 {
						broker.Without = inmemory.Delay | inmemory.FreeRelease
					}
					limit := recoverability.RateLimit{After: 3, Delay: 700 * time.Millisecond, Scope: scope}
					c := &chaos{t: t, broker: broker, seed: seed, mode: endpoint.ReceiveOnly, limit: limit}
					c.run(1 + 7*int(seed%2))
					c.check(true)
				})
			})
		}
	}
}

func TestARateLimitIsCheckedAtNew(t *testing.T) {
	cfg := harness.Sales(&inmemory.Transport{})
	cfg.Recoverability.RateLimit.After = -3
	if _, err := endpoint.New(cfg); err == nil || !strings.Contains(err.Error(), "RateLimit.After is -3") {
		t.Errorf("New: %v", err)
	}
}

// Suspects are handled alone while attempts are limited, neither holds up the other for ever, and
// the outage costs no message.
func TestSuspectsAndARateLimitGetAlong(t *testing.T) {
	const messages, suspects = 100, 5
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		o := &outage{takes: 50 * time.Millisecond}
		o.down.Store(true)
		cfg := harness.Sales(broker, endpoint.Handle(o.handle))
		cfg.Concurrency = 8
		cfg.Recoverability.RateLimit = slowed
		for i := range suspects {
			delivered(t, broker, "sales", wire(fmt.Sprint(messages+i)), 6)
		}
		r := harness.Start(t, cfg)
		r.MustSendMany(messages)
		time.Sleep(10 * time.Minute)
		o.down.Store(false)
		time.Sleep(10 * time.Minute)
		if lost := len(broker.Messages("error")); lost > 0 {
			t.Errorf("%d messages are in the error queue", lost)
		}
		o.once(t, messages+suspects)
		if h := r.Health(); !h.Ready || h.Quarantined != 0 {
			t.Errorf("afterwards: %+v", h)
		}
	})
}
