package endpoint_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
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

// orders counts the calls of a handler that fails for orders whose id begins with "bad".
type orders struct {
	mu    sync.Mutex // guards the rest
	calls map[string]int
	well  int
}

func (o *orders) handler() endpoint.Handler {
	return endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m harness.PlaceOrder) error {
		<-time.After(50 * time.Millisecond)
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.calls == nil {
			o.calls = map[string]int{}
		}
		o.calls[m.ID]++
		if strings.HasPrefix(m.ID, "bad") {
			return errNo
		}
		o.well++
		return nil
	})
}

// handled returns the number of orders that were handled, and the orders for which the handler ran
// more than once.
func (o *orders) handled() (well int, twice []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, n := range o.calls {
		if n > 1 {
			twice = append(twice, id)
		}
	}
	return o.well, twice
}

// moodyErrors is an endpoint whose error queue has moods: over a broker without dead letters, which
// sends and completes in two steps, as RabbitMQ does.
func moodyErrors(broker *inmemory.Transport, o *orders) (*moodyBroker, endpoint.Config) {
	broker.Without |= inmemory.DeadLetterer | inmemory.Completer
	b := newMoody(broker)
	cfg := harness.Sales(b, o.handler())
	cfg.Recoverability, cfg.Concurrency = once, 4
	return b, cfg
}

// deadLetters gives the broker a queue like the dead-letter queue of an endpoint on RabbitMQ.
func deadLetters(broker *inmemory.Transport) {
	broker.CreateQueues("sales.dead-letters")
	broker.Satellites = []transport.Satellite{{
		Queue: "sales.dead-letters", Concurrency: 8, Accepts: true,
		Handle: func(context.Context, *transport.Message) ([]transport.Operation, error) {
			return nil, &transport.DeadLetteredError{Queue: "sales"}
		},
	}}
}

func send(t *testing.T, r *harness.Running, prefix string, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		r.MustSend(harness.PlaceOrder{ID: fmt.Sprint(prefix, i)}, endpoint.MessageID(fmt.Sprint(prefix, i)))
	}
}

func idsIn(broker *inmemory.Transport, queue string) map[string]int {
	all := map[string]int{}
	for _, m := range broker.Messages(queue) {
		all[m.ID]++
	}
	return all
}

// wantErrors fails the test unless the error queue has each of the n bad orders once, with its
// fault headers.
func wantErrors(t *testing.T, broker *inmemory.Transport, n int) {
	t.Helper()
	all := idsIn(broker, "error")
	for i := range n {
		if got := all[fmt.Sprint("bad", i)]; got != 1 {
			t.Errorf("the error queue has order %d %d times", i, got)
		}
	}
	for _, m := range broker.Messages("error") {
		_, decided := m.Headers.Lookup(header.HoldfastFaultDecided)
		if m.Headers.Get(header.FailedQ) != "sales" || !strings.Contains(m.Headers.Get(header.ExceptionMessage), errNo.Error()) ||
			m.Headers.Get(header.HoldfastFaultClass) != "*errors.errorString" || decided {
			t.Fatalf("headers of the fault: %s", m.Headers.AppendJSON(nil))
		}
	}
}

// Whatever the error queue refuses with: failed messages take nothing of the others, and their
// handlers are not called again.
func TestARefusingErrorQueueDelaysNoOther(t *testing.T) {
	for _, m := range []mood{fullMood, refusingMood, busyMood, missingMood, unreachableMood, silentMood} {
		t.Run(m.String(), func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				var o orders
				b, cfg := moodyErrors(broker, &o)
				log := new(logged)
				cfg.Logger = log.logger()
				r := harness.Start(t, cfg)
				b.set("error", m)
				const bad = 50
				send(t, r, "bad", 0, bad)
				pass(30 * time.Second) // a silent queue has 10 to 20 s to answer
				if h := r.Health(); h.Ready || !strings.Contains(fmt.Sprint(h.Reasons), `error queue "error" accepts no messages`) {
					t.Errorf("ready %v, reasons %q", h.Ready, h.Reasons)
				}
				for i := range 60 { // 10 orders a second
					send(t, r, "well", 10*i, 10*i+10)
					pass(time.Second)
					if well, _ := o.handled(); well != 10*i+10 {
						t.Fatalf("%d of %d other orders were handled", well, 10*i+10)
					}
				}
				if h := r.Health(); h.Queues[0].Held != bad || h.Queues[0].Settling != 0 || h.Queues[0].Bytes != 0 {
					t.Errorf("queue %+v", h.Queues[0])
				}
				b.set("error", wellMood)
				pass(55 * time.Second)
				if h := r.Health(); !h.Ready || h.Queues[0].Held != 0 {
					t.Errorf("afterwards: %+v", h)
				}
				if _, twice := o.handled(); twice != nil {
					t.Errorf("handlers were called again for %q", twice)
				}
				if m != silentMood { // what was sent without an answer has arrived, too
					wantErrors(t, broker, bad)
				}
				for _, text := range []string{"an error queue accepts no messages", "no failed message waits"} {
					if n := strings.Count(log.all(), text); n != 1 {
						t.Errorf("the log has %d lines with %q, want 1", n, text)
					}
				}
			})
		})
	}
}

