package sqs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.Browser = (*conn)(nil)
	_ transport.Cursor  = (*cursor)(nil)
)

const (
	// browseLease is how long what was looked at stays hidden if nobody gives it back. It is renewed when half of it is
	// over and somebody goes on.
	browseLease = 5 * time.Minute
	// browseWait has SQS look for messages on all of its servers. Without a wait it may miss some.
	browseWait = time.Second
	// emptyAnswers in a row are taken for the end of a queue.
	emptyAnswers = 2
)

// cursor goes through a queue. SQS has no way to look at a message where it is, so each is received and stays hidden
// from others until the cursor is closed.
type cursor struct {
	inFlight *inFlight
	began    time.Time
	held     []*delivery
	seen     map[*transport.Message]*delivery // of the last Next
	end      bool
}

// Browse implements [transport.Browser]. What the cursor has looked at is hidden from other receivers until it is
// closed, or for five minutes if the process dies; and each look counts as a hand-out.
func (c *conn) Browse(ctx context.Context, queue string) (transport.Cursor, error) {
	c.urls.forget(queue) // it may have been deleted
	in, err := c.inFlight(ctx, queue)
	if err != nil {
		return nil, err
	}
	return &cursor{inFlight: in, began: time.Now()}, nil
}

// Next implements [transport.Cursor].
func (cur *cursor) Next(ctx context.Context, limit int) ([]*transport.Message, error) {
	cur.seen = make(map[*transport.Message]*delivery, limit)
	if err := cur.renew(ctx); err != nil {
		return nil, err
	}
	var ms []*transport.Message
	for empty := 0; len(ms) < limit && !cur.end; {
		p, err := cur.poll(ctx, limit-len(ms))
		if err != nil {
			return nil, err
		}
		if len(p.ms) == 0 {
			empty++
			cur.end = empty == emptyAnswers
			continue
		}
		empty = 0
		ms = append(ms, cur.look(p)...)
	}
	return ms, nil
}

// poll receives some messages.
func (cur *cursor) poll(ctx context.Context, limit int) (*poll, error) {
	in := cur.inFlight
	p := in.poll(asking{limit: limit, wait: browseWait, lease: browseLease})
	if p == nil {
		return nil, transport.ErrClosed
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		p.end()
		if len(p.ms) == 0 {
			return nil, ctx.Err()
		}
	}
	return p, p.err
}

// look takes in what p brought. What was sent after Browse does not show; when there is nothing else, all that was
// there has been seen.
func (cur *cursor) look(p *poll) (ms []*transport.Message) {
	cur.end = true
	for i := range p.ms {
		d, _ := cur.inFlight.take(&p.ms[i], p)
		cur.held = append(cur.held, d)
		if sentAt(&p.ms[i]).After(cur.began.Add(p.skew)) {
			continue
		}
		cur.end = false
		cur.seen[&d.message] = d
		ms = append(ms, &d.message)
	}
	return ms
}

// renew keeps hidden what was looked at, ten messages in a request.
func (cur *cursor) renew(ctx context.Context) error {
	var due []*delivery
	for _, d := range cur.held {
		if d.isOpen() && d.left() < browseLease/2 {
			due = append(due, d)
		}
	}
	for _, err := range cur.inFlight.renew(ctx, due, browseLease) {
		if err != nil && !errors.Is(err, transport.ErrLeaseLost) { // a lost one shows again, or has been taken by somebody
			return err
		}
	}
	return nil
}

// Take implements [transport.Cursor]: first the operations are sent, then the message is deleted.
func (cur *cursor) Take(ctx context.Context, m *transport.Message, ops []transport.Operation) error {
	d := cur.seen[m]
	if d == nil || !d.isOpen() || d.left() <= 0 {
		return fmt.Errorf("sqs: take a message of %q: %w", cur.inFlight.queue, transport.ErrNotFound)
	}
	c := cur.inFlight.conn
	if err := c.lookFor(ctx, ops); err != nil {
		return err
	}
	if _, err := c.Dispatch(ctx, ops); err != nil {
		return err
	}
	if err := d.Complete(ctx); err != nil {
		return fmt.Errorf("%w: %w", err, transport.ErrOutcomeUnknown)
	}
	delete(cur.seen, m)
	return nil
}

var errNoPublish = errors.New("sqs: a cursor sends to queues only")

// lookFor finds out which destinations are missing before anything is sent.
func (c *conn) lookFor(ctx context.Context, ops []transport.Operation) error {
	var failed []transport.OpError
	for i := range ops {
		err := errNoPublish
		if ops[i].Queue != "" {
			_, err = c.queueURL(ctx, ops[i].Queue)
		}
		if err != nil {
			failed = append(failed, transport.OpError{Index: i, Err: err})
		}
	}
	if len(failed) > 0 {
		return &transport.DispatchError{Ops: failed, Total: len(ops)}
	}
	return nil
}

// Close implements [transport.Cursor]: what was not taken is there again.
func (cur *cursor) Close() error {
	ctx, cancel := context.WithTimeout(cur.inFlight.conn.ctx, closeTimeout)
	defer cancel()
	cur.inFlight.release(ctx, cur.held)
	cur.held, cur.seen, cur.end = nil, nil, true
	return nil
}
