package otel

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/recoverability"
)

// notified counts the actions for failed messages, and records them on their spans. Outside the Recover stage, as after
// its failure, they are counted without the message's type.
func (in *instrumentation) notified(ctx context.Context, n endpoint.Notification) {
	if by := limits(n.Kind); by != 0 {
		in.metrics.limits.Add(ctx, by, in.metrics.labels.of(label{message: n.Failure.Type}).add...)
		return
	}
	a, _ := ctx.Value(attemptKey{}).(*attempt)
	l := label{destination: n.Failure.Queue}
	if a != nil {
		l.message = a.message
	}
	if n.Failure.Err != nil {
		l.errorType, l.errorClass = errorType(n.Failure.Err), recoverability.Class(n.Failure.Err)
	}
	if n.Kind == endpoint.FallbackTaken {
		l.fallback = string(n.Fallback)
		in.metrics.fallbacks.Add(ctx, 1, in.metrics.labels.of(l).add...)
		a.event(eventFallback, keyFallback.String(l.fallback))
		return
	}
	name := actionOf(n)
	if name == "" {
		return
	}
	l.action = name
	in.metrics.actions.Add(ctx, 1, in.metrics.labels.of(l).add...)
	if a == nil {
		return
	}
	a.reported.Store(true)
	_, attrs := described(n.Action)
	a.event(eventRecoverability, attrs...)
}

// limits returns the change of the number of rate limits in force.
func limits(kind endpoint.NotificationKind) int64 {
	switch kind {
	case endpoint.RateLimitStarted:
		return 1
	case endpoint.RateLimitEnded:
		return -1
	default:
		return 0
	}
}

// actionOf returns the action of a notification, or "".
func actionOf(n endpoint.Notification) string {
	switch n.Kind {
	case endpoint.Quarantined:
		return actionQuarantine
	case endpoint.ImmediateRetry, endpoint.DelayedRetry, endpoint.MovedToError, endpoint.DeadLettered, endpoint.Discarded:
		name, _ := described(n.Action)
		return name
	default:
		return ""
	}
}

// event adds an event to the span of an attempt, if there is one.
func (a *attempt) event(name string, attrs ...attribute.KeyValue) {
	if a != nil {
		a.span.AddEvent(name, trace.WithAttributes(attrs...))
	}
}
