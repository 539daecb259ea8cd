package endpoint_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// logged is a log that can be read while it is written.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

// pass lets time pass, and what is due happen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// An endpoint that stops while its database is away leaves no goroutine that asks the closed connection.
func TestNothingProbesTheDatabaseAfterAStop(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var away atomic.Bool
		var looks atomic.Int32
		db.Fail = func(verb, _ string) error {
			if verb == "FindHandled" && away.Load() {
				looks.Add(1)
				return transport.ErrUnreachable
			}
			return nil
		}
		var log logged
		cfg := storing(broker, db, new(tally))
		cfg.Logger = log.logger()
		r := start(t, cfg)
		away.Store(true)
		r.send(placeOrder{ID: "1"})
		pass(10 * time.Second)
		if looks.Load() < 2 {
			t.Fatalf("%d looks at the database, want some", looks.Load())
		}
		r.end()
		before := looks.Load()
		pass(5 * time.Minute)
		if n := looks.Load(); n != before || log.has("the database of the outbox and the inbox answers") {
			t.Errorf("%d looks after the stop, and the log is:\n%s", n-before, log.text.String())
		}
	})
}

// Several messages of one handler that the broker cannot take for a moment are several operations: none moves to the
// error queue at the first refusal.
func TestARefusalThatPassesMovesNoneOfManyMessages(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var refusals atomic.Int32
		broker.Fail = func(verb, object string) error {
			if verb == "Dispatch" && object == "shipping" && refusals.Add(1) <= 10 {
				return errors.New("no room at the moment")
			}
			return nil
		}
		cfg := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o placeOrder) error {
			for range 10 {
				if err := s.Send(ctx, shipOrder(o)); err != nil {
					return err
				}
			}
			return nil
		}))
		cfg.Outbox = db
		start(t, cfg).send(placeOrder{ID: "1"})
		pass(time.Minute)
		if sent, failed := len(broker.Messages("shipping")), len(broker.Messages("error")); sent != 10 || failed != 0 {
			t.Errorf("%d sent, %d in the error queue; want 10, 0", sent, failed)
		}
	})
}

// Messages that no queue takes, not even the error queue, hold up no others, however many there are.
func TestMessagesThatNoQueueTakesHoldUpNoOthers(t *testing.T) {
	reasons := map[string]error{
		"busy": &transport.BusyError{Queue: "shipping", Reason: "locked"}, "missing": transport.ErrNoQueue,
	}
	for name, reason := range reasons {
		t.Run(name, func(t *testing.T) {
			withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
				db.Lease = time.Minute
				broker.CreateQueues("billing")
				var refuse atomic.Bool
				broker.Fail = func(verb, object string) error {
					if refuse.Load() && verb == "Dispatch" && (object == "shipping" || object == "error") {
						return reason
					}
					return nil
				}
				cfg := storing(broker, db, new(tally))
				cfg.Handlers = []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o placeOrder) error {
					return errors.Join(s.Send(ctx, shipOrder{ID: "sent"}, endpoint.To("other")), s.Send(ctx, shipOrder(o)))
				})}
				r := start(t, cfg)
				r.send(placeOrder{ID: "0"}) // then shipping is known to exist
				pass(time.Second)
				refuse.Store(true)
				const stuck = 20
				for range stuck {
					r.send(placeOrder{ID: "1"})
					pass(2 * time.Second) // a batch of its own
				}
				if err := r.Send(t.Context(), shipOrder{ID: "2"}, endpoint.To("billing"), endpoint.ViaOutbox()); err != nil {
					t.Fatal(err)
				}
				pass(10 * time.Second)
				if n := len(broker.Messages("billing")); n != 1 {
					t.Errorf("%d sent to another queue, want 1", n)
				}
				pass(10 * time.Minute)
				if n := len(broker.Messages("other")); n != stuck+1 {
					t.Errorf("%d messages were sent beside those that are stuck, want %d, each once", n, stuck+1)
				}
				refuse.Store(false)
				pass(2 * time.Minute)
				if n := len(broker.Messages("shipping")) + len(broker.Messages("error")); n != stuck+1 {
					t.Errorf("%d arrived, want %d", n, stuck+1)
				}
				if n := len(db.Messages("sales.outbox")); n != 0 {
					t.Errorf("%d are left in the outbox", n)
				}
			})
		})
	}
}

