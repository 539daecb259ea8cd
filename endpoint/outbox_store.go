package endpoint

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/endpoint/internal/work"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/envelope"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/transport"
)

// maxEnvelope is the size in bytes up to which the messages of a handler are stored as one row.
const maxEnvelope = 4 << 20

// store commits ops and the key of the message in the outbox's database, with the writes in tx
// where there is one. Then it completes the message. The notice to ServiceControl and the audit
// copy are stored too: the broker may refuse them, which concerns neither the message nor ops.
func (a *attempt) store(ctx context.Context, tx transport.Tx, ops []transport.Operation) error {
	if a.Over() {
		return settle.ErrSettled
	}
	own := a.audit.With(ctx, a.live.outbox.cancels(a.session.unit.Cancelled()), &a.audited)
	if err := a.live.outbox.commit(a.Context(), &a.session.unit, tx, ops, own); err != nil {
		return err
	}
	// The message is handled: that it cannot be completed is not its failure.
	a.Try(ctx, a.Received.Complete, "a message was handled but could not be completed: "+
		"the broker delivers it again, and it is recognized")
	return nil
}

// commit stores ops, which the broker must be likely to accept, and own for the relay, with the key
// of u and with the writes in tx.
func (o *outbox) commit(ctx context.Context, u *work.Unit, tx transport.Tx, ops, own []transport.Operation) error {
	if err := o.destinations.check(ctx, ops); err != nil {
		return err
	}
	stored, err := o.stored(append(slices.Clip(ops), own...))
	switch {
	case err != nil:
		return err
	case tx != nil:
		err = tx.Complete(ctx, stored)
	case u.Key != nil || len(stored) > 0:
		err = o.store.Store(ctx, transport.OutboxEntry{Inbox: o.inbox, Key: u.Key, Ops: stored})
	}
	if err != nil {
		return u.Fail(&work.CommitError{Err: fmt.Errorf("commit in outbox %q: %w", o.queue, err)})
	}
	o.outage.Committed()
	return nil
}

// send stores ops that belong to no message: in the caller's transaction tx, unless that is nil.
func (o *outbox) send(ctx context.Context, tx any, ops []transport.Operation) error {
	if err := o.destinations.check(ctx, ops); err != nil {
		return copies.Single(err)
	}
	stored, err := o.stored(ops)
	if err != nil {
		return err
	}
	return o.dispatch(ctx, tx, stored)
}

// dispatch stores rows: in the caller's transaction tx, unless that is nil.
func (o *outbox) dispatch(ctx context.Context, tx any, rows []transport.Operation) (err error) {
	if tx == nil {
		_, err = o.conn.Dispatch(ctx, rows)
	} else {
		_, err = o.conn.(transport.TxDispatcher).DispatchIn(ctx, tx, rows) //nolint:errcheck // joins has seen that it is one
	}
	if err != nil {
		return fmt.Errorf("store in outbox %q: %w", o.queue, copies.Single(err))
	}
	return nil
}

// stored returns the operations that store ops in the queue of the outbox.
func (o *outbox) stored(ops []transport.Operation) ([]transport.Operation, error) {
	if len(ops) == 0 {
		return nil, nil
	}
	now := o.now()
	ops, timers, err := o.timers(o.due(ops, now), now)
	if err != nil {
		return nil, err
	}
	envelopes := envelope.Encode(ops, now, maxEnvelope)
	stored := make([]transport.Operation, len(envelopes), len(envelopes)+len(timers))
	for i, body := range envelopes {
		if stored[i], err = o.row(body, now); err != nil {
			return nil, err
		}
	}
	return append(stored, timers...), nil
}

// row returns the operation that stores an envelope.
func (o *outbox) row(body []byte, now time.Time) (transport.Operation, error) {
	if most := o.maxRow; most > 0 && len(body) > most {
		return transport.Operation{}, &transport.TooLargeError{What: "message", Size: len(body), Max: most}
	}
	return transport.Operation{Message: &transport.Message{ID: uuid.New(now), Body: body}, Queue: o.queue}, nil
}

// due returns ops with due times by the clock of the outbox: a caller's At is one of this process.
func (o *outbox) due(ops []transport.Operation, now time.Time) []transport.Operation {
	copied := false
	for i := range ops {
		if ops[i].At.IsZero() {
			continue
		}
		if !copied {
			ops, copied = slices.Clone(ops), true
		}
		ops[i].At = now.Add(ops[i].Delay(time.Now()))
	}
	return ops
}
