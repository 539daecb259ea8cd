package process

import (
	"cmp"
	"context"
	"errors"
	"log/slog"

	"github.com/holdfast-go/holdfast/endpoint/internal/panics"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/transport"
)

// forwardRow is a guard. It ends the processing of a message for another queue, if the message was
// kept in this queue until the message was due. No handler receives the message: the message is sent
// on and completed. If the queue refuses the message, the message moves to the error queue. After
// another error the message is requeued after a pause.
func forwardRow(ctx context.Context, m *Message) outcome {
	r, ok := m.Received.(transport.Relayer)
	if !ok {
		return nil
	}
	ops := r.Relay()
	if len(ops) == 0 {
		return nil
	}
	if err := sendOn(ctx, m, ops); err != nil {
		m.LogError(ctx, slog.LevelError, "a message that was due could not be sent on to its queue: it stays and is tried again",
			err, slog.String("queue", ops[0].Queue))
		return m.keep(ctx, err)
	}
	return over{}
}

func sendOn(ctx context.Context, m *Message, ops []transport.Operation) (err error) {
	defer panics.Catch(&err)
	err = m.Complete(ctx, nil, ops)
	switch busy := m.BusyQueue(); {
	case err == nil:
		return nil
	case busy != "":
		m.Postpone(ctx, busy)
		return nil
	case copies.Refused(err):
		queue, a := ops[0].Queue, m.Attempts.NewAttempt()
		return m.newRecovery().Bury(ctx, a.Of, cmp.Or(queue, m.Queue), m.Errors.Undeliverable(queue, err))
	}
	return err
}

// Derive returns the operations that a driver derives from a message of the driver's own queues.
type Derive = func(context.Context, *transport.Message) ([]transport.Operation, error)

// forward sends the operations that the driver derives from the message, and completes the message.
func forward(ctx context.Context, m *Message, derive Derive) (err error) {
	defer panics.Catch(&err)
	a := m.Attempts.NewAttempt()
	ops, err := derive(ctx, a.Receive.Message)
	if dead, ok := errors.AsType[*transport.DeadLetteredError](err); ok {
		return m.newRecovery().Bury(ctx, a.Of, cmp.Or(dead.Queue, m.Queue), dead)
	}
	if err != nil {
		return err
	}
	return m.Complete(ctx, nil, ops)
}