// Held messages outlive a stop without a second call of their handlers, in the dead-letter queue or
// as delayed copies. Each arrives in the error queue once, by an endpoint that starts while the
// error queue refuses, too.
func TestHeldMessagesOutliveAStop(t *testing.T) {
	for _, withDeadLetters := range []bool{true, false} {
		t.Run(fmt.Sprint("dead letters ", withDeadLetters), func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				if withDeadLetters {
					deadLetters(broker)
				}
				var o orders
				b, cfg := moodyErrors(broker, &o)
				const bad = 50
				r := harness.Start(t, cfg)
				b.set("error", fullMood)
				send(t, r, "bad", 0, bad)
				for range 3 {
					pass(45 * time.Second)
					begin := time.Now()
					r.End()
					if took := time.Since(begin); took > time.Second {
						t.Errorf("the stop took %v", took)
					}
					if n := len(broker.Messages("sales.dead-letters")); withDeadLetters && n != bad {
						t.Errorf("the dead-letter queue has %d messages, want %d", n, bad)
					}
					r = harness.Start(t, cfg)
				}
				send(t, r, "well", 0, 10)
				b.set("error", wellMood)
				pass(2 * time.Minute)
				well, twice := o.handled()
				if well != 10 || twice != nil {
					t.Errorf("%d other orders were handled; handlers were called again for %q", well, twice)
				}
				wantErrors(t, broker, bad)
				if left := len(broker.Messages("sales")) + len(broker.Messages("sales.dead-letters")); left != 0 {
					t.Errorf("%d messages are left", left)
				}
				if h := r.Health(); !h.Ready {
					t.Errorf("health %+v", h)
				}
			})
		})
	}
}

// A stop does not wait once for each held message if no queue answers. The messages return to their
// queue.
func TestAStopDoesNotWaitForSilentQueues(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		deadLetters(broker)
		var o orders
		b, cfg := moodyErrors(broker, &o)
		r := harness.Start(t, cfg)
		b.set("error", fullMood)
		send(t, r, "bad", 0, 200)
		pass(30 * time.Second)
		b.set("sales", silentMood)
		b.set("sales.dead-letters", silentMood)
		begin := time.Now()
		r.End()
		if took := time.Since(begin); took > 45*time.Second {
			t.Errorf("the stop took %v", took)
		}
		if n := len(broker.Messages("sales")); n != 200 {
			t.Errorf("%d messages are back in their queue, want 200", n)
		}
	})
}

// A pause of the queue, as a stop, does not wait for the error queue.
func TestAPauseDoesNotWaitForHeldMessages(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var o orders
		b, cfg := moodyErrors(broker, &o)
		r := harness.Start(t, cfg)
		b.set("error", fullMood)
		send(t, r, "bad", 0, 5)
		pass(10 * time.Second)
		begin := time.Now()
		if err := r.Pause(t.Context()); err != nil || time.Since(begin) > time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		b.set("error", wellMood)
		if err := r.Resume(t.Context()); err != nil {
			t.Error(err)
		}
		pass(time.Minute)
		wantErrors(t, broker, 5)
		if _, twice := o.handled(); twice != nil {
			t.Errorf("handlers were called again for %q", twice)
		}
	})
}

