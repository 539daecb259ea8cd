package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// byKey is the key of an order with the id "key/number".
func byKey(o harness.PlaceOrder) string { return keyOf(o.ID) }

func keyOf(id string) string {
	key, _, _ := strings.Cut(id, "/")
	return key
}

// ledger records what was handled by key, and how many messages of a key were handled at once.
type ledger struct {
	all harness.Gauge

	mu      sync.Mutex // guards the rest
	handled map[string][]string
	inHand  map[string]int
	crossed int // times that two messages of a key were handled at once
	times   []time.Time
}

func (l *ledger) begin(key string) {
	l.all.Change(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inHand == nil {
		l.inHand, l.handled = map[string]int{}, map[string][]string{}
	}
	if l.inHand[key]++; l.inHand[key] > 1 {
		l.crossed++
	}
}

func (l *ledger) end(key, id string) {
	l.all.Change(-1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inHand[key]--
	if id != "" {
		l.handled[key] = append(l.handled[key], id)
		l.times = append(l.times, time.Now())
	}
}

func (l *ledger) of(key string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.handled[key]...)
}

// taking is a handler that takes some time.
func (l *ledger) taking(d func() time.Duration) func(context.Context, *endpoint.Session, harness.PlaceOrder) error {
	return func(ctx context.Context, _ *endpoint.Session, o harness.PlaceOrder) error {
		key, done := byKey(o), ""
		l.begin(key)
		defer func() { l.end(key, done) }()
		select {
		case <-time.After(d()):
			done = o.ID
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func always(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

// inOrder fails unless the messages of key were handled in order, one at a time.
func (l *ledger) inOrder(t *testing.T, key string, n int) {
	t.Helper()
	synctest.Wait()
	var want []string
	for i := range n {
		want = append(want, fmt.Sprintf("%s/%d", key, i))
	}
	if diff := cmp.Diff(want, l.of(key)); diff != "" {
		t.Errorf("key %q: %s", key, diff)
	}
	if l.crossed > 0 {
		t.Errorf("messages with one key were handled at once, %d times", l.crossed)
	}
}

// sendKeyed sends the messages from to to-1 of a key.
func sendKeyed(r *harness.Running, key string, from, to int) {
	for i := from; i < to; i++ {
		r.MustSend(harness.PlaceOrder{ID: fmt.Sprintf("%s/%d", key, i)})
	}
}

// scattered has messages decoded in another order than they were received in.
func scattered(next pipeline.Func[*pipeline.Receive]) pipeline.Func[*pipeline.Receive] {
	return func(ctx context.Context, r *pipeline.Receive) error {
		time.Sleep(rand.N(20 * time.Millisecond))
		return next(ctx, r)
	}
}

// Messages of a key are handled in the order of their arrival.
func TestMessagesOfAKeyAreHandledInArrivalOrder(t *testing.T) {
	for _, mode := range []endpoint.TransactionMode{endpoint.ReceiveOnly, endpoint.None, endpoint.SendsAtomicWithReceive} {
		for _, concurrency := range []int{1, 2, 32} {
			t.Run(fmt.Sprint(mode, concurrency), func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
					broker.Lease = 10 * time.Second
					var l ledger
					cfg := harness.Sales(broker, endpoint.HandleInOrderBy(byKey, l.taking(func() time.Duration { return rand.N(10 * time.Millisecond) })),
						endpoint.Handle(func(context.Context, *endpoint.Session, harness.ShipOrder) error { return nil }))
					cfg.Concurrency, cfg.Transactions = concurrency, mode
					cfg.Pipeline.Receive.Use("scatter", scattered)
					if mode == endpoint.SendsAtomicWithReceive {
						cfg.Pipeline.Logical.Use("write", writing)
					}
					r := harness.Start(t, cfg)
					for i := range 100 {
						sendKeyed(r, "a", i, i+1)
						sendKeyed(r, "b", i, i+1)
						r.MustSend(harness.ShipOrder{}, endpoint.To("sales"))
						sendKeyed(r, "c", i, i+1)
					}
					time.Sleep(time.Minute)
					for _, key := range []string{"a", "b", "c"} {
						l.inOrder(t, key, 100)
					}
					if want := min(3, concurrency); l.all.Peak() != want {
						t.Errorf("%d keys were handled at once, want %d", l.all.Peak(), want)
					}
				})
			})
		}
	}
}

func TestAMessageWithoutKeysDoesNotHoldUpThoseBehind(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var l ledger
		cfg := harness.Sales(broker, endpoint.HandleInOrderBy(byKey, l.taking(always(time.Millisecond))),
			endpoint.Handle(func(ctx context.Context, _ *endpoint.Session, _ harness.ShipOrder) error {
				<-ctx.Done()
				return nil
			}))
		cfg.Concurrency = 2
		r := harness.Start(t, cfg)
		r.MustSend(harness.ShipOrder{}, endpoint.To("sales"))
		sendKeyed(r, "a", 0, 10)
		time.Sleep(time.Minute)
		l.inOrder(t, "a", 10)
	})
}

