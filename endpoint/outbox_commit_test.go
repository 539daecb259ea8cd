package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// withOutbox runs f in a bubble with a broker and the database of an outbox.
func withOutbox(t *testing.T, f func(t *testing.T, broker, db *inmemory.Transport)) {
	t.Helper()
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) { f(t, broker, &inmemory.Transport{}) })
}

// storing is a configuration with an outbox, whose handler writes and sends.
func storing(broker, db *inmemory.Transport, written *harness.Tally) endpoint.Config {
	cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
		if err := inmemory.OnCommit(ctx, s, func() { written.Add(o.ID) }); err != nil {
			return err
		}
		return s.Send(ctx, harness.ShipOrder(o))
	}))
	cfg.Outbox = db
	return cfg
}

// bodies returns the bodies of the messages in a queue.
func bodies(broker *inmemory.Transport, queue string) (all []string) {
	for _, m := range broker.Messages(queue) {
		all = append(all, string(m.Body))
	}
	return all
}

func TestAnOutboxCommitsWritesAndSendsTogether(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var written harness.Tally
		r := harness.Start(t, storing(broker, db, &written))
		r.MustSend(harness.PlaceOrder{ID: "1"}, endpoint.MessageID("m-1"))
		pass(time.Second)
		if diff := cmp.Diff([]string{"1"}, written.List()); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{`{"ID":"1"}`}, bodies(broker, "shipping")); diff != "" {
			t.Error(diff)
		}
		if n := len(db.Messages("sales.outbox")) + len(broker.Messages("sales")); n != 0 {
			t.Errorf("%d messages are left in the outbox and the endpoint's queue", n)
		}
	})
}

func TestAnOutboxKeepsTheOrderAndTheHeadersOfSends(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
			for i := range 300 {
				if err := s.Send(ctx, harness.ShipOrder{ID: fmt.Sprint(i)}, endpoint.Header("n", fmt.Sprint(i))); err != nil {
					return err
				}
			}
			return nil
		}))
		cfg.Outbox = db
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{ID: "1"})
		pass(time.Second)
		sent := broker.Messages("shipping")
		if len(sent) != 300 {
			t.Fatalf("%d messages were sent, want 300", len(sent))
		}
		for i, m := range sent {
			if want := fmt.Sprintf(`{"ID":"%d"}`, i); string(m.Body) != want || m.Headers.Get("n") != fmt.Sprint(i) || m.ID != m.Headers.Get(header.MessageID) {
				t.Fatalf("message %d is %s with header %q and id %q", i, m.Body, m.Headers.Get("n"), m.ID)
			}
		}
	})
}

// A failure before the commit leaves nothing, and a failure after it concerns the message no more.
func TestAFailedHandlerStoresNothing(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var written harness.Tally
		var tries atomic.Int32
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
			if err := inmemory.OnCommit(ctx, s, func() { written.Add(o.ID) }); err != nil {
				return err
			}
			if err := s.Send(ctx, harness.ShipOrder(o)); err != nil {
				return err
			}
			if tries.Add(1) < 3 {
				return errNo
			}
			return nil
		}))
		cfg.Outbox = db
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{ID: "1"})
		pass(time.Second)
		if tries.Load() != 3 || len(written.List()) != 1 || len(broker.Messages("shipping")) != 1 {
			t.Errorf("%d tries, %d writes, %d sent; want 3, 1, 1", tries.Load(), len(written.List()), len(broker.Messages("shipping")))
		}
	})
}

