package endpoint

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"

	"github.com/holdfast-go/holdfast/endpoint/internal/panics"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/transport"
)

// forwardRow is a guard. It ends the processing of a message for another queue that was kept in
// this queue until it was due. Such a message is not handled: it is sent on and completed. If its
// queue refuses it, it moves to the error queue. Otherwise it is requeued after a pause.
func forwardRow(ctx context.Context, in *incoming) outcome {
	r, ok := in.Received.(transport.Relayer)
	if !ok {
		return nil
	}
	ops := r.Relay()
	if len(ops) == 0 {
		return nil
	}
	if err := in.sendOn(ctx, ops); err != nil {
		in.LogError(ctx, slog.LevelError, "a message that was due could not be sent on to its queue: it stays and is tried again",
			err, slog.String("queue", ops[0].Queue))
		return in.keep(ctx, err)
	}
	return over{}
}

func (in *incoming) sendOn(ctx context.Context, ops []transport.Operation) (err error) {
	defer panics.Catch(&err)
	err = in.Complete(ctx, nil, ops)
	switch busy := in.BusyQueue(); {
	case err == nil:
		return nil
	case busy != "":
		in.Postpone(ctx, busy)
		return nil
	case copies.Refused(err):
		return in.newRecovery().Bury(ctx, in.newAttempt(), cmp.Or(ops[0].Queue, in.Queue), &undeliverableError{queue: ops[0].Queue, err: err})
	}
	return err
}

// undeliverableError is the failure of a message whose queue refused it when it was due.
type undeliverableError struct {
	queue string
	err   error
}

func (e *undeliverableError) Error() string {
	return fmt.Sprintf("the message was delayed, and could not be sent to queue %q when it was due: %v", e.queue, e.err)
}

func (e *undeliverableError) Unwrap() error { return e.err }

// FaultClass returns the class of the fault in the error queue.
func (e *undeliverableError) FaultClass() string { return "undeliverable" }