func TestAllKeysOfAMessageAreTakenAtOnce(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var l ledger
		part := func(n int) func(harness.PlaceOrder) string {
			return func(o harness.PlaceOrder) string { return strings.Split(o.ID, "/")[n] }
		}
		var first, second harness.Gauge
		handle := func(gauges ...*harness.Gauge) func(context.Context, *endpoint.Session, harness.PlaceOrder) error {
			return func(_ context.Context, _ *endpoint.Session, o harness.PlaceOrder) error {
				for _, g := range gauges {
					g.Change(1)
					defer g.Change(-1)
				}
				for i := range 2 {
					key := part(i)(o)
					l.begin(key)
					defer l.end(key, o.ID)
					if part(0)(o) == part(1)(o) {
						break
					}
				}
				time.Sleep(time.Millisecond)
				return nil
			}
		}
		cfg := harness.Sales(broker, endpoint.HandleInOrderBy(part(0), handle(&first)), endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error { return nil }),
			endpoint.HandleInOrderBy(part(1), handle(&second)))
		cfg.Concurrency = 8
		cfg.Pipeline.Receive.Use("scatter", scattered)
		r := harness.Start(t, cfg)
		want := map[string][]string{}
		for i := range 500 {
			a, b := fmt.Sprint(rand.N(5)), fmt.Sprint(rand.N(5))
			id := fmt.Sprintf("%s/%s/%d", a, b, i)
			r.MustSend(harness.PlaceOrder{ID: id})
			for range 2 { // handlers
				want[a] = append(want[a], id)
				if b != a {
					want[b] = append(want[b], id)
				}
			}
		}
		time.Sleep(time.Minute)
		l.mu.Lock()
		defer l.mu.Unlock()
		if diff := cmp.Diff(want, l.handled); diff != "" {
			t.Error(diff)
		}
		if l.crossed > 0 || first.Peak() < 2 {
			t.Errorf("%d times two messages with one key at once; %d messages at once", l.crossed, first.Peak())
		}
	})
}

func TestAHotKeyDoesNotHoldUpOthers(t *testing.T) {
	const hot, messages = 2_000, 20_000
	run := func(t *testing.T, broker *inmemory.Transport, withHot bool) (rate float64) {
		var l ledger
		cfg := harness.Sales(broker, endpoint.HandleInOrderBy(byKey, l.taking(always(10*time.Millisecond))))
		cfg.Concurrency = 8
		r := harness.Start(t, cfg)
		began, before := time.Now(), inUse()
		for i := range messages {
			if i%10 == 0 {
				if withHot {
					sendKeyed(r, "hot", i/10, i/10+1)
				}
			} else {
				r.MustSend(harness.PlaceOrder{ID: fmt.Sprintf("%d/%d", i%1000, i)})
			}
		}
		for n := 0; n < messages-hot; {
			time.Sleep(100 * time.Millisecond)
			l.mu.Lock()
			n = len(l.times) - len(l.handled["hot"])
			l.mu.Unlock()
		}
		rate = float64(messages-hot) / time.Since(began).Seconds()
		time.Sleep(10 * time.Minute)
		if withHot {
			l.inOrder(t, "hot", hot)
		}
		r.End()
		t.Logf("hot %v: %.0f others per second, %d KiB in use, %d before", withHot, rate, inUse()/1024, before/1024)
		return rate
	}
	var alone, beside float64
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) { alone = run(t, broker, false) })
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) { beside = run(t, broker, true) })
	if beside < 0.8*alone {
		t.Errorf("others: %.0f messages per second beside a hot key, %.0f alone", beside, alone)
	}
}

