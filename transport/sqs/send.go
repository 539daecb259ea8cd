package sqs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// errAbandoned is of a request whose caller has stopped waiting for the answer.
var errAbandoned = fmt.Errorf("sqs: no answer from AWS yet: %w", transport.ErrOutcomeUnknown)

// Dispatch sends what goes to the same queue or topic together, in order, and different ones at the same time.
func (c *conn) Dispatch(ctx context.Context, ops []transport.Operation) ([]transport.Receipt, error) {
	switch {
	case c.closed():
		return nil, transport.FailAll(len(ops), transport.ErrClosed)
	case ctx.Err() != nil:
		return nil, transport.FailAll(len(ops), context.Cause(ctx))
	}
	b := batch{conn: c, errs: make([]error, len(ops)), now: time.Now()}
	for i := range ops {
		if err := b.add(ctx, i, &ops[i]); err != nil {
			b.errs[i] = beforeSending(err)
		}
	}
	b.send(ctx)
	return nil, b.err()
}

// batch is one Dispatch under way.
type batch struct {
	conn  *conn
	now   time.Time
	lines []*line
	errs  []error // of each operation

	mu sync.Mutex // guards errs while lines are sent
}

// line is what goes to one queue or topic.
type line struct {
	to      *gather[entry]
	entries []entry
	indexes []int // of the operations; one that is published to several topics is in several lines
}

// add finds out where an operation goes and what is sent there.
func (b *batch) add(ctx context.Context, i int, op *transport.Operation) error {
	c := b.conn
	limits := c.Limits()
	isCopy := op.Message.NativeID != "" && op.Queue != "" // of a received message
	if n := len(op.Message.Body); n > limits.MaxBody && !isCopy {
		return &transport.TooLargeError{What: "body", Size: n, Max: limits.MaxBody}
	}
	if n := op.Message.Headers.Size(); n > limits.MaxHeaders {
		return &transport.TooLargeError{What: "headers", Size: n, Max: limits.MaxHeaders}
	}
	delay := op.Delay(b.now)
	if delay > limits.MaxDelay {
		return fmt.Errorf("sqs: a delay of %v is over the longest, %v", delay, limits.MaxDelay)
	}
	p := c.encode(op.Message, b.now, delay, op.TTL)
	if isCopy {
		room, err := c.roomForCopy(ctx, op.Queue, p.size(), delay)
		if err != nil {
			return err
		}
		p = c.encodeCopy(op.Message, b.now, delay, op.TTL, room)
	}
	switch {
	case op.Queue == "" && len(op.Types) == 0:
		return errors.New("sqs: the operation has neither a queue nor types")
	case op.Queue == "":
		return b.addPublish(ctx, i, op, p, delay)
	case delay > maxDelay:
		queue, e, err := c.longDelay(ctx, op, delay, p)
		if err != nil {
			return err
		}
		return b.addSend(ctx, i, queue, e)
	default:
		return b.addSend(ctx, i, op.Queue, entry{payload: p, delay: wholeDelay(delay)})
	}
}

// roomForCopy returns how many bytes a copy may have on its way to a queue.
func (c *conn) roomForCopy(ctx context.Context, queue string, size int, delay time.Duration) (int, error) {
	room, err := c.roomIn(ctx, queue, size)
	if err != nil || delay <= maxDelay {
		return room, err
	}
	waits, err := c.roomIn(ctx, queue+delaySuffix, size)
	if err != nil {
		return 0, c.noHops(ctx, queue, err)
	}
	return min(room, waits) - frame, nil // what a message that hops has in addition
}

// wholeDelay is a delay in SQS's whole seconds, rounded up.
func wholeDelay(d time.Duration) int32 {
	return int32((d + time.Second - 1) / time.Second) //nolint:gosec // at most maxDelay
}

func (b *batch) addSend(ctx context.Context, i int, queue string, e entry) error {
	room, err := b.conn.roomIn(ctx, queue, e.size())
	if err != nil {
		return err
	}
	if n := e.size(); n > room {
		return &transport.TooLargeError{What: "message", Size: n, Max: room}
	}
	to, err := b.conn.sender(ctx, queue)
	if err != nil {
		return err
	}
	b.put(i, to, e)
	return nil
}

// addPublish has a message published to the topics of its types. SNS knows no delays: each subscriber's receiver
// keeps back what is not due.
func (b *batch) addPublish(ctx context.Context, i int, op *transport.Operation, p payload, delay time.Duration) error {
	topics, err := b.conn.topics(ctx, op.Types)
	if err != nil {
		return err
	}
	if delay > 0 {
		p.attributes = append(p.attributes, attribute{dueAt, strconv.FormatInt(b.now.Add(delay).UnixMicro(), 10)})
	}
	for _, topic := range topics {
		e := entry{payload: p}
		e.attributes = append(slices.Clip(p.attributes), topic.attributes...)
		room, err := b.conn.roomOf(ctx, topic.arn, e.size())
		if err != nil {
			return err
		}
		if n := e.size(); n > room {
			return &transport.TooLargeError{What: "message", Size: n, Max: room}
		}
		b.put(i, b.conn.publisher(topic.arn), e)
	}
	return nil
}

func (b *batch) put(i int, to *gather[entry], e entry) {
	at := slices.IndexFunc(b.lines, func(l *line) bool { return l.to == to })
	if at < 0 {
		at = len(b.lines)
		b.lines = append(b.lines, &line{to: to})
	}
	l := b.lines[at]
	l.entries, l.indexes = append(l.entries, e), append(l.indexes, i)
}

// send sends all lines and waits for the answers.
func (b *batch) send(ctx context.Context) {
	if len(b.lines) == 1 {
		b.sendLine(ctx, b.lines[0])
		return
	}
	var all sync.WaitGroup
	for _, l := range b.lines {
		all.Go(func() { b.sendLine(ctx, l) })
	}
	all.Wait()
}

// sendLine sends as many as one request takes, and then the next: requests may overtake each other.
func (b *batch) sendLine(ctx context.Context, l *line) {
	for from := 0; from < len(l.entries); {
		to := from + l.to.fit(l.entries[from:])
		errs := l.to.do(ctx, l.entries[from:to])
		b.mu.Lock()
		for n, err := range errs {
			if i := l.indexes[from+n]; err != nil && b.errs[i] == nil {
				b.errs[i] = err
			}
		}
		b.mu.Unlock()
		from = to
	}
}

func (b *batch) err() error {
	var failed []transport.OpError
	for i, err := range b.errs {
		if err != nil {
			failed = append(failed, transport.OpError{Index: i, Err: err})
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return &transport.DispatchError{Ops: failed, Total: len(b.errs)}
}
