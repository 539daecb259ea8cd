package endpoint_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// openings is a broker, with a queue of the driver's own, that notes how receivers are opened.
type openings struct {
	*inmemory.Transport

	mu             sync.Mutex // guards the rest
	completesFirst map[string]bool
}

func (o *openings) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := o.Transport.Open(ctx, env)
	return openingConn{conn, o}, err
}

type openingConn struct {
	transport.Conn
	of *openings
}

func (c openingConn) OpenReceiver(ctx context.Context, opts transport.ReceiverOptions) (transport.Receiver, error) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.completesFirst[opts.Queue] = opts.CompletesFirst
	return c.Conn.OpenReceiver(ctx, opts)
}

func (openingConn) Satellites(context.Context) ([]transport.Satellite, error) {
	return []transport.Satellite{{
		Queue:  "other",
		Handle: func(context.Context, *transport.Message) ([]transport.Operation, error) { return nil, nil },
	}}, nil
}

// The endpoint tells the driver which messages are completed before they are handled.
func TestADriverKnowsMessagesCompletedFirst(t *testing.T) {
	for _, mode := range []endpoint.TransactionMode{endpoint.None, endpoint.ReceiveOnly} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			broker.CreateQueues("sales", "sales-1", "sales.quarantine", "error", "other")
			o := &openings{Transport: broker, completesFirst: map[string]bool{}}
			delivered(t, broker, "sales.quarantine", wire("m"), 0)
			cfg := harness.Sales(o)
			cfg.Transactions, cfg.Install, cfg.InstanceQueue, cfg.Instance = mode, false, true, "1"
			cfg.Messages, cfg.Routes = cfg.Messages[:1], nil
			harness.Start(t, cfg)
			time.Sleep(time.Minute) // the quarantine comes before the driver's queues
			synctest.Wait()
			first := mode == endpoint.None
			want := map[string]bool{"sales": first, "sales-1": first, "other": false}
			if !first {
				want["sales.quarantine"] = false
			}
			o.mu.Lock()
			defer o.mu.Unlock()
			if diff := cmp.Diff(want, o.completesFirst); diff != "" {
				t.Errorf("%v: completes first (-want +got):\n%s", mode, diff)
			}
		})
	}
}
