package otel

import (
	"context"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
)

// receive is the outermost behavior of the Receive stage: it begins the process span.
func (in *instrumentation) receive(
	next pipeline.Func[*pipeline.Receive],
) pipeline.Func[*pipeline.Receive] {
	return func(ctx context.Context, r *pipeline.Receive) (err error) {
		ctx, a := in.begin(ctx, r)
		in.metrics.fetched(ctx, r.Queue)
		err = errPanicked
		defer func() { in.interrupted(ctx, a, err) }()
		return next(ctx, r)
	}
}

// maxID bounds an id in a span, in bytes: another program has chosen it.
const maxID = 512

func (in *instrumentation) received(r *pipeline.Receive) []attribute.KeyValue {
	attrs := []attribute.KeyValue{
		semconv.MessagingSystemKey.String(in.system), keyEndpoint.String(in.endpoint),
		semconv.MessagingOperationName(operationProcess), semconv.MessagingOperationTypeProcess,
		semconv.MessagingDestinationName(r.Queue), semconv.MessagingMessageBodySize(len(r.Body)),
		keyAttempt.Int(r.Attempt.N),
	}
	if id := r.Message.ID; id != "" {
		attrs = append(attrs, semconv.MessagingMessageID(errtree.Cut(id, maxID)))
	}
	if id := r.Message.Headers.Get(header.ConversationID); id != "" {
		attrs = append(attrs, semconv.MessagingMessageConversationID(errtree.Cut(id, maxID)))
	}
	if n := fault.DelayedRetries(r.Message.Headers); n > 0 {
		attrs = append(attrs, keyDelayedRetries.Int(n))
	}
	return append(attrs, job(r.Message)...)
}

// logical records the type of the message.
func (in *instrumentation) logical(
	next pipeline.Func[*pipeline.Logical],
) pipeline.Func[*pipeline.Logical] {
	return func(ctx context.Context, l *pipeline.Logical) error {
		if a := attemptOf(l.Receive); a != nil {
			a.message = l.Type
			a.span.SetAttributes(keyMessageType.String(l.Type))
		}
		return next(ctx, l)
	}
}

