package endpoint_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

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
				cfg := sales(broker)
				cfg.SendOnly, cfg.Outbox = true, clocked{db, ahead}
				r := start(t, cfg)
				send := func(id string, opts ...endpoint.SendOption) {
					t.Helper()
					if err := r.Send(t.Context(), shipOrder{ID: id}, append(opts, endpoint.ViaOutbox())...); err != nil {
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
