package sqs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/batch"
	"github.com/holdfast-go/holdfast/transport"
)

// Dispatch sends the operations for one queue or topic together and in order, and those for
// different ones concurrently.
func (c *conn) Dispatch(ctx context.Context, ops []transport.Operation) ([]transport.Receipt, error) {
	switch {
	case c.closed():
		return nil, transport.FailAll(len(ops), transport.ErrClosed)
	case ctx.Err() != nil:
		return nil, transport.FailAll(len(ops), context.Cause(ctx))
	}
	d := dispatch{conn: c, errs: make([]error, len(ops)), now: time.Now()}
	for i := range ops {
		if err := d.add(ctx, i, &ops[i]); err != nil {
			d.errs[i] = beforeSending(err)
		}
	}
	d.send(ctx)
	return nil, dispatchError(d.errs)
}

// dispatch is one call of Dispatch.
type dispatch struct {
	conn  *conn
	now   time.Time
	parts []*part

	mu   sync.Mutex // guards errs while the parts are sent
	errs []error    // of each operation
}

// part has the entries for one queue or topic.
type part struct {
	to      *batch.Batcher[entry]
	entries []entry
	indexes []int // of the operations; one that is published to several topics is in several parts
}

// add encodes an operation and adds it to the parts of its destinations.
func (d *dispatch) add(ctx context.Context, i int, op *transport.Operation) error {
	c, delay := d.conn, op.Delay(d.now)
	if err := c.refusal(op, delay); err != nil {
		return err
	}
	p := c.encode(op.Message, d.now, delay, op.TTL)
	if isCopy(op) { // it must not be refused for its size
		room, err := c.roomForCopy(ctx, op.Queue, p.size(), delay)
		if err != nil {
			return err
		}
		for _, f := range []form{raw, packed} {
			if p.size() > room {
				p = c.encodeAs(f, op.Message, d.now, delay, op.TTL)
			}
		}
		p = p.withBinaries(op.Message.Native, room, hopAttributes)
	}
	if op.Queue == "" {
		return d.addPublish(ctx, i, op, p, delay)
	}
	return d.addSend(ctx, i, op, p, delay)
}

// isCopy reports whether an operation sends a copy of a received message.
func isCopy(op *transport.Operation) bool { return op.Message.NativeID != "" && op.Queue != "" }

// Check implements [transport.Checker].
func (c *conn) Check(op *transport.Operation) error { return c.refusal(op, op.Delay(time.Now())) }

// refusal returns the error of an operation that is refused for its content.
func (c *conn) refusal(op *transport.Operation, delay time.Duration) error {
	limits := c.Limits()
	switch {
	case op.Message == nil, op.Queue == "" && len(op.Types) == 0:
		return errors.New("sqs: the operation has no message, or neither a queue nor types")
	case len(op.Message.Body) > limits.MaxBody && !isCopy(op):
		return &transport.TooLargeError{What: "body", Size: len(op.Message.Body), Max: limits.MaxBody}
	case op.Message.Headers.Size() > limits.MaxHeaders && !isCopy(op):
		return &transport.TooLargeError{What: "headers", Size: op.Message.Headers.Size(), Max: limits.MaxHeaders}
	case op.Message.Headers.Len() >= header.MaxCount: // with the id, its receiver could not read it
		return &transport.TooLargeError{What: "header count", Size: op.Message.Headers.Len(), Max: header.MaxCount - 1}
	case delay > limits.MaxDelay:
		return fmt.Errorf("sqs: a delay of %v is over the longest, %v", delay, limits.MaxDelay)
	}
	if name, found := op.Message.Headers.NotUTF8(); found && !isCopy(op) { // JSON has no such text
		return fmt.Errorf("sqs: the header %.100q, or its value, is not valid UTF-8: %w", name, transport.ErrContent)
	}
	return nil
}

