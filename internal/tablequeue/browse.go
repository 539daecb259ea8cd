package tablequeue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.Browser = (*Conn)(nil)
	_ transport.Cursor  = (*cursor)(nil)
)

// MaxPage is how many bytes of bodies a [Store] reads before it ends a page, so that large
// messages do not add up in memory.
const MaxPage = 16 << 20

// cursor goes through a queue by the rows' seq. It holds no lease but that of a row being taken.
type cursor struct {
	conn   *Conn
	page   Page
	closed bool
}

// Browse implements [transport.Browser]: rows are read where they are, which costs them
// nothing. Leased and delayed ones show too.
func (c *Conn) Browse(ctx context.Context, queue string) (transport.Cursor, error) {
	if err := c.store.Check(queue); err != nil {
		return nil, err
	}
	cur := &cursor{conn: c, page: Page{Queue: queue}}
	err := c.call(func() error {
		err := c.store.Exists(ctx, queue)
		if err == nil {
			cur.page.Last, err = c.store.Last(ctx, queue)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	c.queues.Store(queue, nil) // for Close to give back a row that was about to be taken
	return cur, nil
}

// Next implements [transport.Cursor].
func (cur *cursor) Next(ctx context.Context, limit int) (ms []*transport.Message, err error) {
	if cur.closed {
		return nil, transport.ErrClosed
	}
	cur.page.Limit = min(limit, maxReceive)
	var rows []Claimed
	err = cur.conn.call(func() (err error) {
		rows, err = cur.conn.store.Browse(ctx, cur.page)
		return err
	})
	if err != nil {
		return nil, err
	}
	for i := range rows {
		m := new(transport.Message)
		message(m, &rows[i])
		ms = append(ms, m)
		cur.page.After = rows[i].Seq
	}
	return ms, nil
}

// Take implements [transport.Cursor]: the row is leased, so that nobody else has it, and
// then deleted together with the inserts. Killed in between, it comes back with the end of the lease.
func (cur *cursor) Take(ctx context.Context, m *transport.Message, ops []transport.Operation) error {
	if cur.closed {
		return transport.ErrClosed
	}
	d, err := cur.lease(ctx, m)
	if err != nil {
		return err
	}
	err = d.CompleteWith(ctx, ops)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, transport.ErrLeaseLost):
		return cur.notFound(m)
	}
	giveBack, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxClose)
	defer cancel()
	if d.Release(giveBack) != nil {
		return err // its lease ends by itself
	}
	return err
}

func (cur *cursor) lease(ctx context.Context, m *transport.Message) (*delivery, error) {
	seq, err := strconv.ParseInt(m.NativeID, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("take a message of queue %q: it has not been browsed: %w", cur.page.Queue, err)
	}
	claim := Claim{
		Queue: cur.page.Queue,
		Limit: 1,
		Lease: 1 + rand.Int64N(1<<62),
		For:   cur.conn.cfg.Lease,
		Owner: cur.conn.owner,
	}
	d := &delivery{conn: cur.conn, queue: claim.Queue, lease: Lease{Seq: seq, ID: claim.Lease}}
	var ready bool
	err = cur.conn.call(func() (err error) {
		ready, err = cur.conn.store.ClaimRow(ctx, claim, seq)
		return err
	})
	if err == nil && !ready {
		err = cur.notFound(m)
	}
	return d, err
}

func (cur *cursor) notFound(m *transport.Message) error {
	return fmt.Errorf("take message %s of queue %q: %w", m.NativeID, cur.page.Queue, transport.ErrNotFound)
}

// Close implements [transport.Cursor].
func (cur *cursor) Close() error {
	cur.closed = true
	return nil
}
