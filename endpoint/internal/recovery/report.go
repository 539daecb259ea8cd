package recovery

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
)

// logAction logs the action with the texts that operators of NServiceBus know. The line comes
// before the action, so that the lines of the next attempt follow. If the action fails, another line
// follows.
func (r *Failed) logAction(ctx context.Context, action recoverability.Action, f recoverability.Failure) {
	if action == r.logged {
		return
	}
	r.logged = action
	level, logger, text, reason := slog.LevelInfo, "", "", ""
	switch a := action.(type) {
	case recoverability.Retry:
		logger = "ImmediateRetry"
		text = fmt.Sprintf("Immediate Retry is going to retry message '%s' because of an exception:", r.LogID())
	case recoverability.RetryInline:
		logger = "InlineRetry"
		text = fmt.Sprintf("Inline Retry is going to retry message '%s' after a delay of %s because of an exception:",
			r.LogID(), header.FormatDuration(a.For))
	case recoverability.Delay:
		level, logger = slog.LevelWarn, "DelayedRetry"
		text = fmt.Sprintf("Delayed Retry will reschedule message '%s' after a delay of %s because of an exception:",
			r.LogID(), header.FormatDuration(a.For))
	case recoverability.MoveToError:
		level, logger = slog.LevelError, "MoveToError"
		text = fmt.Sprintf("Moving message '%s' to the error queue '%s' because processing failed due to an exception:", r.LogID(), a.Queue)
	case recoverability.DeadLetter:
		level, logger, reason = slog.LevelError, "DeadLetter", a.Reason
		text = fmt.Sprintf("Moving message '%s' to the broker's dead-letter queue because processing failed due to an exception:", r.LogID())
	case recoverability.Discard:
		logger, reason = "Discard", a.Reason
		text = fmt.Sprintf("Discarding message '%s' because of an exception:", r.LogID())
	}
	if !r.Log.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("logger", logger), slog.String("type", errtree.Cut(f.Type, settle.MaxLogged)),
		slog.Int("attempt", f.Attempt), slog.Int("delayed", f.Delayed), slog.Any("error", f.Err),
	}
	if policy := f.Resilience().Policy.Name; policy != "" {
		attrs = append(attrs, slog.String("policy", policy), slog.Int("inline", f.Inline))
	}
	if reason != "" {
		attrs = append(attrs, slog.String("reason", reason))
	}
	//nolint:sloglint // operators search for these texts, which have the id in them
	r.Log.LogAttrs(ctx, level, text, attrs...)
}

// tookFallback records a fallback, to be reported once the message is settled.
func (r *Failed) tookFallback(f recoverability.Fallback, instead recoverability.Action) {
	r.fallbacks = append(r.fallbacks, recoverability.Notification{
		Kind: recoverability.FallbackTaken, Fallback: f, Action: instead,
	})
}

// carriedOut forgets the failures of a message whose action ends the cycle. It returns a function
// that reports the action.
func (r *Failed) carriedOut(ctx context.Context, rec *pipeline.Recover) (report func()) {
	if again := sameCycle(rec.Action); r.Exclusive != nil || !again && !r.LostLease() {
		r.ForgetFailures()
	}
	if r.LostLease() {
		return func() {}
	}
	done, failure := rec.Action, rec.Failure
	return func() { r.notifyAction(ctx, done, failure) }
}

// sameCycle reports whether the failures of the message count for its next attempt too.
func sameCycle(action recoverability.Action) bool {
	_, immediate := action.(recoverability.Retry)
	_, inline := action.(recoverability.RetryInline)
	return immediate || inline
}

// notifyAction reports an action that was carried out, and the fallbacks before the action.
func (r *Failed) notifyAction(ctx context.Context, action recoverability.Action, f recoverability.Failure) {
	for _, n := range r.fallbacks {
		n.Failure = &f
		r.Notifier.Notify(ctx, n)
	}
	n := recoverability.Notification{Failure: &f, Action: action}
	switch a := action.(type) {
	case recoverability.Retry:
		n.Kind, n.Retry = recoverability.ImmediateRetry, f.Immediate
	case recoverability.RetryInline:
		n.Kind, n.Retry = recoverability.InlineRetry, f.Inline+1
	case recoverability.Delay:
		n.Kind, n.Retry, n.To = recoverability.DelayedRetry, f.Delayed+1, r.Queue
	case recoverability.MoveToError:
		n.Kind, n.To = recoverability.MovedToError, a.Queue
	case recoverability.DeadLetter:
		n.Kind = recoverability.DeadLettered
	case recoverability.Discard:
		n.Kind = recoverability.Discarded
	}
	r.Notifier.Notify(ctx, n)
}
