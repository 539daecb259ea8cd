// Package harness runs endpoints in tests. The package has an endpoint that ends with its
// test, the messages of a small shop, counters for handlers, and a log that a failed test
// prints.
//
// Package harness imports endpoint. Therefore only external test packages (endpoint_test and
// the like) can import harness.
package harness

import (
	"context"
	"log/slog"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// Running is an endpoint that runs until End is called or its test is over.
type Running struct {
	*endpoint.Endpoint
	Stop context.CancelFunc // stops the endpoint, and does not wait

	t    *testing.T
	done chan error
}

// Start makes an endpoint and runs it. A configuration without a log, or with a log
// that is discarded, gets Logger(t): a test that fails prints the endpoint's log.
func Start(t *testing.T, cfg endpoint.Config) *Running {
	t.Helper()
	if cfg.Logger == nil || cfg.Logger.Handler() == slog.DiscardHandler {
		cfg.Logger = Logger(t)
	}
	e, err := endpoint.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return Run(t, e)
}

// Run runs an endpoint, and returns when the endpoint is ready.
func Run(t *testing.T, e *endpoint.Endpoint) *Running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &Running{Endpoint: e, Stop: cancel, t: t, done: make(chan error, 1)}
	go func() { r.done <- e.Run(ctx) }()
	if err := e.WaitReady(ctx); err != nil {
		cancel()
		t.Fatalf("the endpoint did not start: %v", err)
	}
	t.Cleanup(r.End)
	return r
}

// End stops the endpoint and waits for its end. A second call does nothing.
func (r *Running) End() {
	r.Stop()
	if err, ok := <-r.done; ok {
		close(r.done)
		if err != nil {
			r.t.Errorf("the endpoint ended with %v", err)
		}
	}
}

// MustSend sends a message with the context of the test. An error ends the test.
func (r *Running) MustSend(m any, opts ...endpoint.SendOption) {
	r.t.Helper()
	if err := r.Send(r.t.Context(), m, opts...); err != nil {
		r.t.Fatal(err)
	}
}

// MustSendMany sends n orders with the ids 0, 1 and so on.
func (r *Running) MustSendMany(n int) {
	r.t.Helper()
	for i := range n {
		r.MustSend(PlaceOrder{ID: strconv.Itoa(i)})
	}
}

// Bubble runs f in a synctest bubble with a broker of its own. The broker has the queues
// "shipping" and "other" beside the queues that endpoints install.
func Bubble(t *testing.T, f func(t *testing.T, broker *inmemory.Transport)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		broker := &inmemory.Transport{}
		broker.CreateQueues("shipping", "other")
		f(t, broker)
	})
}
