package endpoint_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

func TestAnOutboxKeepsAnyTextOfHeaders(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		const text = "\"quoted\" 'single' \\ {json} <xml/> é 漢 🚀 \t a\u0000b"
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
			return s.Send(ctx, harness.ShipOrder(o), endpoint.Header("text", text), endpoint.Header("empty", ""))
		}))
		cfg.Outbox = db
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{ID: "1"})
		synctest.Wait()
		sent := broker.Messages("shipping")
		if len(sent) != 1 {
			t.Fatalf("%d messages were sent", len(sent))
		}
		if diff := cmp.Diff(text, sent[0].Headers.Get("text")); diff != "" {
			t.Error(diff)
		}
		if _, found := sent[0].Headers.Lookup("empty"); !found {
			t.Error("the header without a value is missing")
		}
	})
}

// Two subscribers have their outboxes in one database. An event from an outbox reaches each, and
// each sends its own.
func TestEachSubscriberHandlesAnEventFromAnOutbox(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		for _, name := range []string{"billing", "stock"} {
			cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o harness.OrderPlaced) error {
				return s.Send(ctx, harness.ShipOrder{ID: name + " " + o.ID})
			}))
			cfg.Name, cfg.Outbox = name, db
			harness.Start(t, cfg)
		}
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
			return s.Publish(ctx, harness.OrderPlaced(o))
		}))
		cfg.Outbox = db
		r := harness.Start(t, cfg)
		for range 2 {
			r.MustSend(harness.PlaceOrder{ID: "1"}, endpoint.MessageID("m-1"))
			time.Sleep(time.Second)
		}
		got := bodies(broker, "shipping")
		slices.Sort(got)
		if diff := cmp.Diff([]string{`{"ID":"billing 1"}`, `{"ID":"stock 1"}`}, got); diff != "" {
			t.Error(diff)
		}
	})
}

// The driver's own options of a message are stored with it, and are there when it is sent again
// after a failure.
func TestAnOutboxKeepsTheDriversOptions(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		recorded := &recordingBroker{Transport: broker}
		option := endpoint.OutgoingOption(func(out *pipeline.Outgoing) { out.Properties = map[string]string{"priority": "high"} })
		cfg := harness.Sales(recorded, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
			return s.Send(ctx, harness.ShipOrder(o), option, endpoint.After(time.Hour), endpoint.ExpireAfter(time.Minute))
		}))
		cfg.Outbox = db
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{ID: "1"})
		time.Sleep(time.Minute)
		ops := recorded.to("shipping")
		if len(ops) != 2 {
			t.Fatalf("%d tries to send, want 2", len(ops))
		}
		for _, op := range ops {
			if op.Properties["priority"] != "high" || op.TTL != time.Minute || op.Delay(time.Now()) <= 0 {
				t.Errorf("sent as %+v", op)
			}
		}
		time.Sleep(59*time.Minute + 30*time.Second) // it is due, and has not expired
		if n := len(broker.Messages("shipping")); n != 1 {
			t.Errorf("%d sent, want 1", n)
		}
	})
}

// recordingBroker records the operations that it is given. The first dispatch to the queue shipping
// fails.
type recordingBroker struct {
	*inmemory.Transport

	mu  sync.Mutex // guards ops
	ops []transport.Operation
}

func (b *recordingBroker) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := b.Transport.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	return &recordingConn{conn.(store), b}, nil
}

func (b *recordingBroker) to(queue string) (ops []transport.Operation) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, op := range b.ops {
		if op.Queue == queue {
			ops = append(ops, op)
		}
	}
	return ops
}

type recordingConn struct {
	store
	of *recordingBroker
}

func (c *recordingConn) Dispatch(ctx context.Context, ops []transport.Operation) ([]transport.Receipt, error) {
	before := len(c.of.to("shipping"))
	c.of.mu.Lock()
	c.of.ops = append(c.of.ops, ops...)
	c.of.mu.Unlock()
	if before == 0 && len(c.of.to("shipping")) > 0 {
		return nil, fmt.Errorf("%w: the connection broke", transport.ErrUnreachable)
	}
	return c.store.Dispatch(ctx, ops)
}

// clocked is a database whose clock differs from that of the process.
type clocked struct {
	*inmemory.Transport
	ahead time.Duration
}

