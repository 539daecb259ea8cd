package errorqueue

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/transport"
)

// page is the number of messages that are read at once, and so are in memory.
const page = 100

// Queue is an error queue with a selection of its messages.
type Queue struct {
	Conn   transport.Conn
	Name   string
	Filter Filter
	Limit  int // the first so many that match; 0 is all
	// Read returns the entry of a message. Nil is EntryOf.
	Read func(*transport.Message) Entry
	// Progress is called now and then with the number of messages read so far. May be nil.
	Progress func(seen int)
}

// Each calls visit with each selected message, in the order of the queue. The messages stay unchanged.
func (q *Queue) Each(ctx context.Context, visit func(*transport.Message, Entry) error) error {
	return q.walk(ctx, func(_ transport.Cursor, m *transport.Message, e Entry) error { return visit(m, e) })
}

type visitor func(transport.Cursor, *transport.Message, Entry) error

var errEnough = errors.New("as many as are wanted")

func (q *Queue) walk(ctx context.Context, visit visitor) (err error) {
	cur, err := q.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cur.Close()) }()
	w := walk{queue: q, cursor: cur, visit: visit}
	for {
		ms, err := cur.Next(ctx, page)
		if err != nil || len(ms) == 0 {
			return err
		}
		err = w.page(ctx, ms)
		if errors.Is(err, errEnough) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (q *Queue) open(ctx context.Context) (transport.Cursor, error) {
	browser, ok := q.Conn.(transport.Browser)
	if !ok {
		return nil, errors.New("the transport cannot list messages")
	}
	cur, err := browser.Browse(ctx, q.Name)
	if errors.Is(err, transport.ErrNoQueue) {
		return nil, fmt.Errorf("%w: name the error queue with --queue", err)
	}
	return cur, err
}

// walk is one iteration over a queue.
type walk struct {
	queue  *Queue
	cursor transport.Cursor
	visit  visitor
	seen   int
	fit    int
}

func (w *walk) page(ctx context.Context, ms []*transport.Message) error {
	for _, m := range ms {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		w.seen++
		e := w.queue.entry(m)
		if !w.queue.Filter.Fits(&e) {
			continue
		}
		if err := w.visit(w.cursor, m, e); err != nil {
			return err
		}
		if w.fit++; w.fit == w.queue.Limit {
			return errEnough
		}
		w.progress()
	}
	w.progress()
	return nil
}

func (q *Queue) entry(m *transport.Message) Entry {
	if q.Read != nil {
		return q.Read(m)
	}
	return EntryOf(m)
}

func (w *walk) progress() {
	if w.queue.Progress != nil {
		w.queue.Progress(w.seen)
	}
}
