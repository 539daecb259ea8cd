package transporttest

import (
	"context"
	"errors"
	"slices"

	"github.com/holdfast-go/holdfast/transport"
)

// storesApart is a Store that sends and records in two steps.
func storesApart(ctx context.Context, c *faultyConn, e transport.OutboxEntry) error {
	if err := c.sound.Store(ctx, transport.OutboxEntry{Inbox: e.Inbox, Key: e.Key}); err != nil {
		return err
	}
	_, err := c.sound.Dispatch(ctx, e.Ops)
	return err
}

// storingOps changes the operations of Store.
func storingOps(change func([]transport.Operation) []transport.Operation) func(*faulty) {
	return storingWith(func(e *transport.OutboxEntry) { e.Ops = change(slices.Clone(e.Ops)) })
}

var outboxMutants = []mutant{
	{"store-both", "no message is sent", storingWith(func(e *transport.OutboxEntry) { e.Ops = nil })},
	{"store-both", "messages are sent in another order", storingOps(func(ops []transport.Operation) []transport.Operation {
		slices.Reverse(ops)
		return ops
	})},
	{"store-both", "a message is changed", storingOps(func(ops []transport.Operation) []transport.Operation {
		for i := range ops {
			ops[i].Message = copyOf(ops[i].Message)
			ops[i].Message.Headers.Set("x-outbox", "1")
		}
		return ops
	})},
	{"store-without-key", "an inbox is needed without a key", func(f *faulty) {
		f.store = func(ctx context.Context, c *faultyConn, e transport.OutboxEntry) error {
			if _, err := c.sound.FindHandled(ctx, e.Inbox, nil); err != nil {
				return err
			}
			return c.sound.Store(ctx, e)
		}
	}},
	{"store-without-key", "no key is a key", func(f *faulty) {
		f.store = func(ctx context.Context, c *faultyConn, e transport.OutboxEntry) error {
			if len(c.f.Messages(queueOfEntry(e))) > 0 {
				return transport.ErrAlreadyHandled
			}
			return c.sound.Store(ctx, e)
		}
	}},
	{"store-delayed", "delays are ignored", storingOps(func(ops []transport.Operation) []transport.Operation {
		for i := range ops {
			undelayed(&ops[i])
		}
		return ops
	})},
	{"store-refused", "the key is recorded before the messages are sent", func(f *faulty) { f.store = storesApart }},
	{"store-refused", "the others are sent", func(f *faulty) {
		f.store = func(ctx context.Context, c *faultyConn, e transport.OutboxEntry) error {
			if _, err := c.sound.Dispatch(ctx, e.Ops); err != nil {
				return err
			}
			e.Ops = nil
			return c.sound.Store(ctx, e)
		}
	}},
	{"store-too-large", "the key is recorded before the messages are sent", func(f *faulty) {
		f.MaxBody = 64 << 10
		f.store = storesApart
	}},
	{"store-many", "a refused entry fails the others of its commit", func(f *faulty) {
		failed := make(chan error, 1000)
		f.store = func(ctx context.Context, c *faultyConn, e transport.OutboxEntry) error {
			select {
			case err := <-failed:
				return err
			default:
			}
			err := c.sound.Store(ctx, e)
			if err != nil {
				failed <- err
			}
			return err
		}
	}},
	{"store-keeps-nothing", "the message is sent later", func(f *faulty) {
		f.store = func(ctx context.Context, c *faultyConn, e transport.OutboxEntry) error {
			ops := e.Ops
			e.Ops = nil
			f.find = func(
				ctx context.Context, c *faultyConn, inbox string, keys []transport.HandledKey,
			) ([]transport.HandledState, error) {
				_, err := c.sound.Dispatch(ctx, ops)
				return nil, err
			}
			f.openReceiver = func(ctx context.Context, c *faultyConn, queue string) (transport.Receiver, error) {
				if _, err := c.sound.Dispatch(ctx, ops); err != nil {
					return nil, err
				}
				return c.sound.OpenReceiver(ctx, transport.ReceiverOptions{Queue: queue})
			}
			return c.sound.Store(ctx, e)
		}
	}},
	{"store-keeps-nothing", "the key is recorded later", func(f *faulty) {
		f.store = func(ctx context.Context, c *faultyConn, e transport.OutboxEntry) error {
			key := e.Key
			f.find = func(
				ctx context.Context, c *faultyConn, inbox string, keys []transport.HandledKey,
			) ([]transport.HandledState, error) {
				if err := c.sound.Store(ctx, transport.OutboxEntry{Inbox: inbox, Key: key}); err != nil {
					return nil, err
				}
				return c.sound.FindHandled(ctx, inbox, keys)
			}
			e.Key = nil
			return c.sound.Store(ctx, e)
		}
	}},
	{"store-ended", "what is stored has failed", func(f *faulty) {
		f.store = func(ctx context.Context, c *faultyConn, e transport.OutboxEntry) error {
			return errors.Join(c.sound.Store(context.WithoutCancel(ctx), e), ctx.Err())
		}
	}},
	{"store-ended", "what is not stored has succeeded", func(f *faulty) {
		f.store = func(ctx context.Context, c *faultyConn, e transport.OutboxEntry) error {
			if ctx.Err() != nil {
				return nil
			}
			return c.sound.Store(ctx, e)
		}
	}},
	{"store-closed", "a closed connection is another error", func(f *faulty) {
		f.store = func(ctx context.Context, c *faultyConn, e transport.OutboxEntry) error {
			err := c.sound.Store(ctx, e)
			if errors.Is(err, transport.ErrClosed) {
				err = errMutant
			}
			return err
		}
	}},
	{"store-cut", "messages are sent again when the connection was cut", func(f *faulty) {
		f.wire = func(w *wire) { w.tearing = true }
	}},
	{"store-cut", "a lost answer is a refusal", func(f *faulty) {
		f.wire = func(w *wire) { w.denying = true }
	}},
}

