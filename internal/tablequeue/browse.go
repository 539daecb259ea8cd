package tablequeue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.Cursor = (*cursor)(nil)

// MaxPage is the number of bytes of bodies after which a [Store] ends a page, to bound memory.
const MaxPage = 16 << 20

// browser lists the messages of queues, and removes messages.
type browser struct {
	*core

	encoder *encoder
	writer  *writer
}

// cursor reads a queue by the rows' seq. It has no lease.
type cursor struct {
	browser *browser
	page    Page
	ids     map[int64]string // of the rows of the last page, by their seq
	closed  bool
}

// Browse implements [transport.Browser]. It does not change the rows, and lists leased and delayed
// ones too.
func (b *browser) Browse(ctx context.Context, queue string) (transport.Cursor, error) {
	queue = b.shortName(queue)
	last, err := b.ofExisting(ctx, queue, b.store.Browsing.Last)
	if err != nil {
		return nil, err
	}
	return &cursor{browser: b, page: Page{Queue: queue, Last: last}}, nil
}

// Purge implements [transport.Purger].
func (b *browser) Purge(ctx context.Context, queue string) (int64, error) {
	return b.ofExisting(ctx, b.shortName(queue), b.store.Browsing.Purge)
}

// ofExisting returns the number that fn returns for a queue that exists, or for a foreign table.
func (b *browser) ofExisting(
	ctx context.Context, queue string, fn func(ctx context.Context, queue string) (int64, error),
) (int64, error) {
	return ask(ctx, b.core, []string{queue}, func(ctx context.Context) (int64, error) {
		err := b.store.Topology.Exists(ctx, queue)
		if unfit, ok := errors.AsType[*UnfitError](err); err != nil && (!ok || !unfit.Foreign) {
			return 0, err
		}
		return fn(ctx, queue)
	})
}

// Next implements [transport.Cursor].
func (cur *cursor) Next(ctx context.Context, limit int) (ms []*transport.Message, err error) {
	if cur.closed {
		return nil, transport.ErrClosed
	}
	cur.page.Limit = min(limit, maxReceive)
	b := cur.browser
	rows, err := ask(ctx, b.core, nil, func(ctx context.Context) ([]Claimed, error) {
		return b.store.Browsing.Browse(ctx, cur.page)
	})
	if err != nil {
		return nil, err
	}
	cur.ids = make(map[int64]string, len(rows))
	for i := range rows {
		m := new(transport.Message)
		cur.ids[rows[i].Seq] = rows[i].ID
		message(m, &rows[i])
		ms = append(ms, m)
		cur.page.After = rows[i].Seq
	}
	return ms, nil
}

// Take implements [transport.Cursor]: one transaction deletes the row and inserts ops.
func (cur *cursor) Take(ctx context.Context, m *transport.Message, ops []transport.Operation) error {
	if cur.closed {
		return transport.ErrClosed
	}
	seq, err := strconv.ParseInt(m.NativeID, 10, 64)
	if err != nil {
		return cur.notFound(m)
	}
	b := cur.browser
	w := b.writer.newWork()
	defer b.writer.recycle(w)
	if failed := b.encoder.addRows(ctx, w, ops); len(failed) > 0 {
		return dispatchError(failed, len(ops))
	}
	w.unit.Verb, w.unit.Queue = Delete, cur.page.Queue
	w.unit.Lease, w.unit.RowID = Lease{Seq: seq, ID: 1 + rand.Int64N(1<<62)}, cur.ids[seq]
	err = b.call(ctx, nil, func(ctx context.Context) error {
		return b.again(func() error { return b.store.Browsing.Take(ctx, &w.unit) })
	})
	if err != nil {
		return b.encoder.blame(ctx, b.verdict(err), &w.unit, len(ops))
	}
	if w.unit.Lost {
		return cur.notFound(m)
	}
	b.wakes.flushed([]*Unit{&w.unit})
	return nil
}

func (cur *cursor) notFound(m *transport.Message) error {
	return fmt.Errorf("take message %s of queue %q: %w", m.NativeID, cur.page.Queue, transport.ErrNotFound)
}

// Close implements [transport.Cursor].
func (cur *cursor) Close() error {
	cur.closed = true
	return nil
}
