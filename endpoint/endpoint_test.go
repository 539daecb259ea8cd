package endpoint_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

type (
	placeOrder    struct{ ID string }
	orderPlaced   struct{ ID string }
	shipOrder     struct{ ID string }
	orderAccepted struct{ ID string }
)

// messages are the types of the tests' little shop.
func messages() []endpoint.Message {
	return []endpoint.Message{
		endpoint.Command[placeOrder]("Shop.PlaceOrder"),
		endpoint.Event[orderPlaced]("Shop.OrderPlaced", "Shop.IOrderEvent"),
		endpoint.Command[shipOrder]("Shop.ShipOrder"),
		endpoint.Response[orderAccepted]("Shop.OrderAccepted"),
	}
}

// sales is a configuration to change; its handlers are the given ones.
func sales(t transport.Transport, handlers ...endpoint.Handler) endpoint.Config {
	return endpoint.Config{
		Name: "sales", Transport: t, Messages: messages(), Handlers: handlers, Install: true,
		Routes: []endpoint.Route{endpoint.RouteTo[shipOrder]("shipping"), endpoint.RouteTo[placeOrder]("sales")},
		Logger: slog.New(slog.DiscardHandler),
	}
}

// running is an endpoint within a synctest bubble.
type running struct {
	*endpoint.Endpoint
	t    *testing.T
	stop context.CancelFunc
	done chan error
}

func start(t *testing.T, cfg endpoint.Config) *running {
	t.Helper()
	e, err := endpoint.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return run(t, e)
}

func run(t *testing.T, e *endpoint.Endpoint) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{Endpoint: e, t: t, stop: cancel, done: make(chan error, 1)}
	go func() { r.done <- e.Run(ctx) }()
	if err := e.WaitReady(ctx); err != nil {
		cancel()
		t.Fatalf("the endpoint did not start: %v", err)
	}
	t.Cleanup(r.end)
	return r
}

// end stops the endpoint and waits for it; a second call does nothing.
func (r *running) end() {
	r.stop()
	if err, ok := <-r.done; ok {
		close(r.done)
		if err != nil {
			r.t.Errorf("the endpoint ended with %v", err)
		}
	}
}

func (r *running) send(m any, opts ...endpoint.SendOption) {
	r.t.Helper()
	if err := r.Send(r.t.Context(), m, opts...); err != nil {
		r.t.Fatal(err)
	}
}

// inBubble runs f in a synctest bubble with a broker of its own, which has the queues
// shipping and other beside what endpoints install.
func inBubble(t *testing.T, f func(t *testing.T, broker *inmemory.Transport)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		broker := &inmemory.Transport{}
		broker.CreateQueues("shipping", "other")
		f(t, broker)
	})
}

// tally counts calls and remembers what was seen.
type tally struct {
	mu   sync.Mutex
	seen []string
}

func (c *tally) add(s string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = append(c.seen, s)
	return len(c.seen)
}

func (c *tally) list() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.seen...)
}

// once is no retries at all.
var once = recoverability.Config{Immediate: recoverability.None, Delayed: recoverability.None}
