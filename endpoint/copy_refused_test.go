package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// heavy is a message with headers of a foreign producer that fill a bound of 20,000 bytes up to the
// last 50.
func heavy(id string) *transport.Message {
	m := wire(id)
	m.Headers.Set("Foreign", "")
	m.Headers.Set("Foreign", strings.Repeat("x", 20_000-50-m.Headers.Size()))
	return m
}

// bounded is a broker that accepts 20,000 bytes of headers.
func bounded(broker *inmemory.Transport, without inmemory.Capability) {
	broker.MaxHeaders, broker.Without = 20_000, without
	broker.CreateQueues("sales", "error", "audit", "shipping")
}

func enqueue(t *testing.T, broker *inmemory.Transport, queue string, m *transport.Message) {
	t.Helper()
	if err := broker.Put(queue, m); err != nil {
		t.Fatal(err)
	}
}

// unpacked returns the one message of a queue as its sender made it.
func unpacked(t *testing.T, broker *inmemory.Transport, queue string) *transport.Message {
	t.Helper()
	got := broker.Messages(queue)
	if len(got) != 1 {
		t.Fatalf("%d messages in %s", len(got), queue)
	}
	if got[0].Headers.Get(header.HoldfastReceived) == "" {
		t.Errorf("the message in %s is not packed", queue)
	}
	return copies.Unpacked(got[0])
}

var units = []inmemory.Capability{0, inmemory.Completer}

// A message whose headers fill the bound moves to the error queue, packed, and is whole when it has
// been returned: by ServiceControl, which returns the packed one.
func TestFullHeadersMoveAndReturn(t *testing.T) {
	for _, without := range units {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			bounded(broker, without)
			var told harness.Tally
			var seen string
			fails := true
			cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
				seen = o.ID + s.Headers().Get("Foreign")
				if fails {
					return errNo
				}
				return nil
			}))
			cfg.Recoverability = recoverability.Config{Immediate: recoverability.None, Delayed: 1}
			cfg.Notify = telling(&told)
			enqueue(t, broker, "sales", heavy("m"))
			r := harness.Start(t, cfg)
			pass(time.Hour)
			want := []string{"fallback_taken packed", "fallback_taken move_to_error", "moved_to_error to error"}
			if diff := cmp.Diff(want, told.List()); diff != "" {
				t.Error(diff)
			}
			got := unpacked(t, broker, "error")
			if got.ID != "m" || got.Headers.Get("Foreign") != heavy("m").Headers.Get("Foreign") || got.Headers.Get(header.FailedQ) != "sales" ||
				!strings.Contains(got.Headers.Get(header.ExceptionStackTrace), errNo.Error()) {
				t.Errorf("the error queue has %s with %d bytes of headers", got.ID, got.Headers.Size())
			}
			packed := *broker.Messages("error")[0]
			packed.Headers = packed.Headers.Clone()
			packed.Headers.Set(header.RetryUniqueID, "u")
			fails, seen = false, ""
			enqueue(t, broker, "sales", &packed)
			pass(time.Minute)
			if seen != "m"+heavy("m").Headers.Get("Foreign") || len(broker.Messages("sales")) != 0 {
				t.Errorf("the handler has seen %d bytes of the returned message", len(seen))
			}
			r.End()
		})
	}
}

// Received headers that cannot be unpacked make the message undecodable.
func TestDamagedPackedMessageIsUndecodable(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.CreateQueues("sales")
		m := wire("m")
		m.Headers.Set(header.HoldfastReceived, "no base64")
		enqueue(t, broker, "sales", m)
		var calls harness.Tally
		harness.Start(t, harness.Sales(broker, failing(&calls)))
		pass(time.Minute)
		got := broker.Messages("error")
		if len(got) != 1 || got[0].Headers.Get(header.HoldfastReceived) != "no base64" || len(calls.List()) != 0 {
			t.Fatalf("%d in the error queue, %d attempts", len(got), len(calls.List()))
		}
	})
}

