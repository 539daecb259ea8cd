package errorqueue

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/internal/copies"
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
	// Progress is called with the number of messages read so far. May be nil.
	Progress func(seen int)
}

// shortName returns the one name of a queue, whatever form of its address NServiceBus,
// ServiceControl or the user wrote.
func (q *Queue) shortName(address string) string {
	if a, ok := q.Conn.(transport.Addresser); ok && address != "" {
		return a.ShortName(address)
	}
	return address
}

// Each calls visit with each selected message, in the order of the queue. The messages stay
// unchanged. A packed one is visited as its sender made it, with the headers of the fault.
func (q *Queue) Each(ctx context.Context, visit func(*transport.Message, Entry) error) error {
	return q.walk(ctx, func(m listed, e Entry) error { return visit(m.message, e) })
}

// listed is a message of the queue.
type listed struct {
	in      transport.Cursor
	stored  *transport.Message // as Next returned the message
	message *transport.Message // unpacked
}

// walk calls visit with each selected message.
func (q *Queue) walk(ctx context.Context, visit func(listed, Entry) error) (err error) {
	browser, ok := q.Conn.(transport.Browser)
	if !ok {
		return errors.New("the transport cannot list messages")
	}
	cur, err := browser.Browse(ctx, q.Name)
	if errors.Is(err, transport.ErrNoQueue) {
		err = fmt.Errorf("%w: name the error queue with --queue", err)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cur.Close()) }()
	read := q.Read
	if read == nil {
		read = EntryOf
	}
	filter := q.Filter.named(q.shortName)
	for seen, fit := 0, 0; ; {
		ms, err := cur.Next(ctx, page)
		if err != nil || len(ms) == 0 {
			return err
		}
		for _, stored := range ms {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if seen++; q.Progress != nil {
				q.Progress(seen)
			}
			m := listed{in: cur, stored: stored, message: copies.Unpacked(stored)}
			e := read(m.message)
			e.Queue = q.shortName(e.Queue)
			if !filter.Fits(&e) {
				continue
			}
			if err := visit(m, e); err != nil {
				return err
			}
			if fit++; fit == q.Limit {
				return nil
			}
		}
	}
}
