package otel

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/fault"
)

// startNewTrace is the header by which a sender, also one of NServiceBus, asks the receiver to
// begin a new trace with a link to the sender's.
const (
	startNewTrace = header.StartNewTrace
	yes           = "True"
)

// carrier adapts headers to a propagator.
type carrier struct{ *header.Map }

var _ propagation.TextMapCarrier = carrier{}

func (c carrier) Keys() []string {
	keys := make([]string, 0, c.Len())
	for name := range c.All() {
		keys = append(keys, name)
	}
	return keys
}

// parent returns ctx with the trace of a message, or a link to that trace if the message begins a
// new one: processing that happens hours later, or at many subscribers, is not part of the original
// request and is sampled separately.
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