func (d *dispatch) addSend(ctx context.Context, i int, op *transport.Operation, p payload, delay time.Duration) error {
	c := d.conn
	queue, e := op.Queue, entry{payload: p}
	if delay <= maxDelay {
		e.delay = wholeDelay(delay)
	} else {
		var err error
		if queue, e, err = c.longDelay(ctx, op, delay, p); err != nil {
			return err
		}
	}
	room, err := c.roomIn(ctx, queue, e.size())
	if err != nil {
		return err
	}
	to, err := c.sender(ctx, queue)
	if err != nil {
		return err
	}
	return d.put(i, to, e, room)
}

// roomForCopy returns the size limit of a copy that is sent to a queue.
func (c *conn) roomForCopy(ctx context.Context, queue string, size int, delay time.Duration) (int, error) {
	room, err := c.roomIn(ctx, queue, size)
	if err != nil || delay <= maxDelay {
		return room, err
	}
	waits, err := c.roomIn(ctx, queue+delaySuffix, size)
	if err != nil {
		return 0, c.noDelayQueue(ctx, queue, err)
	}
	return min(room, waits) - frame, nil // a hop adds attributes
}

// wholeDelay returns a delay in SQS's whole seconds, rounded up.
func wholeDelay(d time.Duration) int32 {
	return int32((d + time.Second - 1) / time.Second) //nolint:gosec // at most maxDelay
}

// addPublish adds a message to the parts of its topics: SNS knows no base types. Nor does it know
// delays: the receiver of each subscriber delays the message.
func (d *dispatch) addPublish(
	ctx context.Context, i int, op *transport.Operation, p payload, delay time.Duration,
) error {
	types := d.conn.cfg.EventTopics.ofPublish(op.Types)
	topics := make([]string, len(types))
	for n, typeName := range types {
		var err error
		if topics[n], err = d.conn.topicARN(ctx, typeName); err != nil {
			return err
		}
	}
	if delay > 0 {
		p.attributes = append(p.attributes, attribute{dueAt, strconv.FormatInt(d.now.Add(delay).UnixMicro(), 10)})
	}
	for n, arn := range topics {
		e := entry{payload: p}
		if len(topics) > 1 {
			e.attributes = append(slices.Clip(p.attributes), attribute{copyAttribute, strconv.Itoa(n)})
		}
		room, err := d.conn.roomOf(ctx, arn, e.size())
		if err != nil {
			return err
		}
		if err := d.put(i, d.conn.publisher(arn), e, room); err != nil {
			return err
		}
	}
	return nil
}

// put adds an entry to the part of its destination, which accepts room bytes.
func (d *dispatch) put(i int, to *batch.Batcher[entry], e entry, room int) error {
	if n := e.size(); n > room {
		return &transport.TooLargeError{What: "message", Size: n, Max: room}
	}
	at := slices.IndexFunc(d.parts, func(p *part) bool { return p.to == to })
	if at < 0 {
		at = len(d.parts)
		d.parts = append(d.parts, &part{to: to})
	}
	p := d.parts[at]
	p.entries, p.indexes = append(p.entries, e), append(p.indexes, i)
	return nil
}

// send sends all parts and waits for the answers.
func (d *dispatch) send(ctx context.Context) {
	if len(d.parts) == 1 {
		d.sendPart(ctx, d.parts[0])
		return
	}
	var all sync.WaitGroup
	for _, p := range d.parts {
		all.Go(func() { d.sendPart(ctx, p) })
	}
	all.Wait()
}

func (d *dispatch) sendPart(ctx context.Context, p *part) {
	errs := p.to.DoAll(ctx, p.entries)
	d.mu.Lock()
	defer d.mu.Unlock()
	for n, err := range errs {
		if i := p.indexes[n]; d.errs[i] == nil {
			d.errs[i] = batchError(err)
		}
	}
}

// dispatchError returns the error of a dispatch from those of its operations.
func dispatchError(errs []error) error {
	var failed []transport.OpError
	for i, err := range errs {
		if err != nil {
			failed = append(failed, transport.OpError{Index: i, Err: err})
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return &transport.DispatchError{Ops: failed, Total: len(errs)}
}