// With an outbox, the writes of a final failure are committed before the message moves.
func TestAFinalFailureCommitsBeforeTheMove(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var written harness.Tally
		cfg := harness.Sales(broker, failing(new(harness.Tally)))
		cfg.Outbox, cfg.Recoverability = db, once
		cfg.OnFinalFailure = func(ctx context.Context, s *endpoint.Session, f recoverability.Failure) error {
			if err := inmemory.OnCommit(ctx, s, func() { written.Add(f.MessageID) }); err != nil {
				return err
			}
			return s.Send(ctx, harness.ShipOrder{ID: "sorry"})
		}
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{ID: "1"}, endpoint.MessageID("m-1"))
		pass(time.Second)
		if len(written.List()) != 1 || len(broker.Messages("error")) != 1 || len(broker.Messages("shipping")) != 1 {
			t.Errorf("%d writes, %d failed, %d sent; want 1 each", len(written.List()), len(broker.Messages("error")), len(broker.Messages("shipping")))
		}
		// It failed, so its id is not recorded: a return from the error queue is handled.
		if err := broker.Put("sales", broker.Messages("error")[0]); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		if len(written.List()) != 2 {
			t.Error("a message that was returned from the error queue was taken for a message that was handled")
		}
	})
}

// With an outbox, a missing destination fails the message before the commit.
func TestAMissingDestinationFailsBeforeTheCommit(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var written harness.Tally
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
			if err := inmemory.OnCommit(ctx, s, func() { written.Add(o.ID) }); err != nil {
				return err
			}
			return s.Send(ctx, harness.ShipOrder(o), endpoint.To("nowhere"))
		}))
		cfg.Outbox, cfg.Recoverability = db, once
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{ID: "1"})
		pass(time.Second)
		if len(broker.Messages("error")) != 1 || len(written.List()) != 0 {
			t.Errorf("%d failed, %d writes; want 1, 0", len(broker.Messages("error")), len(written.List()))
		}
	})
}

// A message that is not handled, because the database is away, has no audit copy; one that is
// handled has one.
func TestAnAuditCopyBelongsToTheCommit(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var away atomic.Bool
		db.Fail = func(verb, _ string) error {
			if away.Load() && verb == "BeginStore" {
				return transport.ErrUnreachable
			}
			return nil
		}
		cfg := storing(broker, db, new(harness.Tally))
		cfg.AuditQueue = "audit"
		r := harness.Start(t, cfg)
		away.Store(true)
		r.MustSend(harness.PlaceOrder{ID: "1"}, endpoint.MessageID("m-1"))
		pass(time.Minute)
		if n := len(broker.Messages("audit")); n != 0 {
			t.Errorf("%d audit copies of a message that was not handled", n)
		}
		away.Store(false)
		pass(time.Minute)
		copies := broker.Messages("audit")
		if len(copies) != 1 || copies[0].Headers.Get(header.MessageID) != "m-1" {
			t.Errorf("the audit queue has %d messages: %v", len(copies), copies)
		}
	})
}

func TestAuditCopiesAreStoredAndTheirQueueMayBeMissing(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var refuse atomic.Bool
		broker.Fail = func(verb, object string) error {
			if refuse.Load() && verb == "Dispatch" && object == "audit" {
				return transport.ErrNoQueue
			}
			return nil
		}
		var written harness.Tally
		cfg := storing(broker, db, &written)
		cfg.AuditQueue = "audit"
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{ID: "1"})
		pass(time.Second)
		refuse.Store(true)
		r.MustSend(harness.PlaceOrder{ID: "2"})
		pass(time.Second)
		if len(written.List()) != 2 || len(broker.Messages("shipping")) != 2 || len(broker.Messages("audit")) != 1 || len(broker.Messages("error")) != 1 {
			t.Errorf("%d writes, %d sent, %d audit copies, %d in the error queue; want 2, 2, 1, 1", len(written.List()),
				len(broker.Messages("shipping")), len(broker.Messages("audit")), len(broker.Messages("error")))
		}
	})
}

