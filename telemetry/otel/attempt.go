package otel

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
)

// attempt is what is known of a message while it is processed. Its span begins in the
// Receive stage and ends when the message is settled: in Dispatch, or in Recover.
type attempt struct {
	key     attemptKey
	span    trace.Span
	began   time.Time
	told    atomic.Bool // what was done about its failure
	message string      // its type, once it is recognised; a type nobody registered is never told
}

// attemptKey is what the stages of one attempt have in common: neither their values nor their
// contexts are the same. A broker in memory hands the same Message out again.
type attemptKey struct {
	message *transport.Message
	n       int
}

func keyOf(r *pipeline.Receive) attemptKey { return attemptKey{r.Message, r.Attempt.N} }

// attempts are those that are under way.
type attempts struct {
	mu   sync.Mutex // guards what follows
	live map[attemptKey]*attempt
}

func (as *attempts) add(a *attempt) {
	as.mu.Lock()
	defer as.mu.Unlock()
	if as.live == nil {
		as.live = map[attemptKey]*attempt{}
	}
	as.live[a.key] = a
}

// of is the attempt that a stage value belongs to; nil when there is none.
func (as *attempts) of(r *pipeline.Receive) *attempt {
	if r == nil {
		return nil
	}
	as.mu.Lock()
	defer as.mu.Unlock()
	return as.live[keyOf(r)]
}

// remove forgets a. A later attempt under the same key stays.
func (as *attempts) remove(a *attempt) {
	as.mu.Lock()
	defer as.mu.Unlock()
	if as.live[a.key] == a {
		delete(as.live, a.key)
	}
}

// begin starts an attempt, to be found by the later stages.
func (in *instrumentation) begin(ctx context.Context, r *pipeline.Receive) (context.Context, *attempt) {
	a := &attempt{key: keyOf(r), began: time.Now()}
	ctx, opts := in.parent(ctx, r.Message.Headers)
	opts = append(opts, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(in.received(r)...))
	ctx, a.span = in.tracer.Start(ctx, operationProcess+" "+r.Queue, opts...)
	in.attempts.add(a)
	return ctx, a
}

// interrupted ends an attempt that was cut short, by a stop or a lost lease: that is no
// failure, and mostly no stage follows. What failed by itself goes on to Recover.
func (in *instrumentation) interrupted(ctx context.Context, a *attempt, err error) {
	if err == nil || ctx.Err() == nil {
		return
	}
	a.span.AddEvent(eventInterrupted, trace.WithAttributes(
		keyCause.String(context.Cause(ctx).Error())))
	in.end(a)
}

func (in *instrumentation) end(a *attempt) {
	a.span.End()
	in.attempts.remove(a)
}