// Beyond the bound of the room, failed messages are requeued, and Health says so.
func TestHeldMessagesAreBounded(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var o orders
		b, cfg := moodyErrors(broker, &o)
		cfg.Concurrency = 100
		r := harness.Start(t, cfg)
		b.set("error", missingMood)
		const bad = 1100
		send(t, r, "bad", 0, bad)
		pass(20 * time.Second)
		h := r.Health()
		if text := fmt.Sprint(h.Reasons); h.Queues[0].Held != 1000 || !strings.Contains(text, "no more than 1000") {
			t.Errorf("%d are held, reasons %q", h.Queues[0].Held, h.Reasons)
		}
		b.set("error", wellMood)
		pass(3 * time.Minute)
		if all := idsIn(broker, "error"); len(all) != bad || !r.Health().Ready {
			t.Errorf("the error queue has %d messages, health %+v", len(all), r.Health())
		}
	})
}

// losable is a broker whose deliveries are lost, or late, when the test says so.
type losable struct {
	*moodyBroker
	lost    atomic.Bool
	maxHold time.Duration
}

func (m *losable) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := m.moodyBroker.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	return &losableConn{conn.(*moodyConn), m}, nil
}

type losableConn struct {
	*moodyConn
	m *losable
}

func (c *losableConn) Limits() transport.Limits {
	l := c.moodyConn.Limits()
	l.MaxHold = c.m.maxHold
	return l
}

func (c *losableConn) OpenReceiver(ctx context.Context, opts transport.ReceiverOptions) (transport.Receiver, error) {
	r, err := c.moodyConn.OpenReceiver(ctx, opts)
	return &losableReceiver{r, c.m}, err
}

type losableReceiver struct {
	transport.Receiver
	m *losable
}

func (r *losableReceiver) Receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	ds, err := r.Receiver.Receive(ctx, limit)
	for i, d := range ds {
		ds[i] = &losableDelivery{d, r.m}
	}
	return ds, err
}

// losableDelivery returns to its queue when it is lost.
type losableDelivery struct {
	transport.Delivery
	m *losable
}

func (d *losableDelivery) Lost() bool { return d.m.lost.Load() }

func (d *losableDelivery) Retry(ctx context.Context) error {
	err := d.Delivery.Retry(ctx)
	if d.m.lost.Load() {
		return transport.ErrLeaseLost
	}
	return err
}

// A held message whose delivery is lost is forgotten at once, because the broker delivers it again.
func TestALostMessageIsNotHeld(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var o orders
		b, cfg := moodyErrors(broker, &o)
		m := &losable{moodyBroker: b}
		cfg.Transport = m
		r := harness.Start(t, cfg)
		b.set("error", fullMood)
		send(t, r, "bad", 0, 5)
		pass(10 * time.Second)
		m.lost.Store(true)
		pass(time.Second)
		m.lost.Store(false)
		pass(10 * time.Second)
		if n := r.Health().Queues[0].Held; n != 5 {
			t.Errorf("%d messages are held again, want 5", n)
		}
		if _, twice := o.handled(); len(twice) != 5 {
			t.Errorf("%d messages were delivered again, want 5", len(twice))
		}
		b.set("error", wellMood)
		pass(time.Minute)
		wantErrors(t, broker, 5)
	})
}

// Before the broker would deliver a held message again, a copy replaces it.
func TestAHeldMessageIsReplacedInTime(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var o orders
		b, cfg := moodyErrors(broker, &o)
		var copies atomic.Int32
		b.arrived = func(op transport.Operation) {
			if op.Message.Headers.Get(header.HoldfastFaultDecided) == "error" && op.Queue == "sales" && op.After == 30*time.Second {
				copies.Add(1)
			}
		}
		cfg.Transport = &losable{moodyBroker: b, maxHold: 20 * time.Minute}
		r := harness.Start(t, cfg)
		b.set("error", fullMood)
		send(t, r, "bad", 0, 5)
		pass(14 * time.Minute)
		if n := copies.Load(); n != 0 {
			t.Errorf("%d copies too early", n)
		}
		pass(90 * time.Second)
		if n := copies.Load(); n != 5 {
			t.Errorf("%d copies, want 5", n)
		}
		pass(time.Minute)
		if n := r.Health().Queues[0].Held; n != 5 {
			t.Errorf("%d messages are held, want 5", n)
		}
		b.set("error", wellMood)
		pass(time.Minute)
		wantErrors(t, broker, 5)
		if _, twice := o.handled(); twice != nil {
			t.Errorf("handlers were called again for %q", twice)
		}
	})
}

