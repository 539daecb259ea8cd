package asb_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/asb"
)

// dialer dials a namespace for the driver, or calls a function instead.
type dialer struct {
	dials   atomic.Int32
	instead atomic.Pointer[func(context.Context) (net.Conn, error)]
}

func (d *dialer) on(ns *brokertest.ServiceBusNamespace) *asb.Transport {
	_, rest, _ := strings.Cut(ns.ConnectionString, "sb://")
	address, _, _ := strings.Cut(rest, ";")
	tr := on(ns)
	tr.WebSocket = func(ctx context.Context, _ string) (net.Conn, error) {
		d.dials.Add(1)
		if instead := d.instead.Load(); instead != nil {
			return (*instead)(ctx)
		}
		return (&net.Dialer{}).DialContext(ctx, "tcp", strings.TrimSuffix(address, "/"))
	}
	return tr
}

func (d *dialer) do(instead func(context.Context) (net.Conn, error)) { d.instead.Store(&instead) }

// ended returns a connection whose peer has closed it.
func ended(context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	return ours, theirs.Close()
}

func TestANamespaceThatIsNotReachedHasRefusedNothing(t *testing.T) {
	t.Parallel()
	for what, instead := range map[string]func(context.Context) (net.Conn, error){
		"refused": func(context.Context) (net.Conn, error) { return nil, errors.New("connection refused") },
		"ended":   ended,
	} {
		t.Run(what, func(t *testing.T) {
			ns := brokertest.OwnServiceBus(t)
			var d dialer
			c := open(t, d.on(ns))
			install(t, c, "in")
			later := to("in", "later")
			later.After = time.Hour
			d.do(instead)
			ns.Control.Drop()
			_, err := c.Dispatch(within(t), []transport.Operation{to("in", "m"), later})
			for errors.Is(err, transport.ErrOutcomeUnknown) { // until the loss is known
				_, err = c.Dispatch(within(t), []transport.Operation{to("in", "m"), later})
			}
			for range 3 {
				var failed *transport.DispatchError
				if !errors.As(err, &failed) || len(failed.Ops) != 2 {
					t.Fatalf("%v, want both to fail", err)
				}
				for _, op := range failed.Ops {
					if !errors.Is(op.Err, transport.ErrUnreachable) || errors.Is(op.Err, transport.ErrOutcomeUnknown) {
						t.Errorf("operation %d: %v, want ErrUnreachable", op.Index, op.Err)
					}
				}
				_, err = c.Dispatch(within(t), []transport.Operation{to("in", "m"), later})
			}
		})
	}
}

func TestACancelledDialFailsNoOtherSend(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	var d dialer
	c := open(t, d.on(ns))
	install(t, c, "in")
	d.do(func(ctx context.Context) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() })
	ns.Control.Drop()
	for before := d.dials.Load(); d.dials.Load() < before+3; {
		hasty, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := c.Dispatch(hasty, []transport.Operation{to("in", "hasty")})
		cancel()
		if err == nil {
			t.Fatal("it was sent")
		}
	}
	d.instead.Store(nil)
	dispatch(t, c, to("in", "m"))
}

// A peer that ends each connection is not dialed without a pause.
func TestAPeerThatEndsConnectionsIsDialedWithPauses(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBus(t)
	var d dialer
	c := open(t, d.on(ns))
	install(t, c, "in")
	d.do(ended)
	ns.Control.Drop()
	before := d.dials.Load()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	for ctx.Err() == nil {
		if _, err := c.Dispatch(ctx, []transport.Operation{to("in", "m")}); err == nil {
			t.Fatal("it was sent")
		}
	}
	if got := d.dials.Load() - before; got > 10 {
		t.Errorf("%d dials in a second", got)
	}
}

func TestACancelledSendFailsNoOther(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBus(t)
	c := open(t, on(ns))
	install(t, c, "in")
	dispatch(t, c, to("in", "before"))
	brokertest.Longer(t, 300*time.Millisecond, func(d time.Duration) error { // within which it is sent, but not answered
		ns.Control.Set(brokertest.ServiceBusFaults{Delay: 4 * d})
		defer ns.Control.Set(brokertest.ServiceBusFaults{})
		hasty, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		var err error
		var both sync.WaitGroup
		both.Go(func() { _, err = c.Dispatch(hasty, []transport.Operation{to("in", "hasty")}) })
		both.Go(func() { dispatch(t, c, to("in", "patient")) })
		both.Wait()
		if !errors.Is(err, transport.ErrOutcomeUnknown) {
			return fmt.Errorf("the hasty one: %w, want ErrOutcomeUnknown", err)
		}
		return nil
	})
	dispatch(t, c, to("in", "after"))
}
