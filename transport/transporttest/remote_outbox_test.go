package transporttest

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

func (c *remoteConn) FindHandled(
	ctx context.Context, inbox string, keys []transport.HandledKey,
) ([]transport.HandledState, error) {
	inner, err := c.use(ctx)
	if err != nil {
		return nil, err
	}
	return inner.(transport.OutboxStore).FindHandled(ctx, inbox, keys)
}

// Store takes a while on its way there, and a while on its way back.
func (c *remoteConn) Store(ctx context.Context, e transport.OutboxEntry) error {
	inner, err := c.use(ctx)
	if err != nil {
		return err
	}
	<-time.After(time.Millisecond)
	err = inner.(transport.OutboxStore).Store(ctx, e)
	if errors.Is(err, transport.ErrClosed) && !c.isClosed() {
		if c.w.tearing {
			_, _ = c.w.direct(ctx, e.Ops) // which never fails
		}
		return errCut
	}
	<-time.After(time.Millisecond)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.inner == inner:
		return err
	case c.w.denying:
		return errCut
	default:
		return transport.ErrOutcomeUnknown
	}
}

// direct dispatches over a connection of its own.
func (w *wire) direct(ctx context.Context, ops []transport.Operation) ([]transport.Receipt, error) {
	c, err := w.broker.Open(ctx, transport.Env{})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Dispatch(ctx, ops)
}

func (c *remoteConn) BeginStore(ctx context.Context, e transport.OutboxEntry) (transport.Tx, error) {
	inner, err := c.use(ctx)
	if err != nil {
		return nil, err
	}
	return inner.(transport.OutboxStore).BeginStore(ctx, e)
}
