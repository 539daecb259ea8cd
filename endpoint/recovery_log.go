package endpoint

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/recoverability"
)

// logAction logs the action with the texts that operators of NServiceBus know. It comes before the
// action, so that the line precedes those of the next attempt. If the action fails, another line
// follows.
func (r *recovery) logAction(ctx context.Context, action recoverability.Action, f recoverability.Failure) {
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