// inUse is the heap in use, in bytes.
func inUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestAtMostFourTimesConcurrencyMessagesWaitForKeys(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var l ledger
		cfg := harness.Sales(broker, endpoint.HandleInOrderBy(byKey, l.taking(always(time.Second))))
		cfg.Concurrency = 4
		r := harness.Start(t, cfg)
		sendKeyed(r, "hot", 0, 100)
		sendKeyed(r, "other", 0, 1)
		time.Sleep(500 * time.Millisecond)
		for range 50 {
			time.Sleep(time.Second)
			if q := r.Health().Queues[0]; q.Handling != 1 || q.Settling != 15 || q.Bytes == 0 {
				t.Fatalf("%d messages in handlers, %d wait, %d bytes, want 1, 15 and some", q.Handling, q.Settling, q.Bytes)
			}
		}
		if len(l.of("other")) != 0 {
			t.Error("a message behind those that wait was handled")
		}
		time.Sleep(time.Minute)
		l.inOrder(t, "hot", 100)
		l.inOrder(t, "other", 1)
	})
}

func TestAMessageThatWaitsForAKeyReturnsAtAStop(t *testing.T) {
	for _, drops := range []bool{false, true} { // a behavior that drops errors must not complete the message
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			var l ledger
			cfg := harness.Sales(broker, endpoint.HandleInOrderBy(byKey, l.taking(always(time.Second))))
			cfg.Concurrency, cfg.StopTimeout = 4, time.Hour
			if drops {
				cfg.Pipeline.Receive.Use("drop", dropping)
			}
			r := harness.Start(t, cfg)
			sendKeyed(r, "a", 0, 12)
			time.Sleep(500 * time.Millisecond)
			began := time.Now()
			r.End()
			if took := time.Since(began); took > 600*time.Millisecond {
				t.Errorf("the stop took %v: messages that wait are released at once", took)
			}
			if len(l.of("a")) != 1 || len(broker.Messages("sales")) != 11 {
				t.Fatalf("%d done, %d released", len(l.of("a")), len(broker.Messages("sales")))
			}
			var attempts harness.Tally
			harness.Start(t, harness.Sales(broker, endpoint.Handle(func(_ context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
				attempts.Add(fmt.Sprint(s.Attempt().N))
				return nil
			})))
			time.Sleep(time.Minute)
			if diff := cmp.Diff(strings.Split(strings.Repeat("1", 11), ""), attempts.List()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func dropping(next pipeline.Func[*pipeline.Receive]) pipeline.Func[*pipeline.Receive] {
	return func(ctx context.Context, r *pipeline.Receive) error {
		_ = next(ctx, r)
		return nil
	}
}

func TestALostLeaseEndsTheWaitForAKey(t *testing.T) {
	for _, drops := range []bool{false, true} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			broker.Lease = 3 * time.Second
			var lost atomic.Bool
			broker.Fail = func(verb, _ string) error {
				if verb == "Renew" && lost.Load() {
					return errNo
				}
				return nil
			}
			var l ledger
			cfg := harness.Sales(broker, endpoint.HandleInOrderBy(byKey, l.taking(always(time.Second))))
			cfg.Concurrency = 4
			if drops {
				cfg.Pipeline.Receive.Use("drop", dropping)
			}
			r := harness.Start(t, cfg)
			lost.Store(true)
			sendKeyed(r, "a", 0, 12)
			time.Sleep(3500 * time.Millisecond)
			if q := r.Health().Queues[0]; q.Handling+q.Settling+q.Buffered > 12 {
				t.Errorf("%+v", q)
			}
			time.Sleep(time.Minute)
			seen := map[string]bool{}
			for _, id := range l.of("a") {
				seen[id] = true
			}
			if len(seen) != 12 || l.crossed > 0 || len(broker.Messages("sales")) != 0 {
				t.Errorf("%d done, %d left, %d times at once", len(seen), len(broker.Messages("sales")), l.crossed)
			}
		})
	}
}