// A refusal of the message leads to the next candidate, whatever its reason. A refusal of the queue
// keeps the candidate.
func TestRefusalsOfAMessageAndOfAQueue(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		want []string
	}{
		"text":    {fmt.Errorf("bad text: %w", transport.ErrContent), []string{"fallback_taken packed", "moved_to_error to error"}},
		"size":    {&transport.TooLargeError{What: "message", Size: 2, Max: 1}, []string{"fallback_taken packed", "moved_to_error to error"}},
		"missing": {transport.ErrNoQueue, []string{"fallback_taken dead_letter", "dead_lettered"}},
		"denied":  {transport.ErrDenied, []string{"fallback_taken dead_letter", "dead_lettered"}},
		"full":    {transport.ErrFull, []string{"fallback_taken dead_letter", "dead_lettered"}},
		"nack":    {errors.New("nack"), []string{"fallback_taken dead_letter", "dead_lettered"}},
	} {
		for _, without := range units {
			t.Run(fmt.Sprint(name, without), func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
					bounded(broker, without)
					broker.MaxHeaders = 0
					broker.Refuse = func(op *transport.Operation) error {
						if _, whole := op.Message.Headers.Lookup("Foreign"); whole {
							return test.err
						}
						return nil
					}
					var told harness.Tally
					cfg := harness.Sales(broker, failing(&harness.Tally{}))
					cfg.Recoverability, cfg.Notify = once, telling(&told)
					enqueue(t, broker, "sales", heavy("m"))
					harness.Start(t, cfg)
					pass(time.Hour)
					if diff := cmp.Diff(test.want, told.List()); diff != "" {
						t.Error(diff)
					}
				})
			})
		}
	}
}

// The audit copy of a handled message is refused: the message is not handled again, and the copy
// moves to the error queue.
func TestRefusedAuditCopyMovesToTheErrorQueue(t *testing.T) {
	for name, test := range map[string]struct {
		mode     endpoint.TransactionMode
		without  inmemory.Capability
		attempts string
	}{
		"one unit":        {endpoint.ReceiveOnly, 0, "m"},
		"no unit":         {endpoint.ReceiveOnly, inmemory.Completer, "m"},
		"completed first": {endpoint.None, 0, "m"},
		"transaction":     {endpoint.SendsAtomicWithReceive, 0, "m,m"}, // the first is rolled back
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				bounded(broker, test.without)
				var calls, committed, told harness.Tally
				cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
					calls.Add(o.ID)
					if test.mode == endpoint.SendsAtomicWithReceive {
						if err := inmemory.OnCommit(ctx, s, func() { committed.Add(o.ID) }); err != nil {
							return err
						}
					}
					return s.Send(ctx, harness.ShipOrder(o))
				}))
				cfg.AuditQueue, cfg.Transactions, cfg.Notify = "audit", test.mode, telling(&told)
				enqueue(t, broker, "sales", heavy("m"))
				harness.Start(t, cfg)
				pass(time.Hour)
				if got := strings.Join(calls.List(), ","); got != test.attempts {
					t.Errorf("attempts %s, want %s", got, test.attempts)
				}
				if inTx := test.mode == endpoint.SendsAtomicWithReceive; (len(committed.List()) == 1) != inTx {
					t.Errorf("%d commits", len(committed.List()))
				}
				if n := len(broker.Messages("shipping")); n != 1 || len(broker.Messages("sales")) != 0 || len(broker.Messages("audit")) != 0 {
					t.Errorf("%d sent, %d in sales", n, len(broker.Messages("sales")))
				}
				if diff := cmp.Diff([]string{"moved_to_error to error"}, told.List()); diff != "" {
					t.Error(diff)
				}
				got := unpacked(t, broker, "error")
				if got.Headers.Get("Foreign") != heavy("m").Headers.Get("Foreign") || got.Headers.Get(header.FailedQ) != "audit" ||
					got.Headers.Get(header.ProcessingStarted) == "" || got.Headers.Get(header.HoldfastFaultClass) != "undeliverable" {
					t.Errorf("the error queue has %s", got.Headers.AppendJSON(nil)[:500])
				}
			})
		})
	}
}

