package otel

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
)

// recover records the failure and the action on the process span, and ends the span. It begins
// another attempt if the message never reached the Receive stage, as when it cannot be decoded, or
// if its attempt was interrupted and counts as failed.
func (in *instrumentation) recover(next pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
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
