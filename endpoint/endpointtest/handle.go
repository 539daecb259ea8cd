package endpointtest

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// Handle processes m once by an endpoint made of cfg, and returns the outcome. A handler's error is
// part of the [Result], not an error of Handle.
//
// m is a registered message, or a pointer to one; it arrives as if another endpoint had sent it, or
// published it if it is an event, with the options: [endpoint.Header], [endpoint.MessageID] or
// [endpoint.ReplyTo], say. Options that say where and when to send it have no effect. Replies go to
// [Client] unless ReplyTo says otherwise.
//
// cfg needs Messages and Handlers. Its Transport is not used; every queue that is sent to exists.
// Nothing is logged unless Logger is set. A context of a handler has the values of ctx, and ends
// with it.
//
// It returns an error if cfg or m is not valid, and if ctx ends before the message is settled.
func Handle(ctx context.Context, cfg endpoint.Config, m any, opts ...endpoint.SendOption) (Result, error) {
	cfg.Name = cmp.Or(cfg.Name, "endpoint")
	if cfg.SendOnly {
		return Result{}, fmt.Errorf("endpointtest: endpoint %q is send-only: it handles nothing", cfg.Name)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	message, err := encode(ctx, cfg, m, opts)
	if err != nil {
		return Result{}, fmt.Errorf("endpointtest: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	broker := newBroker(ctx, cfg.Name)
	if err := broker.Put(cfg.Name, message); err != nil {
		return Result{}, err
	}
	rec := &recorder{stop: stop, made: map[*transport.Message]Sent{}}
	rec.record(&cfg)
	cfg.Transport, cfg.Install = broker, true
	cfg.Concurrency, cfg.StopTimeout = 1, time.Nanosecond // ctx alone bounds the time
	ep, err := endpoint.New(cfg)
	if err != nil {
		return Result{}, err
	}
	if err := ep.Run(ctx); err != nil {
		return Result{}, err
	}
	return rec.result(ctx)
}

// newBroker returns a broker with one queue, which delivers one message once, and accepts messages
// to every queue.
func newBroker(ctx context.Context, queue string) *inmemory.Transport {
	broker := &inmemory.Transport{}
	broker.CreateQueues(queue)
	var received atomic.Bool
	broker.Fail = func(verb, object string) error {
		switch {
		case verb == "Dispatch":
			broker.CreateQueues(object)
		case verb == "Receive" && object == queue && received.Swap(true):
			<-ctx.Done() // a message that is retried stays where it is
			return ctx.Err()
		}
		return nil
	}
	return broker
}
