package otel

import (
	"context"
	"errors"
	"time"

	api "go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast/resilience"
)

// NewObserver returns an observer that traces and measures the executions of policies by a [resilience.Runner]: one span
// for each execution, with events for its retries and time-outs. Of opts it uses the providers. It is safe for
// concurrent use, and may observe several runners.
//
// The policies of messages, which rules of package recoverability apply, are reported by
// [Instrument].
func NewObserver(opts Options) resilience.Observer {
	tracer, meter := opts.instruments()
	o := &observer{tracer: tracer}
	var errs [3]error
	o.executions, errs[0] = meter.Int64Counter("resilience.policy.execution.count", metric.WithUnit("{execution}"),
		metric.WithDescription("Executions of policies."))
	o.retries, errs[1] = meter.Int64Counter("resilience.policy.retry.count", metric.WithUnit("{retry}"),
		metric.WithDescription("Retries that executions of policies have begun to wait for."))
	o.durations, errs[2] = meter.Float64Histogram("resilience.policy.execution.duration", metric.WithUnit("s"),
		metric.WithDescription("Time of an execution of a policy, with all attempts and delays."),
		metric.WithExplicitBucketBoundaries(workTimes...))
	if err := errors.Join(errs[:]...); err != nil {
		api.Handle(err)
	}
	return o
}

type observer struct {
	tracer              trace.Tracer
	executions, retries metric.Int64Counter
	durations           metric.Float64Histogram
}

// Begin implements [resilience.Observer].
func (o *observer) Begin(
	ctx context.Context, p resilience.Policy,
) (context.Context, resilience.Observation) {
	policy := keyPolicy.String(p.Name)
	ctx, span := o.tracer.Start(ctx, "resilience "+p.Name, trace.WithAttributes(policy))
	return ctx, &observation{o, ctx, span, policy, time.Now()}
}

// observation observes one execution.
type observation struct {
	*observer

	ctx    context.Context //nolint:containedctx // an observation is one call
	span   trace.Span
	policy attribute.KeyValue
	began  time.Time
}

// Retry implements [resilience.Observation].
func (o *observation) Retry(n int, delay time.Duration, err error) {
	o.retries.Add(o.ctx, 1, metric.WithAttributes(o.policy))
	o.span.AddEvent(eventRetry, trace.WithAttributes(
		keyRetryAttempt.Int(n), keyRetryDelay.Int64(delay.Milliseconds()), semconv.ExceptionType(errorType(err))))
}

// Timeout implements [resilience.Observation].
func (o *observation) Timeout(n int, limit time.Duration) {
	o.span.AddEvent(eventTimeout, trace.WithAttributes(keyAttempt.Int(n), keyTimeout.Int64(limit.Milliseconds())))
}

// End implements [resilience.Observation].
func (o *observation) End(outcome resilience.Outcome, err error) {
	result := keyOutcome.String(string(outcome))
	o.executions.Add(o.ctx, 1, metric.WithAttributes(o.policy, result))
	o.durations.Record(o.ctx, time.Since(o.began).Seconds(), metric.WithAttributes(o.policy, result))
	o.span.SetAttributes(result)
	if outcome != resilience.Succeeded {
		text := errorText(err)
		o.span.SetStatus(codes.Error, text)
		if outcome == resilience.Failed {
			o.span.AddEvent(eventException, trace.WithAttributes(
				semconv.ExceptionType(errorType(err)), semconv.ExceptionMessage(text)))
		}
	}
	o.span.End()
}
