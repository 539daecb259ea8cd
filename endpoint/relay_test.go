package endpoint_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

const forwardTo = "Test.ForwardTo"

// relayingReceiver returns deliveries of messages that are for the queue which the header
// Test.ForwardTo names.
type relayingReceiver struct{ transport.Receiver }

type relayed struct{ transport.Delivery }

func (r *relayingReceiver) Receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	ds, err := r.Receiver.Receive(ctx, limit)
	for i, d := range ds {
		ds[i] = &relayed{d}
	}
	return ds, err
}

func (d *relayed) Relay() []transport.Operation {
	queue, found := d.Message().Headers.Lookup(forwardTo)
	if !found {
		return nil
	}
	return []transport.Operation{{Message: d.Message(), Queue: queue}}
}

func (d *relayed) CompleteWith(ctx context.Context, ops []transport.Operation) error {
	return d.Delivery.(transport.Completer).CompleteWith(ctx, ops)
}

func relaying(broker *inmemory.Transport) *wrapped {
	return &wrapped{Transport: broker, receiver: func(_ string, r transport.Receiver) transport.Receiver {
		return &relayingReceiver{r}
	}}
}

func forwarded(to string) *transport.Message {
	return &transport.Message{ID: "1", Headers: header.New(
		header.Field{Name: header.MessageID, Value: "1"}, header.Field{Name: header.EnclosedMessageTypes, Value: "Shop.PlaceOrder"},
		header.Field{Name: forwardTo, Value: to}), Body: []byte("{}")}
}

func TestAMessageForAnotherQueueIsSentOnAndNotHandled(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var handled harness.Tally
		harness.Start(t, harness.Sales(relaying(broker), working[harness.PlaceOrder](&handled)))
		if err := broker.Put("sales", forwarded("other")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := broker.Messages("other"); len(got) != 1 || got[0].ID != "1" || len(handled.List()) != 0 {
			t.Errorf("%d messages in the other queue, handled %v", len(got), handled.List())
		}
		if n := len(broker.Messages("sales")); n != 0 {
			t.Errorf("%d messages remain", n)
		}
	})
}

// A stored message for a queue that is gone moves to the error queue.
func TestARowForAMissingQueueMovesToTheErrorQueue(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var handled harness.Tally
		harness.Start(t, harness.Sales(relaying(broker), working[harness.PlaceOrder](&handled)))
		if err := broker.Put("sales", forwarded("gone")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		failed := broker.Messages("error")
		if len(failed) != 1 || len(handled.List()) != 0 {
			t.Fatalf("%d messages in the error queue, handled %v", len(failed), handled.List())
		}
		h := failed[0].Headers
		if h.Get(header.FailedQ) != "gone" || h.Get(header.HoldfastFaultClass) != "undeliverable" {
			t.Errorf("failed in %q, class %q", h.Get(header.FailedQ), h.Get(header.HoldfastFaultClass))
		}
	})
}

// A message for a queue without a name is reported as failed in the queue that it was in.
func TestAMessageForAnUnnamedQueueNamesItsQueue(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		harness.Start(t, harness.Sales(relaying(broker)))
		if err := broker.Put("sales", forwarded("")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		failed := broker.Messages("error")
		if len(failed) != 1 || failed[0].Headers.Get(header.FailedQ) != "sales" {
			t.Fatalf("failed messages %+v, want one that failed in sales", failed)
		}
	})
}

// A message for another queue stays where the message is while the broker is away.
func TestForwardedMessagesStayWhileTheBrokerIsAway(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var away atomic.Bool
		away.Store(true)
		broker.Fail = func(verb, _ string) error {
			if verb == "CompleteWith" && away.Load() {
				return transport.ErrUnreachable
			}
			return nil
		}
		cfg := harness.Sales(relaying(broker))
		cfg.Recoverability = recoverability.Config{Immediate: recoverability.None, Delayed: recoverability.None}
		harness.Start(t, cfg)
		if err := broker.Put("sales", forwarded("other")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if n := len(broker.Messages("other")) + len(broker.Messages("error")); n != 0 {
			t.Errorf("%d messages were moved, want none", n)
		}
		away.Store(false)
		time.Sleep(time.Minute)
		if n := len(broker.Messages("other")); n != 1 {
			t.Errorf("%d messages in the other queue, want 1", n)
		}
	})
}

func TestASatelliteIsReceivedFromWhenItExists(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var done harness.Tally
		broker.Satellites = []transport.Satellite{{
			Queue: "later",
			Wait: func(ctx context.Context) error {
				select {
				case <-time.After(time.Hour):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			},
			Handle: func(_ context.Context, m *transport.Message) ([]transport.Operation, error) {
				done.Add(m.ID)
				return nil, nil
			},
		}}
		r := harness.Start(t, harness.Sales(broker))
		if h := r.Health(); !h.Ready || len(h.Queues) != 1 {
			t.Errorf("health while it does not exist: %+v", h)
		}
		time.Sleep(time.Hour - time.Second)
		broker.CreateQueues("later")
		if err := broker.Put("later", &transport.Message{ID: "1"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if diff := cmp.Diff([]string{"1"}, done.List()); diff != "" {
			t.Error(diff)
		}
		if h := r.Health(); !h.Ready || len(h.Queues) != 2 {
			t.Errorf("health when it exists: %+v", h)
		}
	})
}

func TestAnEndpointStopsWhileASatelliteDoesNotExist(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Satellites = []transport.Satellite{{Queue: "never", Wait: func(ctx context.Context) error {
			<-ctx.Done()
			return errors.Join(ctx.Err())
		}}}
		r := harness.Start(t, harness.Sales(broker))
		synctest.Wait()
		began := time.Now()
		r.End()
		if took := time.Since(began); took > time.Second {
			t.Errorf("the stop took %v", took)
		}
	})
}
