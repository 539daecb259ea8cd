package endpoint

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/recoverability"
)

// logAction writes the texts that operators of NServiceBus know. They say what is about to be done, so
// that they stand before what comes of it, such as the next attempt. Where it cannot be
// carried out, a line that says so follows.
func (in *incoming) logAction(ctx context.Context, action recoverability.Action, f recoverability.Failure) {
	if action == in.logged {
		return
	}
	in.logged = action
	level, logger, text, reason := slog.LevelInfo, "", "", ""
	switch a := action.(type) {
	case recoverability.Retry:
		logger = "ImmediateRetry"
		text = fmt.Sprintf("Immediate Retry is going to retry message '%s' because of an exception:", in.id)
	case recoverability.Delay:
		level, logger = slog.LevelWarn, "DelayedRetry"
		text = fmt.Sprintf("Delayed Retry will reschedule message '%s' after a delay of %s because of an exception:",
			in.id, header.FormatDuration(a.For))
	case recoverability.MoveToError:
		level, logger = slog.LevelError, "MoveToError"
		text = fmt.Sprintf("Moving message '%s' to the error queue '%s' because processing failed due to an exception:", in.id, a.Queue)
	case recoverability.DeadLetter:
		level, logger, reason = slog.LevelError, "DeadLetter", a.Reason
		text = fmt.Sprintf("Moving message '%s' to the broker's dead-letter queue because processing failed due to an exception:", in.id)
	case recoverability.Discard:
		logger, reason = "Discard", a.Reason
		text = fmt.Sprintf("Discarding message '%s' because of an exception:", in.id)
	}
	if !in.log().Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("logger", logger), slog.String("type", f.Type),
		slog.Int("attempt", f.Attempt), slog.Int("delayed", f.Delayed), slog.Any("error", f.Err),
	}
	if reason != "" {
		attrs = append(attrs, slog.String("reason", reason))
	}
	//nolint:sloglint // operators search for these texts, which have the id in them
	in.log().LogAttrs(ctx, level, text, attrs...)
}