func (d clocked) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := d.Transport.Open(ctx, env)
	return clockedConn{conn.(store), d.ahead}, err
}

type clockedConn struct {
	store
	ahead time.Duration
}

func (c clockedConn) Now() time.Time { return time.Now().Add(c.ahead) }

// Delays and times to live hold over the outbox, whatever the clock of its database.
func TestDelaysAndTimesToLiveHoldOverTheOutbox(t *testing.T) {
	for _, ahead := range []time.Duration{-time.Hour, 0, time.Hour} {
		t.Run(ahead.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				broker, db := &inmemory.Transport{}, &inmemory.Transport{}
				broker.CreateQueues("shipping")
				var away atomic.Bool
				broker.Fail = func(verb, object string) error {
					if away.Load() && verb == "Dispatch" && object != "sales" {
						return transport.ErrUnreachable
					}
					return nil
				}
				cfg := harness.Sales(broker)
				cfg.SendOnly, cfg.Outbox = true, clocked{db, ahead}
				r := harness.Start(t, cfg)
				send := func(id string, opts ...endpoint.SendOption) {
					t.Helper()
					if err := r.Send(t.Context(), harness.ShipOrder{ID: id}, append(opts, endpoint.ViaOutbox())...); err != nil {
						t.Fatal(err)
					}
				}
				send("short-lived", endpoint.ExpireAfter(time.Minute))
				send("delayed", endpoint.After(10*time.Second))
				send("at", endpoint.At(time.Now().Add(20*time.Second)))
				time.Sleep(9 * time.Second)
				if diff := cmp.Diff([]string{`{"ID":"short-lived"}`}, due(t, broker)); diff != "" {
					t.Error(diff)
				}
				time.Sleep(12 * time.Second)
				if diff := cmp.Diff([]string{`{"ID":"delayed"}`, `{"ID":"at"}`}, due(t, broker)); diff != "" {
					t.Error(diff)
				}
				away.Store(true)
				send("expired", endpoint.ExpireAfter(time.Minute))
				send("delayed and alive", endpoint.After(time.Minute), endpoint.ExpireAfter(5*time.Minute))
				send("delayed and expired", endpoint.After(time.Minute), endpoint.ExpireAfter(30*time.Second))
				time.Sleep(2 * time.Minute)
				away.Store(false)
				time.Sleep(10 * time.Second)
				if diff := cmp.Diff([]string{`{"ID":"delayed and alive"}`}, due(t, broker)); diff != "" {
					t.Error(diff)
				}
				if n := len(db.Messages("sales.outbox")); n != 0 {
					t.Errorf("%d messages are left in the outbox", n)
				}
			})
		})
	}
}

// due receives the messages of the queue "shipping" that are due.
func due(t *testing.T, broker *inmemory.Transport) (bodies []string) {
	t.Helper()
	conn, err := broker.Open(t.Context(), transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r, err := conn.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: "shipping"})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		ds, err := r.Receive(ctx, 10)
		cancel()
		if err != nil || len(ds) == 0 {
			return bodies
		}
		for _, d := range ds {
			bodies = append(bodies, string(d.Message().Body))
			if err := d.Complete(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// joining is a database in whose transactions a program sends messages. The tests have no
// transactions: the messages are sent at once.
type joining struct{ *inmemory.Transport }

func (d joining) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := d.Transport.Open(ctx, env)
	return joiningConn{conn.(store)}, err
}

type joiningConn struct{ store }

func (c joiningConn) DispatchIn(
	ctx context.Context, _ any, ops []transport.Operation,
) ([]transport.Receipt, error) {
	return c.Dispatch(ctx, ops)
}

// The transaction of a caller is one of the outbox. The broker need not have transactions.
func TestInIsATransactionOfTheOutbox(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		cfg := timing(broker)
		cfg.Outbox = joining{db}
		r := harness.Start(t, cfg)
		r.MustSend(harness.ShipOrder{ID: "1"}, endpoint.In("a transaction"))
		if err := r.CancelTimer(t.Context(), "a", endpoint.In("a transaction")); err != nil {
			t.Error(err)
		}
		pass(time.Minute)
		if n := len(broker.Messages("shipping")); n != 1 {
			t.Errorf("%d messages were sent, want 1", n)
		}
	})
}
