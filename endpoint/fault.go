package endpoint

import (
	"context"
	"log/slog"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
)

// faultHeaders are what a move to the error queue adds, changed by the user's function, which
// may panic.
func (in *incoming) faultHeaders(ctx context.Context, f recoverability.Failure) header.Map {
	h := fault.Headers(f, in.e.host)
	change := in.live.recoverability.FaultHeaders
	if change == nil {
		return h
	}
	changed := h.Clone()
	err := apart(func() error {
		change(&changed, f)
		return nil
	})
	if err != nil {
		in.log().ErrorContext(ctx, "the function of Recoverability.FaultHeaders failed: the headers stay as they were",
			slog.String("message", in.id), slog.Any("error", err))
		return h
	}
	return changed
}

// conclude carries out the action, and calls Config.OnFinalFailure before if it gives the message up.
func (in *incoming) conclude(ctx context.Context, rec *pipeline.Recover) error {
	rec.Action = in.possible(ctx, rec.Action)
	if givesUp(rec.Action) {
		if err := in.onFinalFailure(ctx, rec.Failure); err != nil {
			return err
		}
	}
	return in.carryOut(ctx, rec)
}

// onFinalFailure calls the user's function, once. What it sent is left out when it fails; an error
// means that what it wrote cannot be left out alone.
func (in *incoming) onFinalFailure(ctx context.Context, failure recoverability.Failure) error {
	f := in.e.cfg.OnFinalFailure
	if f == nil || in.final {
		return nil
	}
	in.final = true
	kept := in.session.begin()
	err := apart(func() error { return f(ctx, in.session, failure) })
	if err == nil {
		return nil
	}
	in.log().ErrorContext(ctx, "the function of Config.OnFinalFailure failed: the message is dealt with without what it sent",
		slog.String("message", in.id), slog.Any("error", err))
	if in.session.writes() {
		return &finalError{err}
	}
	in.session.drop(kept)
	return nil
}

// finalError is of Config.OnFinalFailure: whatever it wraps, it does not say how the broker answered.
type finalError struct{ error }

func (e *finalError) Unwrap() error { return e.error }

func givesUp(action recoverability.Action) bool {
	switch action.(type) {
	case recoverability.MoveToError, recoverability.DeadLetter, recoverability.Discard:
		return true
	}
	return false
}