// panicking is a broker whose driver panics over some messages.
type panicking struct{ *inmemory.Transport }

func (p panicking) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := p.Transport.Open(ctx, env)
	return panickingConn{conn.(fullConn)}, err
}

// fullConn is what the endpoint uses of a broker in these tests.
type fullConn interface {
	transport.Conn
	transport.Installer
	transport.Inspector
	transport.Subscriber
}

type panickingConn struct{ fullConn }

func (c panickingConn) Dispatch(ctx context.Context, ops []transport.Operation) ([]transport.Receipt, error) {
	for i := range ops {
		if ops[i].Queue == "shipping" && strings.Contains(string(ops[i].Message.Body), "bad") {
			panic("the driver cannot encode it")
		}
	}
	return c.fullConn.Dispatch(ctx, ops)
}

func TestADriverThatPanicsOverAStoredMessageSendsTheOthers(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		cfg := storing(broker, db, new(tally))
		cfg.Transport = panicking{broker}
		r := start(t, cfg)
		for _, id := range []string{"1", "bad", "2", "3"} {
			if err := r.Send(t.Context(), shipOrder{ID: id}, endpoint.ViaOutbox()); err != nil {
				t.Fatal(err)
			}
		}
		pass(time.Minute)
		if sent, failed := len(broker.Messages("shipping")), len(broker.Messages("error")); sent != 3 || failed != 1 {
			t.Errorf("%d sent, %d in the error queue; want 3, 1", sent, failed)
		}
	})
}

// Tables that are dropped while the endpoint runs are no fault of the messages.
func TestMissingTablesUseUpNoRetry(t *testing.T) {
	for _, missing := range []string{"sales.handled", "sales.outbox"} {
		t.Run(missing, func(t *testing.T) {
			withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
				var gone atomic.Bool
				db.Fail = func(_, object string) error {
					if gone.Load() && object == missing {
						return transport.ErrNoQueue
					}
					return nil
				}
				var written tally
				cfg := storing(broker, db, &written)
				cfg.Recoverability = once
				r := start(t, cfg)
				gone.Store(true)
				r.send(placeOrder{ID: "1"})
				pass(time.Hour)
				if n := len(broker.Messages("error")); n != 0 || len(written.list()) != 0 {
					t.Fatalf("%d messages failed, and %d were handled", n, len(written.list()))
				}
				if h := r.Health(); h.Ready || !strings.Contains(strings.Join(h.Reasons, " "), "Install") {
					t.Errorf("health is %+v", h)
				}
				gone.Store(false)
				pass(time.Minute)
				if len(written.list()) != 1 || len(broker.Messages("shipping")) != 1 {
					t.Errorf("%d writes, %d sent; want 1, 1", len(written.list()), len(broker.Messages("shipping")))
				}
			})
		})
	}
}

// A handler that gets its transaction at the second try has failed for another reason.
func TestAHandlerThatFailsAfterAnOutageUsesUpItsRetries(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var begins atomic.Int32
		db.Fail = func(verb, _ string) error {
			if verb == "BeginStore" && begins.Add(1)%2 == 1 {
				return transport.ErrUnreachable
			}
			return nil
		}
		cfg := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o placeOrder) error {
			begin := func() error { return inmemory.OnCommit(ctx, s, func() {}) }
			if first, second := begin(), begin(); first == nil || second != nil {
				t.Errorf("the transaction was begun with %v, then %v", first, second)
			}
			return errNo
		}))
		cfg.Outbox, cfg.Recoverability = db, once
		start(t, cfg).send(placeOrder{ID: "1"})
		pass(time.Minute)
		if n := len(broker.Messages("error")); n != 1 {
			t.Errorf("%d messages in the error queue, want 1", n)
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

// A commit fails as in an outage: it is repeated, and fails the message only if the database stores other things.
func TestARefusedCommitIsRepeatedAndThenAFailure(t *testing.T) {
	refused := func() error { return transport.ErrUnreachable }
	tooLong := func() error {
		time.Sleep(10 * time.Second)
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
				cfg := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ placeOrder) error {
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
				r := start(t, cfg)
				r.send(placeOrder{ID: "1"})
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
