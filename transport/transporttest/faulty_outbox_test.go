package transporttest

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// outboxFaults replace functions of an outbox store. A nil function is inmemory's.
type outboxFaults struct {
	find       func(ctx context.Context, c *faultyConn, inbox string, keys []transport.HandledKey) ([]transport.HandledState, error)
	store      func(ctx context.Context, c *faultyConn, e transport.OutboxEntry) error
	beginStore func(ctx context.Context, c *faultyConn, e transport.OutboxEntry) (transport.Tx, error)
	completeTx func(ctx context.Context, tx *faultyStoreTx, ops []transport.Operation) error
	rollbackTx func(ctx context.Context, tx *faultyStoreTx) error
	outage     func(err error) bool
	inspectBox func(stats transport.InboxStats, err error) (transport.InboxStats, error)
	forget     func(ctx context.Context, c *faultyConn, inbox string, keys []transport.HandledKey) (int, error)
	record     func(d *faultyDelivery, inbox string, key *transport.HandledKey)
}

func (c *faultyConn) FindHandled(
	ctx context.Context, inbox string, keys []transport.HandledKey,
) ([]transport.HandledState, error) {
	if c.f.find != nil {
		return c.f.find(ctx, c, inbox, keys)
	}
	return c.sound.FindHandled(ctx, inbox, keys)
}

func (c *faultyConn) Store(ctx context.Context, e transport.OutboxEntry) error {
	if c.f.store != nil {
		return c.f.store(ctx, c, e)
	}
	return c.sound.Store(ctx, e)
}

func (c *faultyConn) BeginStore(ctx context.Context, e transport.OutboxEntry) (transport.Tx, error) {
	if c.f.beginStore != nil {
		return c.f.beginStore(ctx, c, e)
	}
	return c.beginSoundly(ctx, e)
}

func (c *faultyConn) beginSoundly(ctx context.Context, e transport.OutboxEntry) (transport.Tx, error) {
	tx, err := c.sound.BeginStore(ctx, e)
	if err != nil {
		return nil, err
	}
	return &faultyStoreTx{Tx: tx, c: c, e: e}, nil
}

type faultyStoreTx struct {
	transport.Tx
	c *faultyConn
	e transport.OutboxEntry
}

func (t *faultyStoreTx) Complete(ctx context.Context, ops []transport.Operation) error {
	if t.c.f.completeTx != nil {
		return t.c.f.completeTx(ctx, t, ops)
	}
	return t.Tx.Complete(ctx, ops)
}

func (t *faultyStoreTx) Rollback(ctx context.Context) error {
	if t.c.f.rollbackTx != nil {
		return t.c.f.rollbackTx(ctx, t)
	}
	return t.Tx.Rollback(ctx)
}

func (t *faultyStoreTx) Outage(_ context.Context, err error) bool {
	return t.c.f.outage != nil && t.c.f.outage(err)
}

func (c *faultyConn) InspectInbox(ctx context.Context, inbox string) (transport.InboxStats, error) {
	stats, err := c.sound.InspectInbox(ctx, inbox)
	if c.f.inspectBox != nil {
		return c.f.inspectBox(stats, err)
	}
	return stats, err
}

func (c *faultyConn) ForgetHandled(ctx context.Context, inbox string, keys []transport.HandledKey) (int, error) {
	if c.f.forget != nil {
		return c.f.forget(ctx, c, inbox, keys)
	}
	return c.sound.ForgetHandled(ctx, inbox, keys)
}

func (d *faultyDelivery) RecordHandled(inbox string, key *transport.HandledKey) {
	if d.receiver.f.record != nil {
		d.receiver.f.record(d, inbox, key)
		return
	}
	d.whole.RecordHandled(inbox, key)
}

// handlersTx is a session of a handler with a transaction of faulty.
type handlersTx struct{ tx transport.Tx }

func (s handlersTx) Tx(context.Context) (transport.HandlerTx, error) {
	return transport.NewHandlerTx(s.tx), nil
}

// writeOnCommit is Harness.Write of faulty.
func writeOnCommit(t testing.TB, _ transport.Transport, given transport.HandlerTx) func() bool {
	t.Helper()
	tx, ok := transport.TxOf[*faultyStoreTx](given)
	if !ok {
		t.Error("the transaction is not one of faulty")
		return func() bool { return false }
	}
	var written atomic.Bool
	if err := inmemory.OnCommit(context.Background(), handlersTx{tx.Tx}, func() { written.Store(true) }); err != nil {
		t.Error(err)
	}
	return written.Load
}
