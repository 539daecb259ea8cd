package inmemory

import (
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast/transport"
)

// cursor iterates over the messages that were ready when it was made.
type cursor struct {
	by     *sender
	queue  string
	items  []*item                      // not listed yet
	seen   map[*transport.Message]*item // of the last Next
	closed bool
}

// browser is the part of a conn with which tools list messages and remove them.
type browser struct {
	*core
	sender *sender
}

// Browse implements [transport.Browser]. It costs nothing, and does not list messages that are
// being handled or are delayed.
func (br *browser) Browse(ctx context.Context, queue string) (transport.Cursor, error) {
	cur := &cursor{by: br.sender, queue: queue}
	err := br.call(ctx, "Browse", queue, func() error {
		q, err := br.b.find(queue)
		if err != nil {
			return err
		}
		q.advance()
		for it := q.ready.first; it != nil; it = it.next {
			cur.items = append(cur.items, it)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return cur, nil
}

// Purge implements [transport.Purger].
func (br *browser) Purge(ctx context.Context, queue string) (n int64, err error) {
	err = br.call(ctx, "Purge", queue, func() error {
		q, err := br.b.find(queue)
		if err != nil {
			return err
		}
		for q.advance(); q.ready.first != nil; n++ {
			q.discard(q.ready.first)
		}
		return nil
	})
	return n, err
}

func (cur *cursor) Next(ctx context.Context, limit int) (ms []*transport.Message, err error) {
	if cur.closed {
		return nil, transport.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	cur.seen = make(map[*transport.Message]*item, limit)
	err = cur.by.locked(func() error {
		for len(ms) < limit && len(cur.items) > 0 {
			it := cur.items[0]
			cur.items = cur.items[1:]
			if it.ready() {
				ms = append(ms, &it.message)
				cur.seen[&it.message] = it
			}
		}
		return nil
	})
	return ms, err
}

func (cur *cursor) Take(ctx context.Context, m *transport.Message, ops []transport.Operation) error {
	if cur.closed {
		return transport.ErrClosed
	}
	failed := cur.by.check(ctx, ops)
	return cur.by.call(ctx, "Take", cur.queue, func() error {
		it := cur.seen[m]
		if it == nil || !it.ready() {
			return fmt.Errorf("inmemory: take a message of %q: %w", cur.queue, transport.ErrNotFound)
		}
		if failed = cur.by.b.missing(ops, failed); failed != nil {
			return failed.err(len(ops))
		}
		it.queue.discard(it)
		cur.by.put(ops, nil)
		return nil
	})
}

func (cur *cursor) Close() error {
	cur.closed = true
	return nil
}

// ready reports whether the message can be received. The broker is locked.
func (it *item) ready() bool {
	it.queue.advance()
	return it.list == &it.queue.ready
}
