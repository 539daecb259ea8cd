package otel

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/fault"
)

// startNewTrace is the header by which a sender, of NServiceBus too, asks the receiver for
// a trace of its own that links back.
const (
	startNewTrace = "NServiceBus.OpenTelemetry.StartNewTrace"
	yes           = "True"
)

// carrier shows headers to a propagator.
type carrier struct{ headers *header.Map }

var _ propagation.TextMapCarrier = carrier{}

func (c carrier) Get(key string) string { return c.headers.Get(key) }

func (c carrier) Set(key, value string) { c.headers.Set(key, value) }

func (c carrier) Keys() []string {
	keys := make([]string, 0, c.headers.Len())
	for name := range c.headers.All() {
		keys = append(keys, name)
	}
	return keys
}

// parent is ctx with the trace that a message belongs to, or with a link to it where the
// message starts a trace of its own: what happens hours later, or to many subscribers, is
// no part of the request that caused it, and is sampled by itself.
func (in *instrumentation) parent(ctx context.Context, h header.Map) (context.Context, []trace.SpanStartOption) {
	ctx = in.propagator.Extract(ctx, carrier{&h})
	if h.Get(startNewTrace) != yes && fault.DelayedRetries(h) == 0 {
		return ctx, nil
	}
	opts := []trace.SpanStartOption{trace.WithNewRoot()}
	if from := trace.SpanContextFromContext(ctx); from.IsValid() {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: from}))
	}
	return ctx, opts
}

// linkTo is a link to the span that made a message; the zero Link where it has none.
func (in *instrumentation) linkTo(h header.Map) trace.Link {
	ctx := in.propagator.Extract(context.Background(), carrier{&h})
	return trace.Link{SpanContext: trace.SpanContextFromContext(ctx)}
}
