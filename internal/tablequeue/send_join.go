package tablequeue

import (
	"context"
	"errors"

	"github.com/holdfast-go/holdfast/transport"
)

// DispatchIn implements [transport.TxDispatcher]. The rows are inserted on the connection of tx;
// other statements use the store's connections.
func (c *Conn) DispatchIn(ctx context.Context, tx any, ops []transport.Operation) ([]transport.Receipt, error) {
	for try := 1; ; try++ {
		receipts, err := c.dispatchIn(ctx, tx, ops)
		again := c.lostSubscribers(err, ops) || errors.Is(err, ErrNoDelays)
		if !again || try == maxLost {
			return receipts, err
		}
	}
}

func (c *Conn) dispatchIn(ctx context.Context, tx any, ops []transport.Operation) ([]transport.Receipt, error) {
	w := c.newWork()
	defer c.recycle(w)
	err := c.call(ctx, nil, func(ctx context.Context) error { return dispatchError(c.addRows(ctx, w, ops), len(ops)) })
	if err != nil {
		return nil, err
	}
	wantSeqs(w.unit.Rows, ops)
	if err := c.store.InsertIn(ctx, tx, w.unit.Rows); err != nil {
		return nil, c.blame(ctx, err, &w.unit, len(ops))
	}
	return addReceipts(nil, w.unit.Rows, len(ops)), nil
}
