package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// slowBroker answers each Receive of one queue only after some time, as a database under load does.
type slowBroker struct {
	*inmemory.Transport
	queue string
	takes time.Duration
}

func (b *slowBroker) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := b.Transport.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	return &slowConn{conn, conn.(transport.Installer), conn.(transport.Subscriber), conn.(transport.Inspector), b}, nil
}

type slowConn struct {
	transport.Conn
	transport.Installer
	transport.Subscriber
	transport.Inspector
	broker *slowBroker
}

func (c *slowConn) OpenReceiver(ctx context.Context, opts transport.ReceiverOptions) (transport.Receiver, error) {
	r, err := c.Conn.OpenReceiver(ctx, opts)
	if err == nil && opts.Queue == c.broker.queue {
		r = &slowReceiver{r, c.broker.takes}
	}
	return r, err
}

type slowReceiver struct {
	transport.Receiver
	takes time.Duration
}

// Receive takes what is there after some time, and up to a second after ctx has ended.
func (r *slowReceiver) Receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	for ctx.Err() == nil {
		answer := time.NewTimer(r.takes)
		select {
		case <-answer.C:
		case <-ctx.Done():
			select {
			case <-answer.C:
			case <-time.After(time.Second):
				return nil, ctx.Err()
			}
		}
		look, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Millisecond)
		ds, err := r.Receiver.Receive(look, limit)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			return ds, err
		}
	}
	return nil, ctx.Err()
}

func TestQuarantineOnASlowBrokerHandlesEachMessageOnce(t *testing.T) {
	for _, without := range []inmemory.Capability{0, inmemory.FreeRelease} {
		for _, takes := range []time.Duration{800 * time.Millisecond, 1500 * time.Millisecond, 10 * time.Second} {
			t.Run(fmt.Sprint(without, takes), func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
					broker.Without = without
					var calls, handled harness.Tally
					cfg := harness.Sales(&slowBroker{broker, "sales.quarantine", takes}, endpoint.Handle(
						func(ctx context.Context, _ *endpoint.Session, o harness.PlaceOrder) error {
							calls.Add(o.ID)
							select {
							case <-time.After(40 * time.Second): // longer than StopTimeout
							case <-ctx.Done():
								return ctx.Err()
							}
							handled.Add(o.ID)
							return nil
						}))
					for _, id := range []string{"a", "b"} {
						delivered(t, broker, "sales.quarantine", wire(id), 0)
					}
					r := harness.Start(t, cfg)
					time.Sleep(10 * time.Minute)
					synctest.Wait()
					if diff := cmp.Diff([]string{"a", "b"}, handled.List()); diff != "" {
						t.Errorf("handled (-want +got):\n%s", diff)
					}
					if n := len(calls.List()); n != 2 {
						t.Errorf("the handler was called %d times, want once for each message", n)
					}
					for _, queue := range []string{"error", "sales.quarantine"} {
						if left := broker.Messages(queue); len(left) > 0 {
							t.Errorf("%d messages are in %s", len(left), queue)
						}
					}
					if h := r.Health(); !h.Ready {
						t.Errorf("health: %v", h.Reasons)
					}
				})
			})
		}
	}
}

// A broker whose Receive of the quarantine fails does not hold up the endpoint's own queue.
func TestAnUnreadableQuarantineHoldsUpNothing(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Fail = func(verb, object string) error {
			if verb == "Receive" && object == "sales.quarantine" {
				return errNo
			}
			return nil
		}
		var handled harness.Tally
		cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, _ *endpoint.Session, o harness.PlaceOrder) error {
			handled.Add(o.ID)
			return nil
		}))
		broker.CreateQueues("sales.quarantine")
		if err := broker.Put("sales.quarantine", wire("suspect")); err != nil {
			t.Fatal(err)
		}
		r := harness.Start(t, cfg)
		for range 60 {
			r.MustSend(harness.PlaceOrder{ID: "m"})
			time.Sleep(10 * time.Second)
		}
		if n := len(handled.List()); n < 59 {
			t.Errorf("%d of 60 messages are handled", n)
		}
	})
}