func TestBadKeysFailTheirMessages(t *testing.T) {
	long := strings.Repeat("x", 501)
	for key, test := range map[string]struct {
		want     string
		attempts string
	}{
		"":                       {"the key of the message is empty", "1"},
		long:                     {"the key of the message has 501 bytes: it must have at most 500", "1"},
		"a\xff":                  {`the key of the message, "a\xff", is no valid UTF-8`, "1"},
		"panic":                  {"panic: no key", "3"},
		strings.Repeat("x", 500): {},
		"a\x00b":                 {},
	} {
		t.Run(fmt.Sprintf("%.5q", key), func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				var done harness.Tally
				cfg := harness.Sales(broker, endpoint.HandleInOrderBy(func(o harness.PlaceOrder) string {
					if o.ID == "good" {
						return key[:min(len(key), 1)] + "."
					}
					if key == "panic" {
						panic(errors.New("no key"))
					}
					return key
				}, func(_ context.Context, _ *endpoint.Session, o harness.PlaceOrder) error {
					done.Add(o.ID)
					return nil
				}))
				cfg.Recoverability = recoverability.Config{Immediate: 2, Delayed: recoverability.None}
				cfg.Concurrency = 2
				r := harness.Start(t, cfg)
				r.MustSend(harness.PlaceOrder{ID: "bad"})
				r.MustSend(harness.PlaceOrder{ID: "good"})
				time.Sleep(time.Minute)
				failed := broker.Messages("error")
				if test.want == "" {
					if len(failed) != 0 || len(done.List()) != 2 {
						t.Errorf("%d failed, handled: %v", len(failed), done.List())
					}
					return
				}
				if len(failed) != 1 || !strings.Contains(failed[0].Headers.Get(header.ExceptionMessage), test.want) ||
					!strings.Contains(failed[0].Headers.Get(header.ExceptionMessage), "TestBadKeysFailTheirMessages") && key != "panic" {
					t.Fatalf("%d failed: %v", len(failed), failed)
				}
				if diff := cmp.Diff([]string{"good"}, done.List()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

func TestNewRefusesAKeyFunctionThatIsNil(t *testing.T) {
	_, err := endpoint.New(harness.Sales(&inmemory.Transport{}, endpoint.HandleInOrderBy[harness.PlaceOrder](nil, placed),
		endpoint.HandleInOrderBy[harness.PlaceOrder](byKey, nil)))
	for _, want := range []string{"endpoint_test.placed: HandleInOrderBy: the function for the key is nil", "a zero Handler"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New: %v, want %q", err, want)
		}
	}
}

func TestKeysWithALimitOfTheType(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Lease = 10 * time.Second
		var l ledger
		cfg := harness.Sales(broker, endpoint.HandleInOrderBy(byKey, l.taking(always(time.Second))))
		cfg.Messages[0] = cfg.Messages[0].AtMost(2)
		cfg.Concurrency = 8
		cfg.Pipeline.Logical.Use("write", writing)
		cfg.Transactions = endpoint.SendsAtomicWithReceive
		r := harness.Start(t, cfg)
		sendKeyed(r, "a", 0, 10)
		sendKeyed(r, "b", 0, 10)
		sendKeyed(r, "c", 0, 1)
		time.Sleep(11*time.Second + 200*time.Millisecond)
		l.inOrder(t, "a", 10)
		l.inOrder(t, "b", 10)
		l.inOrder(t, "c", 1)
		if l.all.Peak() != 2 {
			t.Errorf("%d at once, want 2: a message that waits for its key is not within the limit", l.all.Peak())
		}
	})
}

func TestKeysWithARateLimit(t *testing.T) {
	for name, limit := range map[string]recoverability.RateLimit{
		"of all": slowed, "by type": {After: 10, Delay: 2 * time.Second, Scope: recoverability.ByType},
	} {
		for _, without := range []inmemory.Capability{0, inmemory.Delay} {
			t.Run(fmt.Sprint(name, " without ", without), func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
					broker.Without = without
					o := &outage{takes: 50 * time.Millisecond}
					o.down.Store(true)
					var keys ledger
					cfg := harness.Sales(broker, endpoint.HandleInOrderBy(byKey, func(ctx context.Context, s *endpoint.Session, m harness.PlaceOrder) error {
						keys.begin(byKey(m))
						defer keys.end(byKey(m), "")
						return o.handle(ctx, s, m)
					}))
					cfg.Concurrency, cfg.Recoverability.RateLimit = 8, lasting(limit)
					r := harness.Start(t, cfg)
					for i := range 100 {
						r.MustSend(harness.PlaceOrder{ID: fmt.Sprintf("%d/%d", i%3, i)})
					}
					time.Sleep(10 * time.Minute)
					o.down.Store(false)
					time.Sleep(10 * time.Minute)
					lost := len(broker.Messages("error")) // those that failed before the limit began
					o.once(t, 100-lost)
					if lost > 10 || keys.crossed > 0 {
						t.Errorf("%d are in the error queue, %d times at once", lost, keys.crossed)
					}
				})
			})
		}
	}
}

