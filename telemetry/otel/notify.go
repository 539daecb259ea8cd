package otel

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast/recoverability"
)

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
