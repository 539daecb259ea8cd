package endpoint_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// returned are the options of a message that ServiceControl has returned from its error queue.
func returned() []endpoint.SendOption {
	return []endpoint.SendOption{stateful.Header{Name: header.RetryAcknowledgement, Value: "acks"}, stateful.Header{Name: header.RetryUniqueID, Value: "u-1"}}
}

// A policy that discards a returned message ends the retry: ServiceControl learns of it, once, and
// no audit copy is made.
func TestADiscardedRetryIsAcknowledged(t *testing.T) {
	for _, mode := range []endpoint.TransactionMode{endpoint.None, endpoint.ReceiveOnly, endpoint.SendsAtomicWithReceive} {
		t.Run(mode.String(), func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				broker.CreateQueues("acks")
				cfg := harness.Sales(broker, failing(&harness.Tally{}))
				cfg.Transactions, cfg.AuditQueue = mode, "audit"
				cfg.Recoverability.Policy = func(recoverability.Failure) recoverability.Action { return recoverability.Discard{} }
				r := harness.Start(t, cfg)
				r.MustSend(harness.PlaceOrder{}, returned()...)
				r.MustSend(harness.PlaceOrder{})
				synctest.Wait()
				acks := broker.Messages("acks")
				if len(acks) != 1 || acks[0].Headers.Get(header.RetryUniqueID) != "u-1" || acks[0].Headers.Get(header.HoldfastReturnOutcome) != "discarded" {
					t.Errorf("acknowledgements %v, want one that says that the message was discarded", acks)
				}
				if n := len(broker.Messages("audit")) + len(broker.Messages("error")); n != 0 {
					t.Errorf("%d messages are in the audit and error queues", n)
				}
			})
		})
	}
}

// ServiceControl waits for the acknowledgement of each message that it returns, also of one that
// was handled before.
func TestARecognizedReturnIsAcknowledged(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.CreateQueues("acks")
		var calls harness.Tally
		cfg := harness.Sales(broker, beginning(&calls))
		cfg.Transactions, cfg.Remember, cfg.AuditQueue = endpoint.SendsAtomicWithReceive, 24*time.Hour, "audit"
		r := harness.Start(t, cfg)
		for range 3 {
			r.MustSend(harness.PlaceOrder{}, append(returned(), endpoint.MessageID("m-1"))...)
			synctest.Wait()
		}
		if calls, acks, audited := calls.List(), broker.Messages("acks"), broker.Messages("audit"); len(calls) != 1 || len(acks) != 3 || len(audited) != 1 {
			t.Errorf("handled %d times, %d acknowledgements, %d audit copies, want 1, 3, 1", len(calls), len(acks), len(audited))
		}
		if left := broker.Messages("sales"); len(left) > 0 {
			t.Errorf("%d messages are left", len(left))
		}
	})
}

// The broker is not asked for the queue of the acknowledgements with every message, also where it
// has none.
func TestTheAcknowledgementQueueIsInspectedSometimes(t *testing.T) {
	for _, there := range []bool{true, false} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			const messages = 1000
			if there {
				broker.CreateQueues("acks")
			}
			var looks atomic.Int32
			broker.Fail = func(verb, object string) error {
				if verb == "Inspect" && object == "acks" {
					looks.Add(1)
				}
				return nil
			}
			r := harness.Start(t, harness.Sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error { return nil })))
			for range messages {
				r.MustSend(harness.PlaceOrder{}, returned()...)
			}
			synctest.Wait()
			if n := looks.Load(); n != 1 {
				t.Errorf("looked %d times for the queue, there: %t", n, there)
			}
			broker.CreateQueues("acks")
			time.Sleep(time.Hour)
			r.MustSend(harness.PlaceOrder{}, returned()...)
			synctest.Wait()
			want := 1
			if there {
				want += messages
			}
			if n := len(broker.Messages("acks")); n != want || looks.Load() != 2 {
				t.Errorf("%d acknowledgements, want %d; looked %d times", n, want, looks.Load())
			}
		})
	}
}

