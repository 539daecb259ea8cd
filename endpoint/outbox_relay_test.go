package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// What the outbox sends runs through the Relay stage, also a refused message on its way to the
// error queue.
func TestTheOutboxSendsThroughTheRelayStage(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		broker.Fail = func(verb, object string) error {
			if verb == "Dispatch" && object == "other" {
				return transport.ErrTooLarge
			}
			return nil
		}
		cfg := storing(broker, db, new(harness.Tally))
		var seen harness.Tally
		cfg.Pipeline.Relay.Use("look", func(next pipeline.Func[*pipeline.Relay]) pipeline.Func[*pipeline.Relay] {
			return func(ctx context.Context, r *pipeline.Relay) error {
				err := next(ctx, r)
				for i, op := range r.Operations {
					outcome := "sent"
					if failed, ok := errors.AsType[*transport.DispatchError](err); ok && failed.Ops[0].Index == i {
						outcome = "refused"
					}
					seen.Add(op.Queue + " " + outcome)
				}
				return err
			}
		})
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{ID: "1"})
		pass(time.Second)
		if err := r.Send(t.Context(), harness.ShipOrder{ID: "2"}, endpoint.To("other"), endpoint.ViaOutbox()); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		if diff := cmp.Diff([]string{"shipping sent", "other refused", "error sent"}, seen.List()); diff != "" {
			t.Error(diff)
		}
		// Tools group failures by the type and the place of an error.
		moved := broker.Messages("error")[0].Headers
		if typ, stack := moved.Get(header.ExceptionType), moved.Get(header.ExceptionStackTrace); typ != "*endpoint.unsentError" ||
			!strings.Contains(stack, "at github.com/holdfast-go/holdfast/endpoint.outbox") {
			t.Errorf("type %q, stack %q", typ, stack)
		}
	})
}

// While a behavior of the Relay stage fails, the messages stay in the outbox.
func TestAFailureOfTheRelayStageLosesNothing(t *testing.T) {
	for name, fail := range map[string]func() error{
		"error": func() error { return errors.New("no key to sign with") },
		"panic": func() error { panic("no key to sign with") },
	} {
		t.Run(name, func(t *testing.T) {
			withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
				cfg := storing(broker, db, new(harness.Tally))
				var failing atomic.Bool
				cfg.Pipeline.Relay.Use("sign", func(next pipeline.Func[*pipeline.Relay]) pipeline.Func[*pipeline.Relay] {
					return func(ctx context.Context, r *pipeline.Relay) error {
						if failing.Load() {
							return fail()
						}
						return next(ctx, r)
					}
				})
				failing.Store(true)
				r := harness.Start(t, cfg)
				for _, id := range []string{"1", "2"} {
					r.MustSend(harness.PlaceOrder{ID: id})
				}
				pass(10 * time.Minute)
				if n := len(broker.Messages("shipping")) + len(broker.Messages("error")); n != 0 {
					t.Fatalf("%d messages were sent", n)
				}
				failing.Store(false)
				pass(2 * time.Minute)
				if sent, failed := len(broker.Messages("shipping")), len(broker.Messages("error")); sent != 2 || failed != 0 {
					t.Errorf("%d sent, %d in the error queue; want 2, 0", sent, failed)
				}
			})
		})
	}
}

func TestASendOnlyEndpointRelays(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		cfg := harness.Sales(broker)
		cfg.SendOnly, cfg.Outbox = true, db
		r := harness.Start(t, cfg)
		if err := r.Send(t.Context(), harness.ShipOrder{ID: "1"}, endpoint.ViaOutbox()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if n := len(broker.Messages("shipping")); n != 1 {
			t.Errorf("%d sent, want 1", n)
		}
	})
}

func TestARefusedMessageOfTheOutboxMovesToTheErrorQueue(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var refuse atomic.Bool
		broker.Fail = func(verb, object string) error {
			if refuse.Load() && verb == "Dispatch" && object == "shipping" {
				return transport.ErrNoQueue
			}
			return nil
		}
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
			refuse.Store(true) // it was there when the message was stored
			return errors.Join(s.Send(ctx, harness.ShipOrder(o)), s.Send(ctx, harness.ShipOrder{ID: "other"}, endpoint.To("other")))
		}))
		cfg.Outbox = db
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{ID: "1"})
		time.Sleep(time.Second)
		failed := broker.Messages("error")
		if len(failed) != 1 || failed[0].Headers.Get(header.FailedQ) != "shipping" || failed[0].Headers.Get(header.HoldfastFaultClass) != "undeliverable" {
			t.Fatalf("the error queue has %d messages: %v", len(failed), failed)
		}
		if len(broker.Messages("other")) != 1 || len(db.Messages("sales.outbox")) != 0 {
			t.Error("the other message was not sent, or the outbox is not empty")
		}
		if h := r.Health(); h.Outbox.Refused != 1 {
			t.Errorf("health is %+v", h.Outbox)
		}
	})
}

