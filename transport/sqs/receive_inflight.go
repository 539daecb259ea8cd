package sqs

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// inbox is a queue that is received from: what came from it and is not settled, and what settles. It outlives its
// receivers.
type inbox struct {
	conn    *conn
	queue   string
	url     string
	deletes *gather[settling]
	hides   *gather[settling]
	done    processed
	pace    pace // of receiving

	mu   sync.Mutex           // guards what follows
	held map[string]*delivery // by SQS's message ids: the last hand-out of each
	open int                  // deliveries that nobody has begun to settle
}

// inbox is that of a queue that exists.
func (c *conn) inbox(ctx context.Context, queue string) (*inbox, error) {
	url, err := c.queueURL(ctx, queue)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	in := c.inboxes[queue]
	if in == nil {
		in = &inbox{conn: c, queue: queue, url: url, held: make(map[string]*delivery)}
		in.deletes = newGather(&c.tasks, completeLinger, func(ss []settling) []error { return ended(ss, in.delete(c.ctx, ss)) })
		in.deletes.alone = in.nobodyElse
		in.hides = newGather(&c.tasks, hideLinger, func(ss []settling) []error { return ended(ss, in.hide(c.ctx, ss)) })
		c.inboxes[queue] = in
	}
	return in, nil
}

// nobodyElse tells whether everything that is held settles already.
func (in *inbox) nobodyElse() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.open <= 0
}

// opened counts deliveries that nobody settles.
func (in *inbox) opened(n int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.open += n
}

// take makes a delivery of a message that came over a poll. An older hand-out of the message that is still held has lost it.
func (in *inbox) take(m *types.Message, p *poll) (*delivery, received) {
	r := in.decode(m, p)
	d := &delivery{
		inbox: in, message: r.Message, attempt: attemptOf(m), handle: value(m.ReceiptHandle),
		received: p.handedOut(), leased: p.handedOut().Add(p.lease), completesFirst: p.completesFirst,
	}
	in.mu.Lock()
	old := in.held[r.NativeID]
	in.held[r.NativeID] = d
	in.open++
	in.mu.Unlock()
	if old != nil {
		old.lose()
	}
	return d, r
}

func (in *inbox) decode(m *types.Message, p *poll) received {
	if strings.HasSuffix(in.queue, delaySuffix) {
		return asHop(m, p.came.Add(p.skew))
	}
	return decode(m)
}

// deliver is take for a handler. It is nil for a message that no handler is to see: one that was completed before, one that nobody
// wants any more, or one that is not due yet.
func (in *inbox) deliver(m *types.Message, p *poll) *delivery {
	d, r := in.take(m, p)
	now := time.Now()
	aside := func(f func(context.Context) error) {
		in.conn.tasks.start(func() {
			if err := f(in.conn.ctx); err != nil && !in.conn.closed() {
				in.conn.log.Warn("a message could not be put aside: it comes again", "queue", in.queue, "message", r.ID, "err", err)
			}
		})
	}
	switch {
	case in.done.has(r.NativeID), r.expired(now, p.skew):
		aside(d.Complete)
	case r.due.After(now):
		aside(func(ctx context.Context) error { return in.keepBack(ctx, d, m, r.due) })
	case in.isRedundant(d, m):
		aside(d.Complete)
	default:
		return d
	}
	return nil
}

// keepBack puts a copy into the place of a message that is not due yet, for SQS to hold back.
func (in *inbox) keepBack(ctx context.Context, d *delivery, m *types.Message, due time.Time) error {
	e := entry{
		payload: payload{body: value(m.Body), group: m.Attributes[messageGroup]},
		delay:   wholeDelay(min(max(time.Until(due), 0), maxDelay)),
	}
	e.take(m.MessageAttributes)
	to, err := in.conn.sender(ctx, in.queue)
	if err != nil {
		return err
	}
	if err := to.do(ctx, []entry{e})[0]; err != nil {
		return err
	}
	return d.Complete(ctx)
}

// forget lets go of a delivery that is settled or lost.
func (in *inbox) forget(d *delivery) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.held[d.message.NativeID] == d {
		delete(in.held, d.message.NativeID)
	}
}

// unsettled are the deliveries that are held.
func (in *inbox) unsettled() []*delivery {
	in.mu.Lock()
	defer in.mu.Unlock()
	ds := make([]*delivery, 0, len(in.held))
	for _, d := range in.held {
		ds = append(ds, d)
	}
	return ds
}
