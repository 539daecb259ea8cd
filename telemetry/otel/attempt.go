package otel

import (
	"context"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast/pipeline"
)

// attempt is the telemetry of a message while it is processed. Its span begins in the Receive stage
// and ends when the message is settled: in Dispatch, or in Recover.
type attempt struct {
	span     trace.Span
	began    time.Time
	reported atomic.Bool // the action on its failure was carried out
	ended    atomic.Bool
	message  string // its type, once that is known; unregistered types stay ""
}

// attemptKey is the key of an attempt in the state of a stage value, and in a context.
type attemptKey struct{}

// attemptOf returns the attempt that a stage value belongs to, or nil where there is none.
func attemptOf(r *pipeline.Receive) *attempt {
	if r == nil {
		return nil
	}
	a, _ := r.State(attemptKey{}).(*attempt)
	if a == nil || a.ended.Load() {
		return nil
	}
	return a
}

// begin starts an attempt, which later stages find by its key.
func (in *instrumentation) begin(ctx context.Context, r *pipeline.Receive) (context.Context, *attempt) {
	a := &attempt{began: time.Now()}
	ctx, opts := in.parent(ctx, r.Message.Headers)
	opts = append(opts, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(in.received(r)...))
	ctx, a.span = in.tracer.Start(ctx, operationProcess+" "+r.Queue, opts...)
	r.SetState(attemptKey{}, a)
	return ctx, a
}

// interrupted ends an attempt that was cancelled by a stop or a lost lease: that is no failure, and
// usually no stage follows. Other failures continue to Recover.
func (in *instrumentation) interrupted(ctx context.Context, a *attempt, err error) {
	if err == nil || ctx.Err() == nil {
		return
	}
	a.span.AddEvent(eventInterrupted, trace.WithAttributes(
		keyCause.String(context.Cause(ctx).Error())))
	a.end()
}

func (a *attempt) end() {
	a.span.End()
	a.ended.Store(true)
}