// Several messages of one handler that the broker cannot take for a moment are several operations:
// none moves to the error queue at the first refusal.
func TestARefusalThatPassesMovesNoneOfManyMessages(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var refusals atomic.Int32
		broker.Fail = func(verb, object string) error {
			if verb == "Dispatch" && object == "shipping" && refusals.Add(1) <= 10 {
				return errors.New("no room at the moment")
			}
			return nil
		}
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
			for range 10 {
				if err := s.Send(ctx, harness.ShipOrder(o)); err != nil {
					return err
				}
			}
			return nil
		}))
		cfg.Outbox = db
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{ID: "1"})
		pass(time.Minute)
		if sent, failed := len(broker.Messages("shipping")), len(broker.Messages("error")); sent != 10 || failed != 0 {
			t.Errorf("%d sent, %d in the error queue; want 10, 0", sent, failed)
		}
	})
}

// Messages that no queue takes, not even the error queue, hold up no others, however many there
// are.
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
				cfg := storing(broker, db, new(harness.Tally))
				cfg.Handlers = []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
					return errors.Join(s.Send(ctx, harness.ShipOrder{ID: "sent"}, endpoint.To("other")), s.Send(ctx, harness.ShipOrder(o)))
				})}
				r := harness.Start(t, cfg)
				r.MustSend(harness.PlaceOrder{ID: "0"}) // then shipping is known to exist
				pass(time.Second)
				refuse.Store(true)
				const stuck = 20
				for range stuck {
					r.MustSend(harness.PlaceOrder{ID: "1"})
					pass(2 * time.Second) // a batch of its own
				}
				if err := r.Send(t.Context(), harness.ShipOrder{ID: "2"}, endpoint.To("billing"), endpoint.ViaOutbox()); err != nil {
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

// Once the relay has found that a queue is missing, the next message for it fails before its
// commit.
func TestAMissingQueueIsRememberedByTheRelay(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var gone atomic.Bool
		broker.Fail = func(verb, object string) error {
			if gone.Load() && object == "shipping" {
				return transport.ErrNoQueue
			}
			return nil
		}
		var written harness.Tally
		cfg := storing(broker, db, &written)
		cfg.Recoverability = once
		r := harness.Start(t, cfg)
		for i := range 3 { // the queue exists, goes while a message for it is stored, and is known to be gone
			gone.Store(i > 0)
			r.MustSend(harness.PlaceOrder{ID: fmt.Sprint(i)})
			pass(time.Second)
		}
		if diff := cmp.Diff([]string{"0", "1"}, written.List()); diff != "" {
			t.Error(diff)
		}
		if n := len(broker.Messages("error")); n != 2 {
			t.Errorf("%d messages in the error queue, want 2", n)
		}
	})
}

// While the rows of messages that were sent cannot be removed, they stay leased: none is sent
// twice, and Health says why the relay does not go on.
func TestRowsThatCannotBeRemovedAreNotSentAgain(t *testing.T) {
	for _, failing := range []error{transport.ErrDenied, transport.ErrUnreachable, transport.ErrOutcomeUnknown} {
		withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
			var away atomic.Bool
			away.Store(true)
			db.Fail = func(verb, object string) error {
				if verb == "Complete" && object == "sales.outbox" && away.Load() {
					return fmt.Errorf("delete: %w", failing)
				}
				return nil
			}
			r := harness.Start(t, storing(broker, db, new(harness.Tally)))
			const messages = 10
			for n := range messages {
				r.MustSend(harness.PlaceOrder{ID: fmt.Sprint(n)})
			}
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			reasons := strings.Join(r.Health().Reasons, "; ")
			if !strings.Contains(reasons, "removing sent messages from the outbox has been failing") {
				t.Errorf("reasons %q", reasons)
			}
			if says := strings.Contains(reasons, "grant SELECT, INSERT, UPDATE and DELETE"); says != errors.Is(failing, transport.ErrDenied) {
				t.Errorf("reasons %q", reasons)
			}
			away.Store(false)
			time.Sleep(time.Minute)
			synctest.Wait()
			if n, left := len(broker.Messages("shipping")), len(db.Messages("sales.outbox")); n != messages || left > 0 || !r.Health().Ready {
				t.Errorf("%d messages were sent, %d rows are left, health %+v", n, left, r.Health())
			}
			r.End()
		})
	}
}

