package transporttest

import (
	"context"
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast/transport"
)

// joinsWith changes the operations of DispatchIn.
func joinsWith(change func(op *transport.Operation)) func(*faulty) {
	return func(f *faulty) {
		f.dispatchIn = func(ctx context.Context, c *faultyConn, tx any, ops []transport.Operation) ([]transport.Receipt, error) {
			ops = slices.Clone(ops)
			for i := range ops {
				change(&ops[i])
			}
			return c.joinSoundly(ctx, tx, ops)
		}
	}
}

// joinsNot sends some operations at once, outside the transaction.
func joinsNot(of func(op transport.Operation) bool) func(*faulty) {
	return func(f *faulty) {
		f.dispatchIn = func(ctx context.Context, c *faultyConn, tx any, ops []transport.Operation) ([]transport.Receipt, error) {
			if slices.ContainsFunc(ops, of) {
				return c.sound.Dispatch(ctx, ops)
			}
			return c.joinSoundly(ctx, tx, ops)
		}
	}
}

func anything(transport.Operation) bool { return true }

func published(op transport.Operation) bool { return op.Queue == "" }

var joinMutants = []mutant{
	{"join-commit", "it is sent at once", joinsNot(anything)},
	{"join-commit", "the order is reversed", func(f *faulty) {
		f.dispatchIn = func(ctx context.Context, c *faultyConn, tx any, ops []transport.Operation) ([]transport.Receipt, error) {
			return c.joinSoundly(ctx, tx, reversed(slices.Clone(ops)))
		}
	}},
	{"join-commit", "a header is lost", joinsWith(func(op *transport.Operation) {
		op.Message = copyOf(op.Message)
		op.Message.Headers.Del("Kit.Name")
	})},
	{"join-rollback", "it is sent at once", joinsNot(anything)},
	{"join-refused", "what was not refused is sent", func(f *faulty) {
		f.dispatchIn = func(ctx context.Context, c *faultyConn, tx any, ops []transport.Operation) ([]transport.Receipt, error) {
			receipts, err := c.joinSoundly(ctx, tx, ops)
			if err != nil {
				_, _ = c.joinSoundly(ctx, tx, ops[:1])
			}
			return receipts, err
		}
	}},
	{"join-refused", "the transaction cannot go on", func(f *faulty) {
		f.dispatchIn = func(ctx context.Context, c *faultyConn, tx any, ops []transport.Operation) ([]transport.Receipt, error) {
			receipts, err := c.joinSoundly(ctx, tx, ops)
			if err != nil {
				_ = tx.(*batchTx).Rollback(ctx)
			}
			return receipts, err
		}
	}},
	{"join-published", "what is published is sent at once", joinsNot(published)},
	{"join-published", "what is published reaches the base type's subscribers alone", joinsWith(func(op *transport.Operation) {
		op.Types = op.Types[max(0, len(op.Types)-1):]
	})},
	{"join-delayed", "delays are ignored", joinsWith(undelayed)},
	{"join-receipt", "there are no receipts", func(f *faulty) {
		f.dispatchIn = func(ctx context.Context, c *faultyConn, tx any, ops []transport.Operation) ([]transport.Receipt, error) {
			_, err := c.joinSoundly(ctx, tx, ops)
			return nil, err
		}
	}},
	{"join-receipt", "a receipt calls nothing back", func(f *faulty) {
		f.cancel = func(context.Context, *faultyConn, string) error { return transport.ErrNotFound }
	}},
	{"join-receipt", "whatever cannot be cancelled has been", lenientCancel},
	{"join-wrong", "without a transaction it is sent at once", func(f *faulty) {
		f.dispatchIn = func(ctx context.Context, c *faultyConn, tx any, ops []transport.Operation) ([]transport.Receipt, error) {
			if _, ok := tx.(*batchTx); !ok {
				return c.sound.Dispatch(ctx, ops)
			}
			return c.joinSoundly(ctx, tx, ops)
		}
	}},
	{"join-wrong", "a transaction is not checked if nothing is sent", func(f *faulty) {
		f.dispatchIn = func(ctx context.Context, c *faultyConn, tx any, ops []transport.Operation) ([]transport.Receipt, error) {
			if slices.ContainsFunc(ops, published) {
				return nil, nil
			}
			return c.joinSoundly(ctx, tx, ops)
		}
	}},
	{"join-many", "what is sent at once with others goes into the transaction that was last", func(f *faulty) {
		var mu sync.Mutex
		var last any
		f.dispatchIn = func(ctx context.Context, c *faultyConn, tx any, ops []transport.Operation) ([]transport.Receipt, error) {
			mu.Lock()
			defer mu.Unlock()
			if last == nil {
				last = tx
			}
			tx, last = last, tx
			return c.joinSoundly(ctx, tx, ops)
		}
	}},
	{"join-closed", "a closed connection still sends", func(f *faulty) {
		f.dispatchIn = func(_ context.Context, c *faultyConn, tx any, ops []transport.Operation) ([]transport.Receipt, error) {
			for _, op := range ops {
				if err := tx.(*batchTx).add(joined{c, op, ""}); err != nil {
					return nil, err
				}
			}
			return nil, nil
		}
	}},
}