// queueOfEntry returns the queue of an entry's first operation.
func queueOfEntry(e transport.OutboxEntry) string {
	if len(e.Ops) == 0 {
		return ""
	}
	return e.Ops[0].Queue
}

// storingInTx is a transaction that stores by other means.
func storingInTx(complete func(ctx context.Context, tx *faultyStoreTx, e transport.OutboxEntry) error) func(*faulty) {
	return func(f *faulty) {
		f.completeTx = func(ctx context.Context, tx *faultyStoreTx, ops []transport.Operation) error {
			e := tx.e
			e.Ops = slices.Concat(e.Ops, ops)
			return complete(ctx, tx, e)
		}
	}
}

var storeTxMutants = []mutant{
	{"store-tx-commit", "the operations of the entry are not sent", func(f *faulty) {
		f.beginStore = func(ctx context.Context, c *faultyConn, e transport.OutboxEntry) (transport.Tx, error) {
			e.Ops = nil
			return c.beginSoundly(ctx, e)
		}
	}},
	{"store-tx-commit", "the operations of Complete are sent first", func(f *faulty) {
		f.completeTx = func(ctx context.Context, tx *faultyStoreTx, ops []transport.Operation) error {
			if _, err := tx.c.sound.Dispatch(ctx, ops); err != nil {
				return err
			}
			return tx.Tx.Complete(ctx, nil)
		}
	}},
	{"store-tx-commit", "the key is not recorded", func(f *faulty) {
		f.beginStore = func(ctx context.Context, c *faultyConn, e transport.OutboxEntry) (transport.Tx, error) {
			e.Key = nil
			return c.beginSoundly(ctx, e)
		}
	}},
	{"store-tx-commit", "a transaction that is over can be completed", func(f *faulty) {
		f.completeTx = func(ctx context.Context, tx *faultyStoreTx, ops []transport.Operation) error {
			if err := tx.Tx.Complete(ctx, ops); err != nil && errors.Is(err, transport.ErrAlreadyHandled) {
				return err
			}
			return nil
		}
	}},
	{"store-tx-rollback", "Rollback commits", func(f *faulty) {
		f.rollbackTx = func(ctx context.Context, tx *faultyStoreTx) error {
			_ = tx.Tx.Complete(ctx, nil) // it may be over
			return nil
		}
	}},
	{"store-tx-rollback", "the key is recorded at the begin", func(f *faulty) {
		f.beginStore = func(ctx context.Context, c *faultyConn, e transport.OutboxEntry) (transport.Tx, error) {
			if err := c.sound.Store(ctx, transport.OutboxEntry{Inbox: e.Inbox, Key: e.Key}); err != nil {
				return nil, err
			}
			e.Key = nil
			return c.beginSoundly(ctx, e)
		}
	}},
	{"store-tx-refused", "the key is recorded before the messages are sent", storingInTx(
		func(ctx context.Context, tx *faultyStoreTx, e transport.OutboxEntry) error {
			return storesApart(ctx, tx.c, e)
		},
	)},
	{"store-tx-refused", "the error counts the operations of Complete alone", func(f *faulty) {
		f.completeTx = func(ctx context.Context, tx *faultyStoreTx, ops []transport.Operation) error {
			err := tx.Tx.Complete(ctx, ops)
			if failed, ok := errors.AsType[*transport.DispatchError](err); ok {
				failed.Total -= len(tx.e.Ops)
				for i := range failed.Ops {
					failed.Ops[i].Index -= len(tx.e.Ops)
				}
			}
			return err
		}
	}},
	{"store-tx-handled", "the messages of a duplicate are sent", storingInTx(
		func(ctx context.Context, tx *faultyStoreTx, e transport.OutboxEntry) error {
			_, err := tx.c.sound.Dispatch(ctx, e.Ops)
			e.Ops = nil
			return errors.Join(err, tx.c.sound.Store(ctx, e))
		},
	)},
	{"store-tx-handled", "a transaction does not look the key up", storingInTx(
		func(ctx context.Context, tx *faultyStoreTx, e transport.OutboxEntry) error {
			_, err := tx.c.sound.Dispatch(ctx, e.Ops)
			return err
		},
	)},
	{"store-tx-rival", "the key is looked up at the begin", func(f *faulty) {
		f.beginStore = func(ctx context.Context, c *faultyConn, e transport.OutboxEntry) (transport.Tx, error) {
			states, err := c.sound.FindHandled(ctx, e.Inbox, []transport.HandledKey{*e.Key})
			if err != nil || states[0] != transport.NotHandled {
				return nil, errors.Join(err, transport.ErrAlreadyHandled)
			}
			return c.beginSoundly(ctx, e)
		}
		storingInTx(func(ctx context.Context, tx *faultyStoreTx, e transport.OutboxEntry) error {
			err := tx.c.sound.Store(ctx, e)
			if errors.Is(err, transport.ErrAlreadyHandled) {
				_, err = tx.c.sound.Dispatch(ctx, e.Ops)
			}
			return err
		})(f)
		f.store = func(ctx context.Context, c *faultyConn, e transport.OutboxEntry) error {
			err := c.sound.Store(ctx, e)
			if errors.Is(err, transport.ErrAlreadyHandled) {
				_, err = c.sound.Dispatch(ctx, e.Ops)
			}
			return err
		}
	}},
	{"store-tx-rival", "a transaction that is open refuses the key", func(f *faulty) {
		open := make(chan transport.HandledKey, 10)
		f.beginStore = func(ctx context.Context, c *faultyConn, e transport.OutboxEntry) (transport.Tx, error) {
			open <- *e.Key
			return c.beginSoundly(ctx, e)
		}
		f.store = func(ctx context.Context, c *faultyConn, e transport.OutboxEntry) error {
			select {
			case <-open:
				return transport.ErrAlreadyHandled
			default:
				return c.sound.Store(ctx, e)
			}
		}
	}},
	{"store-tx-writes", "a handler's writes are not committed", storingInTx(
		func(ctx context.Context, tx *faultyStoreTx, e transport.OutboxEntry) error {
			return tx.c.sound.Store(ctx, e)
		},
	)},
	{"store-tx-writes", "a handler's writes are committed before the key is looked up", func(f *faulty) {
		f.beginStore = func(ctx context.Context, c *faultyConn, e transport.OutboxEntry) (transport.Tx, error) {
			tx, err := c.sound.BeginStore(ctx, transport.OutboxEntry{})
			return &faultyStoreTx{Tx: tx, c: c, e: e}, err
		}
		f.completeTx = func(ctx context.Context, tx *faultyStoreTx, ops []transport.Operation) error {
			e := tx.e
			e.Ops = slices.Concat(e.Ops, ops)
			return errors.Join(tx.Tx.Complete(ctx, nil), tx.c.sound.Store(ctx, e))
		}
	}},
	{"store-tx-outage", "each error is an outage", func(f *faulty) { f.outage = func(err error) bool { return err != nil } }},
	{"store-tx-outage", "no error is an outage", func(f *faulty) { f.outage = func(err error) bool { return err == nil } }},
	{"store-tx-outage", "a refused message is an outage", func(f *faulty) {
		f.outage = func(err error) bool { return errors.Is(err, transport.ErrNoQueue) }
	}},
	{"store-tx-closed", "Close commits", func(f *faulty) {
		f.completeTx = func(ctx context.Context, tx *faultyStoreTx, ops []transport.Operation) error {
			_, err := tx.c.f.direct(ctx, tx.e.Ops[0])
			return errors.Join(err, tx.Tx.Complete(ctx, ops))
		}
	}},
}