// A row that cannot be read stays, and holds up neither others nor the handlers. An instance that
// can read it sends it.
func TestRowsThatCannotBeReadStay(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		db.Lease = 30 * time.Second
		var written harness.Tally
		r := harness.Start(t, storing(broker, db, &written))
		for _, body := range [][]byte{{2, 1, 2, 3}, {1, 200}, {}, nil} {
			if err := db.Put("sales.outbox", &transport.Message{ID: "row", Body: body}); err != nil {
				t.Fatal(err)
			}
		}
		pass(time.Second)
		for i := range 10 {
			r.MustSend(harness.PlaceOrder{ID: fmt.Sprint(i)})
			pass(time.Minute)
		}
		if w, s := len(written.List()), len(broker.Messages("shipping")); w != 10 || s != 10 {
			t.Errorf("%d handled, %d sent; want 10, 10", w, s)
		}
		warned := strings.Join(r.Health().Warnings, " ")
		if !strings.Contains(warned, "messages in the outbox cannot be read") {
			t.Errorf("the warnings are %q", warned)
		}
		r.End()
		if n := len(db.Messages("sales.outbox")); n != 4 {
			t.Errorf("%d rows are left, want 4", n)
		}
	})
}

// A row that cannot be read is reported as long as it is there, also between two of its leases.
func TestARowThatCannotBeReadIsReportedWhileItIsThere(t *testing.T) {
	for _, lease := range []time.Duration{0, 30 * time.Second, time.Hour} {
		t.Run(lease.String(), func(t *testing.T) {
			withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
				db.Lease = lease
				r := harness.Start(t, storing(broker, db, new(harness.Tally)))
				if err := db.Put("sales.outbox", &transport.Message{ID: "row", Body: []byte{1, 200}}); err != nil {
					t.Fatal(err)
				}
				warned := func() bool {
					return strings.Contains(strings.Join(r.Health().Warnings, " "), "messages in the outbox cannot be read")
				}
				for range 30 {
					if pass(7 * time.Minute); !warned() {
						t.Fatal("no warning, and the row is there")
					}
				}
				if lease == 0 { // the row stays with the receiver
					return
				}
				conn, err := db.Open(t.Context(), transport.Env{})
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(conn.(transport.Remover).Remove(t.Context(), "sales.outbox"), conn.Close()); err != nil {
					t.Fatal(err)
				}
				db.CreateQueues("sales.outbox")
				if pass(5 * time.Hour); warned() {
					t.Error("a warning, and the row is gone")
				}
			})
		})
	}
}

// Two endpoints have one database: neither takes a message of the other for a duplicate, or sends
// for it.
func TestTwoEndpointsShareTheDatabaseOfTheirOutboxes(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var sales, billing harness.Tally
		harness.Start(t, storing(broker, db, &sales))
		cfg := storing(broker, db, &billing)
		cfg.Name = "billing"
		r := harness.Start(t, cfg)
		for _, queue := range []string{"sales", "billing"} {
			r.MustSend(harness.PlaceOrder{ID: "1"}, endpoint.MessageID("m-1"), endpoint.To(queue))
		}
		pass(time.Minute)
		if a, b := len(sales.List()), len(billing.List()); a != 1 || b != 1 || len(broker.Messages("shipping")) != 2 {
			t.Errorf("%d and %d handled, %d sent; want 1, 1, 2", a, b, len(broker.Messages("shipping")))
		}
	})
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

// If a driver panics over one stored message, the relay sends the others.
func TestADriverPanicHoldsUpNoOtherRow(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		cfg := storing(broker, db, new(harness.Tally))
		cfg.Transport = panicking{broker}
		r := harness.Start(t, cfg)
		for _, id := range []string{"1", "bad", "2", "3"} {
			if err := r.Send(t.Context(), harness.ShipOrder{ID: id}, endpoint.ViaOutbox()); err != nil {
				t.Fatal(err)
			}
		}
		pass(time.Minute)
		if sent, failed := len(broker.Messages("shipping")), len(broker.Messages("error")); sent != 3 || failed != 1 {
			t.Errorf("%d sent, %d in the error queue; want 3, 1", sent, failed)
		}
	})
}