func TestAFailedMessageGivesItsKeyUp(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls harness.Tally
		cfg := harness.Sales(broker, endpoint.HandleInOrderBy(byKey, func(_ context.Context, _ *endpoint.Session, o harness.PlaceOrder) error {
			switch n := calls.Add(o.ID); {
			case o.ID == "a/0" && n < 3:
				return errNo
			case o.ID == "a/1" && n < 3:
				panic("no")
			case o.ID == "a/2" && n < 4:
				runtime.Goexit()
			}
			return nil
		}))
		cfg.Recoverability = recoverability.Config{Immediate: recoverability.None, Delayed: 1}
		cfg.Concurrency = 4
		r := harness.Start(t, cfg)
		sendKeyed(r, "a", 0, 5)
		time.Sleep(time.Minute)
		got := calls.List()
		if diff := cmp.Diff([]string{"a/0", "a/1", "a/2", "a/3", "a/4"}, got[:5]); diff != "" || len(got) != 8 {
			t.Errorf("%v: %s", got, diff)
		}
	})
}

func TestAConflictKeepsTheOrder(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var l ledger
		var repeated harness.Tally
		handle := l.taking(always(time.Millisecond))
		cfg := harness.Sales(broker, endpoint.HandleInOrderBy(byKey, func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
			if repeated.Add(o.ID)%3 != 0 {
				return fmt.Errorf("saga: %w", transport.ErrConflict)
			}
			return handle(ctx, s, o)
		}))
		cfg.Messages[0] = cfg.Messages[0].AtMost(2)
		cfg.Recoverability, cfg.Concurrency = once, 8
		r := harness.Start(t, cfg)
		sendKeyed(r, "a", 0, 20)
		time.Sleep(time.Minute)
		l.inOrder(t, "a", 20)
		if len(broker.Messages("error")) > 0 {
			t.Error("a conflict used up a retry")
		}
	})
}

