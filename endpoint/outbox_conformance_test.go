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
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// The counterparts of NServiceBus's outbox tests that the other tests of the outbox are not. docs/conformance.md has the
// table.

// A process ends after the commit, before or after the broker has accepted what was stored: another one sends it, under
// the same ids, and the handler does not run again.
func TestWhatIsStoredIsSentAfterTheProcessHasEnded(t *testing.T) {
	for name, arrives := range map[string]int{"before dispatch": 1, "before the row is removed": 2} {
		t.Run(name, func(t *testing.T) {
			withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
				var over atomic.Bool
				broker.Fail = func(verb, object string) error {
					if !over.Load() && arrives == 1 && verb == "Dispatch" && object == "shipping" {
						return transport.ErrUnreachable
					}
					return nil
				}
				db.Fail = func(verb, object string) error {
					if !over.Load() && verb == "Complete" && object == "sales.outbox" {
						return transport.ErrUnreachable
					}
					return nil
				}
				var written tally
				first := start(t, storing(broker, db, &written))
				first.send(placeOrder{ID: "1"})
				time.Sleep(time.Second)
				first.end()
				if n := len(db.Messages("sales.outbox")); n != 1 {
					t.Fatalf("the outbox has %d messages, want 1", n)
				}
				over.Store(true)
				start(t, storing(broker, db, &written))
				time.Sleep(time.Second)
				var ids []string
				for _, m := range broker.Messages("shipping") {
					ids = append(ids, m.ID)
				}
				if len(ids) != arrives || len(slices.Compact(ids)) != 1 {
					t.Errorf("the messages %q arrived, want one id %d times", ids, arrives)
				}
				if n := len(db.Messages("sales.outbox")); n != 0 || len(written.list()) != 1 {
					t.Errorf("%d messages in the outbox, %d writes; want 0, 1", n, len(written.list()))
				}
			})
		})
	}
}

func TestAnOutboxKeepsAnyTextOfHeaders(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		const text = "\"quoted\" 'single' \\ {json} <xml/> é 漢 🚀 \t a\u0000b"
		cfg := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o placeOrder) error {
			return s.Send(ctx, shipOrder(o), endpoint.Header("text", text), endpoint.Header("empty", ""))
		}))
		cfg.Outbox = db
		start(t, cfg).send(placeOrder{ID: "1"})
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

// Two subscribers have their outboxes in one database. An event from an outbox reaches each, and each sends its own.
func TestEachSubscriberHandlesAnEventFromAnOutbox(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		for _, name := range []string{"billing", "stock"} {
			cfg := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o orderPlaced) error {
				return s.Send(ctx, shipOrder{ID: name + " " + o.ID})
			}))
			cfg.Name, cfg.Outbox = name, db
			start(t, cfg)
		}
		cfg := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o placeOrder) error {
			return s.Publish(ctx, orderPlaced(o))
		}))
		cfg.Outbox = db
		r := start(t, cfg)
		for range 2 {
			r.send(placeOrder{ID: "1"}, endpoint.MessageID("m-1"))
			time.Sleep(time.Second)
		}
		got := bodies(broker, "shipping")
		slices.Sort(got)
		if diff := cmp.Diff([]string{`{"ID":"billing 1"}`, `{"ID":"stock 1"}`}, got); diff != "" {
			t.Error(diff)
		}
	})
}

// The driver's own options of a message are stored with it, and are there when it is sent again after a failure.
func TestAnOutboxKeepsTheDriversOptions(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		recorded := &recordingBroker{Transport: broker}
		option := endpoint.OutgoingOption(func(out *pipeline.Outgoing) { out.Properties = map[string]string{"priority": "high"} })
		cfg := sales(recorded, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o placeOrder) error {
			return s.Send(ctx, shipOrder(o), option, endpoint.After(time.Hour), endpoint.ExpireAfter(time.Minute))
		}))
		cfg.Outbox = db
		start(t, cfg).send(placeOrder{ID: "1"})
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

// recordingBroker records the operations that it is given. The first dispatch to the queue shipping fails.
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

// A message that is not handled, because the database is away, has no audit copy; one that is handled has one.
func TestAnAuditCopyBelongsToTheCommit(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var away atomic.Bool
		db.Fail = func(verb, _ string) error {
			if away.Load() && verb == "BeginStore" {
				return transport.ErrUnreachable
			}
			return nil
		}
		cfg := storing(broker, db, new(tally))
		cfg.AuditQueue = "audit"
		r := start(t, cfg)
		away.Store(true)
		r.send(placeOrder{ID: "1"}, endpoint.MessageID("m-1"))
		time.Sleep(time.Minute)
		if n := len(broker.Messages("audit")); n != 0 {
			t.Errorf("%d audit copies of a message that was not handled", n)
		}
		away.Store(false)
		time.Sleep(time.Minute)
		copies := broker.Messages("audit")
		if len(copies) != 1 || copies[0].Headers.Get(header.MessageID) != "m-1" {
			t.Errorf("the audit queue has %d messages: %v", len(copies), copies)
		}
	})
}
