package transporttest

import (
	"context"

	"github.com/holdfast-go/holdfast/transport"
)

// stateFaults replace functions of a store of records. A nil function is inmemory's.
type stateFaults struct {
	load   func(ctx context.Context, tx *faultyStoreTx, id transport.RecordID, create *transport.RecordName) (transport.Record, error)
	save   func(ctx context.Context, tx *faultyStoreTx, r transport.Record) error
	remove func(ctx context.Context, tx *faultyStoreTx, id transport.RecordID) error

	inspectRecords func(stats transport.RecordStats, err error) (transport.RecordStats, error)
	records        func(ctx context.Context, c *faultyConn, p transport.RecordPage) ([]transport.Record, error)
	removeRecord   func(ctx context.Context, c *faultyConn, id transport.RecordID) error
}

// states returns inmemory's records of the transaction.
func (t *faultyStoreTx) states() transport.StateStore {
	return t.Tx.(transport.StateStore)
}

func (t *faultyStoreTx) Load(ctx context.Context, id transport.RecordID, create *transport.RecordName) (transport.Record, error) {
	if t.c.f.states.load != nil {
		return t.c.f.states.load(ctx, t, id, create)
	}
	return t.states().Load(ctx, id, create)
}

func (t *faultyStoreTx) Save(ctx context.Context, r transport.Record) error {
	if t.c.f.states.save != nil {
		return t.c.f.states.save(ctx, t, r)
	}
	return t.states().Save(ctx, r)
}

func (t *faultyStoreTx) Remove(ctx context.Context, id transport.RecordID) error {
	if t.c.f.states.remove != nil {
		return t.c.f.states.remove(ctx, t, id)
	}
	return t.states().Remove(ctx, id)
}

func (c *faultyConn) InspectRecords(ctx context.Context, kind string) (transport.RecordStats, error) {
	stats, err := c.sound.InspectRecords(ctx, kind)
	if c.f.states.inspectRecords != nil {
		return c.f.states.inspectRecords(stats, err)
	}
	return stats, err
}

func (c *faultyConn) Records(ctx context.Context, p transport.RecordPage) ([]transport.Record, error) {
	if c.f.states.records != nil {
		return c.f.states.records(ctx, c, p)
	}
	return c.sound.Records(ctx, p)
}

func (c *faultyConn) RemoveRecord(ctx context.Context, id transport.RecordID) error {
	if c.f.states.removeRecord != nil {
		return c.f.states.removeRecord(ctx, c, id)
	}
	return c.sound.RemoveRecord(ctx, id)
}
