package endpoint

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	settleTimeout = 10 * time.Second
	settleTries   = 3
)

// dispatchAll is the end of the Dispatch stage: the operations leave, and the message
// they belong to is completed.
func (e *Endpoint) dispatchAll(ctx context.Context, d *pipeline.Dispatch) error {
	if d.Incoming != nil {
		in := attempt(d.Incoming)
		return in.finish(ctx, in.processed(ctx, d.Operations))
	}
	live := e.live.Load()
	if live == nil {
		return ErrNotRunning
	}
	var err error
	d.Receipts, err = live.dispatch(ctx, d)
	return soleError(err)
}

// soleError takes the error of a single operation out of its wrapping.
func soleError(err error) error {
	var de *transport.DispatchError
	if errors.As(err, &de) && de.Total == 1 {
		return de.Ops[0].Err
	}
	return err
}

// finish sends ops and completes the message, once. A nil error also stands for a
// message that is no longer ours.
func (in *incoming) finish(ctx context.Context, ops []transport.Operation) error {
	if in.settled {
		return errSettled
	}
	err := in.completeWith(ctx, ops)
	in.busy = nil
	if in.settled = err == nil; !in.settled {
		in.live.acks.forget()
		errors.As(err, &in.busy)
	}
	return err
}

// completeWith sends ops and completes the message: in the handlers' transaction where
// there is one, as one unit where the transport can, else one after the other.
func (in *incoming) completeWith(ctx context.Context, ops []transport.Operation) error {
	if in.session.tx != nil {
		return in.lost(ctx, in.session.tx.Complete(in.live.settling.context(), ops))
	}
	if in.taken {
		return in.send(ops)
	}
	completer, ok := in.delivery.(transport.Completer)
	if ok && len(ops) > 0 {
		return in.settle(ctx, func(ctx context.Context) error { return completer.CompleteWith(ctx, ops) })
	}
	if err := in.send(ops); err != nil {
		return err
	}
	in.complete(ctx)
	return nil
}

// unit tells whether completing the message and sending are one.
func (in *incoming) unit() bool {
	if in.session.tx != nil || in.taken {
		return !in.taken
	}
	_, ok := in.delivery.(transport.Completer)
	return ok
}

func (in *incoming) send(ops []transport.Operation) error {
	if len(ops) == 0 {
		return nil
	}
	_, err := in.live.conn.Dispatch(in.live.settling.context(), ops)
	return err
}

// complete takes the message off its queue. What was sent has left by now, so not
// being able to is not the message's failure: it will come again.
func (in *incoming) complete(ctx context.Context) {
	if err := in.settle(ctx, in.delivery.Complete); err != nil {
		in.log().WarnContext(ctx, "a message was handled but could not be completed: it will be handled again",
			slog.String("message", in.id), slog.Any("error", err))
	}
}

// settle calls a settling verb, again if the broker could not be reached. A refused
// operation and a lost lease are final, and the latter is no error. The verb has a context
// of its own: settling goes on when ctx has ended.
func (in *incoming) settle(ctx context.Context, verb func(context.Context) error) error {
	return in.lost(ctx, in.try(verb))
}

func (in *incoming) try(verb func(context.Context) error) error {
	own := in.live.settling.context()
	err := verb(own)
	if err == nil {
		return nil
	}
	pause := backoff.Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	for try := 1; try < settleTries && repeatable(err); try++ {
		if pause.Wait(own) != nil {
			break
		}
		err = verb(own)
	}
	return err
}

func repeatable(err error) bool {
	var refused *transport.DispatchError
	return err != nil && !errors.Is(err, transport.ErrLeaseLost) && !errors.As(err, &refused)
}

// lost makes a lost lease a logged fact instead of an error: there is nothing left to
// settle, and whoever has the message now deals with it.
func (in *incoming) lost(ctx context.Context, err error) error {
	if !errors.Is(err, transport.ErrLeaseLost) {
		return err
	}
	if in.gone = true; !in.failed {
		in.e.failures.LeaseLost(in.failureKey())
	}
	in.log().WarnContext(ctx, "the message is no longer ours: it will be, or has been, handed out again",
		slog.String("message", in.id), slog.Any("error", err))
	return nil
}

func (in *incoming) log() *slog.Logger { return in.e.cfg.Logger }
