package transporttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast/transport"
)

// batchTx is a user's transaction of faulty: the operations that are dispatched in it, sent by its
// commit.
type batchTx struct {
	mu   sync.Mutex // guards what follows
	over bool
	ops  []joined
}

type joined struct {
	c       *faultyConn
	op      transport.Operation
	receipt string
}

var (
	errNoTx   = errors.New("this is no transaction")
	errTxOver = errors.New("the transaction is over")
)

func (tx *batchTx) add(ops ...joined) error {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if tx.over {
		return errTxOver
	}
	tx.ops = append(tx.ops, ops...)
	return nil
}

func (tx *batchTx) end() ([]joined, error) {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if tx.over {
		return nil, errTxOver
	}
	tx.over = true
	return tx.ops, nil
}

func (tx *batchTx) Commit(ctx context.Context) error {
	all, err := tx.end()
	if err != nil {
		return err
	}
	for _, j := range all {
		receipts, err := j.c.f.direct(ctx, j.op)
		if err != nil {
			return err
		}
		if len(receipts) > 0 {
			j.c.f.receipts.Store(j.receipt, receipts[0].Cancel)
		}
	}
	return nil
}

func (tx *batchTx) Rollback(context.Context) error {
	_, err := tx.end()
	return err
}

// direct dispatches over a connection of its own, as a database's client would.
func (f *faulty) direct(ctx context.Context, op transport.Operation) ([]transport.Receipt, error) {
	c, err := f.Transport.Open(ctx, transport.Env{})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Dispatch(ctx, []transport.Operation{op})
}

func (c *faultyConn) DispatchIn(ctx context.Context, tx any, ops []transport.Operation) ([]transport.Receipt, error) {
	if c.f.dispatchIn != nil {
		return c.f.dispatchIn(ctx, c, tx, ops)
	}
	return c.joinSoundly(ctx, tx, ops)
}

func (c *faultyConn) joinSoundly(ctx context.Context, tx any, ops []transport.Operation) ([]transport.Receipt, error) {
	own, ok := tx.(*batchTx)
	if !ok {
		return nil, errNoTx
	}
	stats, err := c.sound.Inspect(ctx)
	if err != nil {
		return nil, err
	}
	failed := &transport.DispatchError{Total: len(ops)}
	var all []joined
	receipts := make([]transport.Receipt, len(ops))
	for i, op := range ops {
		there := func(q transport.QueueStats) bool { return q.Name == op.Queue }
		if op.Queue != "" && !slices.ContainsFunc(stats, there) {
			failed.Ops = append(failed.Ops, transport.OpError{Index: i, Err: transport.ErrNoQueue})
		}
		op.Message = copyOf(op.Message)
		receipts[i].Cancel = fmt.Sprint("tx-", c.f.joins.Add(1))
		all = append(all, joined{c, op, receipts[i].Cancel})
	}
	if len(failed.Ops) > 0 {
		return nil, failed
	}
	return receipts, own.add(all...)
}

// receiptOf is inmemory's for one of DispatchIn.
func (f *faulty) receiptOf(receipt string) string {
	if own, ok := f.receipts.Load(receipt); ok {
		return own.(string)
	}
	return receipt
}