func TestAHandlerSendsTenThousandMessages(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		const n = 10_000
		filler := strings.Repeat("x", 1000) // several rows
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
			for i := range n {
				if err := s.Send(ctx, harness.ShipOrder{ID: fmt.Sprint(i, filler)}); err != nil {
					return err
				}
			}
			return nil
		}))
		cfg.Outbox, cfg.Concurrency = db, 1 // in order
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{ID: "1"})
		pass(time.Minute)
		sent := broker.Messages("shipping")
		if len(sent) != n {
			t.Fatalf("%d sent, want %d", len(sent), n)
		}
		for i, m := range sent {
			if !strings.HasPrefix(string(m.Body), fmt.Sprintf(`{"ID":"%dx`, i)) {
				t.Fatalf("message %d is %.40s", i, m.Body)
			}
		}
	})
}

// rejecting is a database that refuses to commit the transactions of handlers.
type rejecting struct {
	*inmemory.Transport
	refuse func() error
}

func (r rejecting) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := r.Transport.Open(ctx, env)
	return rejectingConn{conn.(fullStore), r.refuse}, err
}

// fullStore is what the endpoint uses of an outbox in these tests.
type fullStore interface {
	fullConn
	transport.OutboxStore
}

type rejectingConn struct {
	fullStore
	refuse func() error
}

func (c rejectingConn) BeginStore(ctx context.Context, e transport.OutboxEntry) (transport.Tx, error) {
	tx, err := c.fullStore.BeginStore(ctx, e)
	return rejectedTx{tx, c.refuse}, err
}

type rejectedTx struct {
	transport.Tx
	refuse func() error
}

func (tx rejectedTx) Complete(ctx context.Context, ops []transport.Operation) error {
	if err := tx.refuse(); err != nil {
		return err
	}
	return tx.Tx.Complete(ctx, ops)
}

// A commit fails as in an outage: it is repeated, and fails the message only if the database stores
// other things.
func TestARefusedCommitIsRepeatedAndThenAFailure(t *testing.T) {
	refused := func() error { return transport.ErrUnreachable }
	tooLong := func() error {
		pass(10 * time.Second)
		return errors.Join(transport.ErrOutcomeUnknown, context.DeadlineExceeded)
	}
	for name, test := range map[string]struct {
		refuse          func() error
		times           int
		away            bool // the database stores nothing else
		commits, failed int
	}{
		"for a moment":    {refused, 5, false, 6, 0},
		"always":          {refused, 1 << 30, false, 11, 1},
		"always too long": {tooLong, 1 << 30, false, 11, 1},
		"as all others":   {refused, 50, true, 51, 0},
	} {
		t.Run(name, func(t *testing.T) {
			withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
				var commits atomic.Int32
				db.Fail = func(verb, _ string) error {
					if verb == "Store" && test.away && int(commits.Load()) < test.times {
						return transport.ErrUnreachable
					}
					return nil
				}
				cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
					_, err := s.Tx(ctx)
					return err
				}))
				cfg.Recoverability = once
				cfg.Outbox = rejecting{db, func() error {
					if int(commits.Add(1)) > test.times {
						return nil
					}
					return test.refuse()
				}}
				r := harness.Start(t, cfg)
				r.MustSend(harness.PlaceOrder{ID: "1"})
				if test.away {
					pass(5 * time.Second)
					if n := commits.Load(); n != 1 || r.Health().Ready {
						t.Errorf("%d commits were tried, and the health is %+v", n, r.Health())
					}
					commits.Store(int32(test.times)) // the outage is over
				}
				pass(5 * time.Minute)
				if n, failed := int(commits.Load()), len(broker.Messages("error")); n != test.commits || failed != test.failed {
					t.Errorf("%d commits were tried and %d messages failed, want %d, %d", n, failed, test.commits, test.failed)
				}
				for _, m := range broker.Messages("error") {
					if typ := m.Headers.Get(header.ExceptionType); typ != "*endpoint.commitError" {
						t.Errorf("the type of the failure is %s", typ)
					}
				}
				if n := len(broker.Messages("sales")) + len(db.Messages("sales.outbox")); n != 0 {
					t.Errorf("%d messages are left", n)
				}
				if h := r.Health(); !h.Ready {
					t.Errorf("the health is %+v", h)
				}
			})
		})
	}
}