// The leases of held messages are renewed. Without an answer, they leave before their leases end.
func TestHeldMessagesKeepTheirLeases(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Lease = 30 * time.Second
		var away atomic.Bool
		broker.Fail = func(verb, _ string) error {
			if verb == "Renew" && away.Load() {
				return transport.ErrOutcomeUnknown
			}
			return nil
		}
		var o orders
		b, cfg := moodyErrors(broker, &o)
		r := harness.Start(t, cfg)
		b.set("error", fullMood)
		send(t, r, "bad", 0, 5)
		pass(time.Hour)
		away.Store(true)
		pass(25 * time.Second)
		if n := r.Health().Queues[0].Held; n != 0 {
			t.Errorf("%d messages are held although their leases end", n)
		}
		away.Store(false)
		b.set("error", wellMood)
		pass(time.Minute)
		wantErrors(t, broker, 5)
		if _, twice := o.handled(); twice != nil {
			t.Errorf("handlers were called again for %q", twice)
		}
	})
}

// What the Recover stage and Config.OnFinalFailure sent is sent once, also when the message has to
// wait.
func TestSendsOfTheFinalFailureAreSentOnce(t *testing.T) {
	for _, without := range []inmemory.Capability{0, inmemory.Completer} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			broker.Without = inmemory.DeadLetterer | without
			broker.CreateQueues("shipping")
			var refuses atomic.Bool
			refuses.Store(true)
			broker.Fail = func(verb, object string) error {
				if verb == "Dispatch" && object == "error" && refuses.Load() {
					return transport.ErrFull
				}
				return nil
			}
			var calls atomic.Int32
			cfg := harness.Sales(broker, failing(&harness.Tally{}))
			cfg.Recoverability = once
			cfg.OnFinalFailure = func(ctx context.Context, s *endpoint.Session, _ recoverability.Failure) error {
				calls.Add(1)
				return s.Send(ctx, harness.ShipOrder{ID: "1"})
			}
			r := harness.Start(t, cfg)
			r.MustSend(harness.PlaceOrder{ID: "bad0"}, endpoint.MessageID("bad0"))
			pass(20 * time.Second)
			r.End()
			r = harness.Start(t, cfg)
			pass(time.Minute)
			refuses.Store(false)
			pass(time.Minute)
			if n := len(broker.Messages("shipping")); n != 1 || calls.Load() != 1 {
				t.Errorf("without %b: %d messages of %d calls, want 1 of 1", without, n, calls.Load())
			}
			wantErrors(t, broker, 1)
			r.End()
		})
	}
}

// A message for the error queue of a rule goes there after a restart. A header that names a queue
// of the endpoint itself does not have the message moved there.
func TestACopyNamesItsErrorQueue(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.CreateQueues("special")
		var o orders
		b, cfg := moodyErrors(broker, &o)
		log := new(logged)
		cfg.Logger = log.logger()
		cfg.Recoverability.Rules = []recoverability.Rule{{ErrorQueue: "special", Errors: []recoverability.Matcher{recoverability.Is(errNo)}}}
		r := harness.Start(t, cfg)
		b.set("special", fullMood)
		b.set("error", fullMood)
		send(t, r, "bad", 0, 3)
		pass(20 * time.Second)
		if n := strings.Count(log.all(), "trying the configured one"); n > 3 {
			t.Errorf("%d lines of further tries", n)
		}
		r.End()
		r = harness.Start(t, cfg)
		b.set("special", wellMood)
		pass(time.Minute)
		if n := len(broker.Messages("special")); n != 3 {
			t.Errorf("the error queue of the rule has %d messages, want 3", n)
		}
		b.set("error", wellMood)
		broker.CreateQueues("payments")
		for _, queue := range []string{"sales", "payments"} {
			var h header.Map
			h.Set(header.HoldfastFaultDecided, queue)
			if err := broker.Put("sales", &transport.Message{ID: "forged", Headers: h}); err != nil {
				t.Fatal(err)
			}
		}
		pass(time.Minute)
		if all := broker.Messages("error"); len(all) != 2 || all[0].ID != "forged" {
			t.Errorf("the error queue has %d messages", len(all))
		} else if queue, text := all[0].Headers.Get(header.FailedQ), all[0].Headers.Get(header.ExceptionMessage); queue != "sales" || text == "" {
			t.Errorf("the message has failed in %q: %q", queue, text) // without a queue nothing can return the message
		}
		synctest.Wait()
		r.End()
	})
}