// An error queue that refuses the audit copy too is the failure of the message, as before.
func TestAuditCopyThatNoQueueAcceptsFails(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		bounded(broker, 0)
		broker.Refuse = func(op *transport.Operation) error {
			if op.Queue == "audit" || op.Queue == "error" {
				return transport.ErrContent
			}
			return nil
		}
		var calls harness.Tally
		cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, _ *endpoint.Session, o harness.PlaceOrder) error {
			calls.Add(o.ID)
			return nil
		}))
		cfg.AuditQueue, cfg.Recoverability = "audit", once
		enqueue(t, broker, "sales", heavy("m"))
		harness.Start(t, cfg)
		pass(time.Hour)
		if len(calls.List()) != 1 || len(broker.Messages("sales.dead")) != 1 {
			t.Errorf("%d attempts, %d dead letters", len(calls.List()), len(broker.Messages("sales.dead")))
		}
	})
}

// A message of the outbox that its queue and the error queue refuse whole moves to the error queue
// packed; the audit copy too.
func TestRefusedRowOfTheOutboxMovesPacked(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		bounded(broker, 0)
		cfg := harness.Sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error { return nil }))
		cfg.Outbox, cfg.AuditQueue = db, "audit"
		enqueue(t, broker, "sales", heavy("m"))
		harness.Start(t, cfg)
		pass(time.Minute)
		got := unpacked(t, broker, "error")
		if got.Headers.Get("Foreign") != heavy("m").Headers.Get("Foreign") || got.Headers.Get(header.FailedQ) != "audit" {
			t.Errorf("the error queue has %d bytes of headers, of %q", got.Headers.Size(), got.Headers.Get(header.FailedQ))
		}
		if n := len(db.Messages("sales.outbox")) + len(broker.Messages("sales")); n != 0 {
			t.Errorf("%d messages are left", n)
		}
	})
}

// The outbox tells the driver that an audit copy is one of a received message.
func TestAuditCopyOfTheOutboxIsACopy(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		copied := map[string]bool{}
		broker.Refuse = func(op *transport.Operation) error {
			copied[op.Queue] = op.Message.NativeID != ""
			return nil
		}
		cfg := harness.Sales(broker, shipping())
		cfg.Outbox, cfg.AuditQueue = db, "audit"
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{ID: "1"})
		pass(time.Minute)
		if !copied["audit"] || copied["shipping"] || len(copied) < 3 {
			t.Errorf("copies: %v", copied)
		}
	})
}

// A postponed copy that is refused moves the message to the error queue.
func TestRefusedPostponedCopyMovesToTheErrorQueue(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		bounded(broker, 0)
		broker.Refuse = func(op *transport.Operation) error {
			if op.Message.Headers.Get(header.HoldfastThrottledFailures) != "" {
				return transport.ErrContent
			}
			return nil
		}
		cfg := harness.Sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error { return errNo }))
		cfg.Recoverability.RateLimit = lasting(recoverability.RateLimit{After: 1, Delay: time.Minute})
		for i := range 20 {
			enqueue(t, broker, "sales", wire(fmt.Sprint(i)))
		}
		harness.Start(t, cfg)
		pass(2 * time.Hour)
		failed := 0
		for _, m := range broker.Messages("error") {
			if strings.Contains(m.Headers.Get(header.ExceptionMessage), "could not be postponed") && fault.Returns(m.Headers) == 0 {
				failed++
			}
		}
		if failed == 0 {
			t.Errorf("%d in the error queue, %d in sales; want messages that could not be postponed", len(broker.Messages("error")), len(broker.Messages("sales")))
		}
	})
}
