package sqs

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/internal/batch"
)

// inFlight is the in-flight set of a queue: the deliveries that are not settled, and the batchers
// that settle them. It outlives its receivers.
type inFlight struct {
	conn      *conn
	queue     string
	url       string
	deletes   *batch.Batcher[settling]
	hides     *batch.Batcher[settling]
	processed processed
	pace      pace         // of receiving
	open      atomic.Int64 // number of deliveries that no caller settles

	mu   sync.Mutex           // guards held, and the copies of deliveries
	held map[string]*delivery // by SQS's message id: the latest delivery of each message
}

// inFlight returns the in-flight set of a queue, which must exist.
func (c *conn) inFlight(ctx context.Context, queue string) (*inFlight, error) {
	c.urls.forget(queue) // it may have been deleted
	url, err := c.queueURL(ctx, queue)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	in := c.inFlights[queue]
	if in == nil {
		in = &inFlight{conn: c, queue: queue, url: url, held: make(map[string]*delivery)}
		noneOpen := func() bool { return in.open.Load() <= 0 }
		in.deletes = newBatcher(c, batch.Config[settling]{Linger: completeLinger, NoneExpected: noneOpen},
			func(ss []settling) []error { return ended(ss, in.delete(c.ctx, ss)) })
		in.hides = newBatcher(c, batch.Config[settling]{Linger: hideLinger},
			func(ss []settling) []error { return ended(ss, in.hide(c.ctx, ss)) })
		c.inFlights[queue] = in
	}
	return in, nil
}

// take makes a delivery of a polled message. An older delivery of the message loses its lease.
func (in *inFlight) take(m *types.Message, p *poll) (*delivery, received) {
	var r received
	if strings.HasSuffix(in.queue, delaySuffix) {
		r = asHop(m, p.came.Add(p.skew))
	} else {
		r = decode(m)
	}
	d := &delivery{
		inFlight: in, message: r.Message, attempt: attemptOf(m), handle: value(m.ReceiptHandle),
		received: p.delivered(), leased: p.delivered().Add(p.lease), completesFirst: p.completesFirst,
	}
	in.mu.Lock()
	old := in.held[r.NativeID]
	in.held[r.NativeID] = d
	in.open.Add(1)
	in.mu.Unlock()
	if old != nil {
		old.lose()
	}
	return d, r
}

// deliver is take for a handler. It returns nil for a message that must not be handled: one that
// was completed before, is expired, is a redundant copy, or is not due yet.
func (in *inFlight) deliver(m *types.Message, p *poll) *delivery {
	d, r := in.take(m, p)
	now := time.Now()
	aside := func(f func(context.Context) error) {
		in.conn.tasks.Go(func() {
			if err := f(in.conn.ctx); err != nil && !in.conn.closed() {
				in.conn.log.Warn("a message that must not be handled could not be removed: it will be delivered again",
					"queue", in.queue, "message", r.ID, "err", err)
			}
		})
	}
	switch {
	case in.processed.has(r.NativeID), r.expired(now, p.skew):
		aside(d.Complete)
	case r.due.After(now):
		aside(func(ctx context.Context) error { return in.delay(ctx, d, m, r.due) })
	case in.isRedundant(d, m):
		aside(d.Complete)
	default:
		in.warnOfUnknown(d, m)
		in.warnOfEnvelope(m)
		return d
	}
	return nil
}

// delay replaces a message that is not due yet with a copy that SQS delays.
func (in *inFlight) delay(ctx context.Context, d *delivery, m *types.Message, due time.Time) error {
	e := entry{
		payload: payload{body: value(m.Body), group: m.Attributes[messageGroup]},
		delay:   wholeDelay(min(max(time.Until(due), 0), maxDelay)),
	}
	e.take(m.MessageAttributes)
	if err := in.conn.send(ctx, in.queue, e); err != nil {
		return err
	}
	return d.Complete(ctx)
}

// forget removes a delivery that is settled or lost.
func (in *inFlight) forget(d *delivery) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.held[d.message.NativeID] == d {
		delete(in.held, d.message.NativeID)
	}
}

// unsettled returns the deliveries of the set.
func (in *inFlight) unsettled() []*delivery {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.Collect(maps.Values(in.held))
}
