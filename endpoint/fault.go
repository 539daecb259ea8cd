package endpoint

import (
	"context"
	"log/slog"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
)

// faultHeaders are what a move to the error queue adds, changed by the user's function, which
// may panic.
func (in *incoming) faultHeaders(ctx context.Context, f recoverability.Failure) (fault header.Map) {
	fault = recoverability.FaultHeaders(f, in.e.host)
	change := in.e.recoverability.FaultHeaders
	if change == nil {
		return fault
	}
	defer func() {
		if v := recover(); v != nil {
			in.log().ErrorContext(ctx, "the function of Recoverability.FaultHeaders panicked: the headers stay as they were",
				slog.String("message", in.id), slog.String("panic", panicText(v)))
		}
	}()
	changed := fault.Clone()
	change(&changed, f)
	return changed
}

// conclude carries out the action, and calls Config.OnFinalFailure before if it gives the message up.
func (in *incoming) conclude(ctx context.Context, rec *pipeline.Recover) error {
	rec.Action = in.possible(ctx, rec.Action)
	if err := in.onFinalFailure(ctx, rec); err != nil {
		return err
	}
	return in.carryOut(ctx, rec)
}

// onFinalFailure calls the user's function, once. What it sent is left out when it fails; an error
// means that what it wrote cannot be left out alone.
func (in *incoming) onFinalFailure(ctx context.Context, rec *pipeline.Recover) error {
	f := in.e.cfg.OnFinalFailure
	if f == nil || in.final || !givesUp(rec.Action) {
		return nil
	}
	in.final = true
	kept := in.session.begin()
	err := in.callFinal(ctx, f, rec.Failure)
	if err == nil {
		return nil
	}
	in.log().ErrorContext(ctx, "the function of Config.OnFinalFailure failed: the message is dealt with without what it sent",
		slog.String("message", in.id), slog.Any("error", err))
	if in.session.writes() {
		return err
	}
	in.session.drop(kept)
	return nil
}

func (in *incoming) callFinal(
	ctx context.Context, f func(context.Context, *Session, recoverability.Failure) error, failure recoverability.Failure,
) (err error) {
	defer catchPanic(&err)
	return f(ctx, in.session, failure)
}

func givesUp(action recoverability.Action) bool {
	switch action.(type) {
	case recoverability.MoveToError, recoverability.DeadLetter, recoverability.Discard:
		return true
	}
	return false
}