// invoke measures one handler.
func (in *instrumentation) invoke(
	next pipeline.Func[*pipeline.Invoke],
) pipeline.Func[*pipeline.Invoke] {
	return func(ctx context.Context, i *pipeline.Invoke) (err error) {
		ctx, span := in.tracer.Start(ctx, i.Handler, trace.WithAttributes(
			keyEndpoint.String(in.endpoint), keyHandler.String(i.Handler), keyMessageType.String(i.Type)))
		began := time.Now()
		err = errPanicked
		defer func() {
			of := label{message: i.Type, handler: i.Handler, errorType: errorType(err)}
			in.metrics.handlers.Record(ctx, time.Since(began).Seconds(), in.metrics.labels.of(of).record...)
			if err != nil {
				in.sagas.failed(ctx, i.Receive)
			}
			end(span, err)
		}()
		return next(ctx, i)
	}
}

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
func (in *instrumentation) begin(
	ctx context.Context, r *pipeline.Receive,
) (context.Context, *attempt) {
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

// recover records the failure and the action on the process span, and ends the span. It begins
// another attempt if the message never reached the Receive stage, as when it cannot be decoded, or
// if its attempt was interrupted and counts as failed.
func (in *instrumentation) recover(
	next pipeline.Func[*pipeline.Recover],
) pipeline.Func[*pipeline.Recover] {
	return func(ctx context.Context, rec *pipeline.Recover) error {
		a := attemptOf(rec.Receive)
		if a == nil {
			ctx, a = in.begin(ctx, rec.Receive)
		}
		ctx = trace.ContextWithSpan(ctx, a.span)
		if rec.Message.Undecodable != nil { // it did not pass the Receive stage
			in.metrics.fetched(ctx, rec.Queue)
		}
		errorType := rec.Fault.Get(header.ExceptionType)
		in.metrics.failed(ctx, a, rec.Queue, errorType)
		a.exception(rec.Fault)
		defer func() {
			if !a.reported.Load() {
				_, attrs := described(rec.Action)
				a.span.AddEvent(eventRecoverability, trace.WithAttributes(append(attrs, keyCarriedOut.Bool(false))...))
			}
			a.end()
		}()
		return next(context.WithValue(ctx, attemptKey{}, a), rec)
	}
}

// exception records the error on the process span, in the words of the fault headers.
func (a *attempt) exception(headers header.Map) {
	attrs := []attribute.KeyValue{
		semconv.ExceptionType(headers.Get(header.ExceptionType)),
		semconv.ExceptionMessage(headers.Get(header.ExceptionMessage)),
	}
	if stack := fault.GoStack(headers.Get(header.ExceptionStackTrace)); stack != "" {
		attrs = append(attrs, semconv.ExceptionStacktrace(stack))
	}
	a.span.AddEvent(eventException, trace.WithAttributes(attrs...))
	a.span.SetAttributes(semconv.ErrorTypeKey.String(headers.Get(header.ExceptionType)),
		keyErrorClass.String(headers.Get(header.HoldfastFaultClass)))
	a.span.SetStatus(codes.Error, headers.Get(header.ExceptionMessage))
}

// described returns an action's name and attributes.
func described(action recoverability.Action) (string, []attribute.KeyValue) {
	with := func(name string, more ...attribute.KeyValue) (string, []attribute.KeyValue) {
		return name, append(more, keyAction.String(name))
	}
	switch a := action.(type) {
	case recoverability.Retry:
		return with(actionImmediate)
	case recoverability.RetryInline:
		return with(actionInline, keyDelay.Float64(a.For.Seconds()))
	case recoverability.Delay:
		return with(actionDelayed, keyDelay.Float64(a.For.Seconds()))
	case recoverability.DeadLetter:
		return with(actionDeadLetter)
	case recoverability.Discard:
		return with(actionDiscard)
	case recoverability.MoveToError:
		return with(actionError, keyErrorQueue.String(a.Queue))
	}
	return with(actionError) // nil, from another behavior: the endpoint moves the message to the error queue
}

// notified counts the actions for failed messages, and records them on their spans. Outside the
// Recover stage, as after its failure, they are counted without the message's type.
func (in *instrumentation) notified(ctx context.Context, n recoverability.Notification) {
	m := in.metrics
	a, _ := ctx.Value(attemptKey{}).(*attempt)
	l := label{destination: n.Failure.Queue}
	if a != nil {
		l.message = a.message
	}
	if n.Failure.Err != nil {
		l.errorType, l.errorClass = errorType(n.Failure.Err), recoverability.Class(n.Failure.Err)
	}
	switch n.Kind {
	case recoverability.RateLimitStarted:
		m.limits.Add(ctx, 1, m.labels.of(label{message: n.Failure.Type}).add...)
	case recoverability.RateLimitEnded:
		m.limits.Add(ctx, -1, m.labels.of(label{message: n.Failure.Type}).add...)
	case recoverability.FallbackTaken:
		l.fallback = string(n.Fallback)
		m.fallbacks.Add(ctx, 1, m.labels.of(l).add...)
		a.event(eventFallback, keyFallback.String(l.fallback))
	case recoverability.Quarantined,
		recoverability.ImmediateRetry, recoverability.InlineRetry, recoverability.DelayedRetry, recoverability.MovedToError, recoverability.DeadLettered, recoverability.Discarded:
		name, attrs := described(n.Action)
		l.action = name
		if n.Kind == recoverability.Quarantined {
			l.action = actionQuarantine
		}
		m.actions.Add(ctx, 1, m.labels.of(l).add...)
		if a != nil {
			a.reported.Store(true)
			a.event(eventRecoverability, attrs...)
			a.scheduled(n)
		}
	default: // no other kind has a metric
	}
}

// scheduled records a retry by a policy, whose number counts from 1.
func (a *attempt) scheduled(n recoverability.Notification) {
	policy := n.Failure.Resilience().Policy.Name
	if policy == "" {
		return
	}
	var after time.Duration
	switch action := n.Action.(type) {
	case recoverability.RetryInline:
		after = action.For
	case recoverability.Delay:
		after = action.For
	default:
		return
	}
	a.event(eventScheduled, keyPolicy.String(policy), keyRetryAttempt.Int(n.Retry), keyRetryDelay.Int64(after.Milliseconds()))
}

// event adds an event to the span of an attempt, if there is one.
func (a *attempt) event(name string, attrs ...attribute.KeyValue) {
	if a != nil {
		a.span.AddEvent(name, trace.WithAttributes(attrs...))
	}
}
