package otel

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/recoverability"
)

// notified counts the actions for failed messages, and records them on their spans. Outside the Recover stage, as after
// its failure, they are counted without the message's type.
func (in *instrumentation) notified(ctx context.Context, n endpoint.Notification) {
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
	case endpoint.RateLimitStarted:
		m.limits.Add(ctx, 1, m.labels.of(label{message: n.Failure.Type}).add...)
	case endpoint.RateLimitEnded:
		m.limits.Add(ctx, -1, m.labels.of(label{message: n.Failure.Type}).add...)
	case endpoint.FallbackTaken:
		l.fallback = string(n.Fallback)
		m.fallbacks.Add(ctx, 1, m.labels.of(l).add...)
		a.event(eventFallback, keyFallback.String(l.fallback))
	case endpoint.Quarantined,
		endpoint.ImmediateRetry, endpoint.InlineRetry, endpoint.DelayedRetry, endpoint.MovedToError, endpoint.DeadLettered, endpoint.Discarded:
		name, attrs := described(n.Action)
		l.action = name
		if n.Kind == endpoint.Quarantined {
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
func (a *attempt) scheduled(n endpoint.Notification) {
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
