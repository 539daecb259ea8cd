package inmemory

import (
	"context"
	"slices"

	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.OutboxStore = (*conn)(nil)

func (c *conn) Store(ctx context.Context, e transport.OutboxEntry) error {
	return c.store(ctx, e, nil)
}

// BeginStore fails only if Transport.Fail returns an error, or with ErrClosed. Complete looks the
// key up: of two transactions with one key, the first to complete succeeds.
func (c *conn) BeginStore(ctx context.Context, e transport.OutboxEntry) (transport.Tx, error) {
	err := c.call(ctx, "BeginStore", e.Inbox, func() error { return nil })
	if err != nil {
		return nil, err
	}
	return &tx{conn: c, commit: func(ctx context.Context, ops []transport.Operation, writes []func()) error {
		e.Ops = slices.Concat(e.Ops, ops)
		return c.store(ctx, e, writes)
	}}, nil
}

// store records, writes and sends, or does nothing.
func (c *conn) store(ctx context.Context, e transport.OutboxEntry, writes []func()) error {
	failed := c.check(ctx, e.Ops)
	return c.call(ctx, "Store", e.Inbox, func() error {
		if err := c.unhandled(e.Inbox, e.Key); err != nil {
			return err
		}
		if failed = c.b.missing(e.Ops, failed); failed != nil {
			return failed.err(len(e.Ops))
		}
		for _, write := range writes {
			write()
		}
		c.record(e.Inbox, e.Key)
		c.put(e.Ops, nil)
		return nil
	})
}