// A queue that is deleted after it was seen fails no message for good: it is looked for again.
func TestAVanishedAcknowledgementQueueFailsNothing(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.CreateQueues("acks")
		var gone atomic.Bool
		broker.Fail = func(verb, object string) error {
			if gone.Load() && object == "acks" && (verb == "Inspect" || verb == "Dispatch") {
				return transport.ErrNoQueue
			}
			return nil
		}
		var calls harness.Tally
		r := harness.Start(t, harness.Sales(broker, endpoint.Handle(func(_ context.Context, _ *endpoint.Session, o harness.PlaceOrder) error {
			calls.Add(o.ID)
			return nil
		})))
		r.MustSend(harness.PlaceOrder{ID: "a"}, returned()...)
		synctest.Wait()
		gone.Store(true)
		r.MustSend(harness.PlaceOrder{ID: "b"}, returned()...)
		synctest.Wait()
		if n := count(calls.List(), "b"); n != 1 {
			t.Errorf("handled %d times, want once", n)
		}
		if n := len(broker.Messages("error")) + len(broker.Messages("sales")); n != 0 {
			t.Errorf("%d messages are left", n)
		}
	})
}

// notingBroker keeps a note with what is retried, as the SQL transports do.
type notingBroker struct {
	*inmemory.Transport
	notes harness.Tally
}

func (b *notingBroker) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := b.Transport.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	return &notingConn{conn, conn.(transport.Installer), conn.(transport.Subscriber), b}, nil
}

type notingConn struct {
	transport.Conn
	transport.Installer
	transport.Subscriber
	broker *notingBroker
}

func (c *notingConn) OpenReceiver(ctx context.Context, opts transport.ReceiverOptions) (transport.Receiver, error) {
	r, err := c.Conn.OpenReceiver(ctx, opts)
	return &notingReceiver{r, c.broker}, err
}

type notingReceiver struct {
	transport.Receiver
	broker *notingBroker
}

func (r *notingReceiver) Receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	ds, err := r.Receiver.Receive(ctx, limit)
	for i, d := range ds {
		ds[i] = &notingDelivery{d, d.(transport.Completer), r.broker}
	}
	return ds, err
}

type notingDelivery struct {
	transport.Delivery
	transport.Completer
	broker *notingBroker
}

func (d *notingDelivery) RetryBecause(ctx context.Context, reason string) error {
	d.broker.notes.Add(reason)
	return d.Retry(ctx)
}

// mute is an error that panics when it is asked for its text.
type mute struct{ text string }

func (m *mute) Error() string { return m.text }

// An error whose Error method panics is retried at once as any other, also where a note is kept of
// the reason.
func TestAnErrorThatPanicsIsRetriedAsAnyOther(t *testing.T) {
	for name, err := range map[string]error{"panics": (*mute)(nil), "speaks": errors.New("no such order")} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				noting := &notingBroker{Transport: broker}
				var told harness.Tally
				cfg := harness.Sales(noting)
				cfg.Recoverability = recoverability.Config{Immediate: 2, Delayed: recoverability.None}
				cfg.Notify = telling(&told)
				cfg.Pipeline.Receive.Use("fail", func(pipeline.Func[*pipeline.Receive]) pipeline.Func[*pipeline.Receive] {
					return func(context.Context, *pipeline.Receive) error { return err }
				})
				r := harness.Start(t, cfg)
				r.MustSend(harness.PlaceOrder{})
				time.Sleep(time.Second)
				synctest.Wait()
				if got := told.List(); len(got) != 3 || got[1] != "immediate_retry #2" || got[2] != "moved_to_error to error" {
					t.Errorf("told %q", got)
				}
				want := map[string]string{"panics": "*endpoint_test.mute: its Error method panicked", "speaks": "no such order"}[name]
				if got := noting.notes.List(); len(got) != 2 || got[0] != want {
					t.Errorf("notes %q, want %q", got, want)
				}
				if h := r.Health(); !h.Ready {
					t.Errorf("health: %v", h.Reasons)
				}
			})
		})
	}
}