func TestConflictsWithoutEndUseUpNoRetry(t *testing.T) {
	for name, without := range map[string]inmemory.Capability{
		"released": 0, "as a copy": inmemory.FreeRelease,
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				broker.Without = without
				var calls, other harness.Tally
				cfg := harness.Sales(broker, endpoint.HandleInOrderBy(byKey, func(_ context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
					if o.ID != "a/0" {
						other.Add(o.ID)
						return nil
					}
					if calls.Add(fmt.Sprint(s.Attempt().N)) < 100 {
						return fmt.Errorf("saga: %w", transport.ErrConflict)
					}
					return nil
				}))
				cfg.Recoverability, cfg.Concurrency = once, 2
				r := harness.Start(t, cfg)
				sendKeyed(r, "a", 0, 3)
				time.Sleep(time.Hour)
				if n := len(calls.List()); n != 100 || len(other.List()) != 2 || len(broker.Messages("error"))+len(broker.Messages("sales")) != 0 {
					t.Errorf("%d calls, want 100; %d others; %d in the error queue", n, len(other.List()), len(broker.Messages("error")))
				}
				for _, attempt := range calls.List() {
					if attempt != "1" {
						t.Fatalf("a conflict counts as an attempt: %v", calls.List())
					}
				}
			})
		})
	}
}

func TestKeysAfterAPause(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var l ledger
		cfg := harness.Sales(broker, endpoint.HandleInOrderBy(byKey, l.taking(always(10*time.Millisecond))))
		cfg.Concurrency = 4
		cfg.Pipeline.Receive.Use("scatter", scattered)
		r := harness.Start(t, cfg)
		for i := range 3 {
			sendKeyed(r, "a", 20*i, 20*i+20)
			time.Sleep(time.Minute)
			if err := r.Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := r.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		l.inOrder(t, "a", 60)
	})
}

// A message waits for its key no longer than the broker allows.
func TestAWaitForAKeyEndsWithTheHoldTime(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var l ledger
		cfg := harness.Sales(held{broker}, endpoint.HandleInOrderBy(byKey, l.taking(always(time.Minute))))
		cfg.Concurrency = 4
		r := harness.Start(t, cfg)
		sendKeyed(r, "a", 0, 4)
		time.Sleep(5*time.Minute + 30*time.Second)
		if q := r.Health().Queues[0]; q.Handling+q.Settling > 4 || l.crossed > 0 {
			t.Errorf("%+v, %d times at once", q, l.crossed)
		}
		if n := len(l.of("a")); n != 4 {
			t.Errorf("%d handled, want 4", n)
		}
	})
}

// held is a transport that lets a message be held for three minutes.
type held struct{ *inmemory.Transport }

func (h held) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := h.Transport.Open(ctx, env)
	return heldConn{conn, conn.(transport.Installer)}, err
}

type heldConn struct {
	transport.Conn
	transport.Installer
}

func (c heldConn) Limits() transport.Limits {
	l := c.Conn.Limits()
	l.MaxHold = 3 * time.Minute
	return l
}

func TestMessagesInQuarantineTakeKeys(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		m := &mortal{Transport: broker}
		var l ledger
		var deaths atomic.Int32
		handle := l.taking(always(time.Millisecond))
		cfg := harness.Sales(m, endpoint.HandleInOrderBy(byKey, func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
			if o.ID == "a/0" && deaths.Add(1) < 5 {
				return m.die()
			}
			return handle(ctx, s, o)
		}))
		cfg.Concurrency = 4
		for i := range 20 {
			m := native("Shop.PlaceOrder", "application/json", fmt.Sprintf(`{"ID":"a/%d"}`, i))
			m.ID = fmt.Sprint(i)
			broker.CreateQueues("sales")
			if err := broker.Put("sales", m); err != nil {
				t.Fatal(err)
			}
		}
		stop, over := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(over)
			m.supervise(t, cfg, stop)
		}()
		time.Sleep(10 * time.Minute)
		close(stop)
		<-over
		seen := map[string]int{}
		for _, id := range l.of("a") {
			seen[id]++
		}
		if len(seen)+len(broker.Messages("error")) != 20 || l.crossed > 0 {
			t.Errorf("%d handled, %d in the error queue, %d times at once", len(seen), len(broker.Messages("error")), l.crossed)
		}
	})
}
