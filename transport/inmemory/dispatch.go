package inmemory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

func (c *conn) Dispatch(ctx context.Context, ops []transport.Operation) ([]transport.Receipt, error) {
	failed := c.check(ctx, ops)
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	if c.closed {
		return nil, transport.FailAll(len(ops), transport.ErrClosed)
	}
	failed = c.b.missing(ops, failed)
	return c.put(ops, failed), failed.err(len(ops))
}

// failures are the operations of a dispatch that are refused.
type failures []transport.OpError

func (f failures) has(i int) bool {
	return slices.ContainsFunc(f, func(e transport.OpError) bool { return e.Index == i })
}

func (f failures) err(total int) error {
	if f == nil {
		return nil
	}
	slices.SortFunc(f, func(a, b transport.OpError) int { return a.Index - b.Index })
	return &transport.DispatchError{Total: total, Ops: f}
}

// check returns the operations that are refused for their content.
func (c *conn) check(ctx context.Context, ops []transport.Operation) (failed failures) {
	now := time.Now()
	for i := range ops {
		if err := c.checkOne(ctx, &ops[i], now); err != nil {
			failed = append(failed, transport.OpError{Index: i, Err: err})
		}
	}
	return failed
}

// objectOf returns the queue of an operation, or its first type.
func objectOf(op *transport.Operation) string {
	if op.Queue == "" && len(op.Types) > 0 {
		return op.Types[0]
	}
	return op.Queue
}

func (c *conn) checkOne(ctx context.Context, op *transport.Operation, now time.Time) error {
	object := objectOf(op)
	if err := c.t.refuse(ctx, "Dispatch", object); err != nil {
		return err
	}
	return c.refusal(op, now)
}

// Check implements [transport.Checker].
func (c *conn) Check(op *transport.Operation) error { return c.refusal(op, time.Now()) }

// refusal returns the error of an operation that is refused for its content.
func (c *conn) refusal(op *transport.Operation, now time.Time) error {
	object := objectOf(op)
	limits, m, delay := c.Limits(), op.Message, op.Delay(now)
	switch {
	case object == "":
		return errors.New("inmemory: operation without a queue or types")
	case op.Queue == "" && op.Name != "":
		return errors.New("inmemory: an operation with a name has no queue")
	case op.Message == nil && op.Name != "":
		return nil
	case op.Queue == "" && !c.t.offers(Subscriber):
		return fmt.Errorf("inmemory: publish %q: not offered", object)
	case limits.MaxBody > 0 && len(m.Body) > limits.MaxBody:
		return &transport.TooLargeError{What: "body", Size: len(m.Body), Max: limits.MaxBody}
	case limits.MaxHeaders > 0 && m.Headers.Size() > limits.MaxHeaders:
		return &transport.TooLargeError{What: "headers", Size: m.Headers.Size(), Max: limits.MaxHeaders}
	case delay > limits.MaxDelay:
		return fmt.Errorf("inmemory: a delay of %v is over the limit of %v", delay, limits.MaxDelay)
	case c.t.Refuse != nil:
		return c.t.Refuse(op)
	}
	return nil
}

// missing adds the operations whose queue does not exist to the failed ones, and those with a name
// for a queue without timers.
func (b *broker) missing(ops []transport.Operation, failed failures) failures {
	for i := range ops {
		if ops[i].Queue == "" || failed.has(i) {
			continue
		}
		q, err := b.find(ops[i].Queue)
		if err == nil && ops[i].Name != "" && q.names == nil {
			err = fmt.Errorf("inmemory: queue %q has no timers: install it with Queue.Timers", q.name)
		}
		if err != nil {
			failed = append(failed, transport.OpError{Index: i, Err: err})
		}
	}
	return failed
}

// put carries out the operations that have not failed. Only a delayed send has a receipt: a delayed
// publish is a message per subscriber.
func (c *conn) put(ops []transport.Operation, failed failures) (receipts []transport.Receipt) {
	now := time.Now()
	for i := range ops {
		op := &ops[i]
		delay := op.Delay(now)
		switch {
		case failed.has(i):
		case op.Queue == "":
			for _, q := range c.b.destinations(op.Types) {
				q.put(newItem(op), now, delay)
			}
		case op.Name != "":
			q := c.b.queues[op.Queue]
			q.advance() // an expired one is gone
			if q.vacate(op.Name); op.Message != nil {
				it := newItem(op)
				it.name, q.names[op.Name] = op.Name, it
				q.put(it, now, delay)
			}
		default:
			it := newItem(op)
			c.b.queues[op.Queue].put(it, now, delay)
			if delay <= 0 {
				continue
			}
			if receipts == nil {
				receipts = make([]transport.Receipt, len(ops))
			}
			it.receipt = strconv.FormatUint(it.seq, 10)
			c.b.receipts[it.receipt], receipts[i].Cancel = it, it.receipt
		}
	}
	return receipts
}

// destinations returns the queues that are subscribed to any of the types, each once.
func (b *broker) destinations(types []string) []*queue {
	if len(types) == 1 {
		return b.subscribers[types[0]]
	}
	var found []*queue
	for _, name := range types {
		for _, q := range b.subscribers[name] {
			if !slices.Contains(found, q) {
				found = append(found, q)
			}
		}
	}
	return found
}

// newItem copies the message of an operation, which its sender may reuse afterwards, without the
// properties of an earlier delivery.
func newItem(op *transport.Operation) *item {
	m := op.Message
	return &item{
		message: transport.Message{ID: m.ID, Headers: m.Headers.Clone(), Body: slices.Clone(m.Body)},
		ttl:     op.TTL,
	}
}
