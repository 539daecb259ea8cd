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
	refused := c.check(ctx, ops)
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	if c.closed {
		return nil, transport.FailAll(len(ops), transport.ErrClosed)
	}
	refused = c.b.missing(ops, refused)
	return c.put(ops, refused), dispatchError(refused)
}

// check returns the errors of operations that are refused for their content. It is nil, or has an entry per operation.
func (c *conn) check(ctx context.Context, ops []transport.Operation) (refused []error) {
	for i := range ops {
		if err := c.checkOne(ctx, &ops[i]); err != nil {
			refused = refuse(refused, len(ops), i, err)
		}
	}
	return refused
}

func (c *conn) checkOne(ctx context.Context, op *transport.Operation) error {
	object := op.Queue
	if object == "" && len(op.Types) > 0 {
		object = op.Types[0]
	}
	if err := c.t.refuse(ctx, "Dispatch", object); err != nil {
		return err
	}
	if object == "" {
		return errors.New("inmemory: operation without a queue or types")
	}
	if op.Queue == "" && !c.t.offers(Subscriber) {
		return fmt.Errorf("inmemory: publish %q: not offered", object)
	}
	if size := len(op.Message.Body); c.t.MaxBody > 0 && size > c.t.MaxBody {
		return &transport.TooLargeError{What: "body", Size: size, Max: c.t.MaxBody}
	}
	if c.t.MaxHeaders > 0 && op.Message.Headers.Size() > c.t.MaxHeaders {
		return &transport.TooLargeError{
			What: "headers", Size: op.Message.Headers.Size(), Max: c.t.MaxHeaders,
		}
	}
	return c.checkDelay(op)
}

func (c *conn) checkDelay(op *transport.Operation) error {
	if op.After <= 0 && op.At.IsZero() {
		return nil
	}
	delay, limit := op.Delay(time.Now()), c.Limits().MaxDelay
	if delay > limit {
		return fmt.Errorf("inmemory: a delay of %v is over the limit of %v", delay, limit)
	}
	return nil
}

// missing adds the operations whose queue does not exist to the refused ones.
func (b *broker) missing(ops []transport.Operation, refused []error) []error {
	for i := range ops {
		if ops[i].Queue == "" || refused != nil && refused[i] != nil {
			continue
		}
		if _, err := b.find(ops[i].Queue); err != nil {
			refused = refuse(refused, len(ops), i, err)
		}
	}
	return refused
}

func refuse(refused []error, total, i int, err error) []error {
	if refused == nil {
		refused = make([]error, total)
	}
	refused[i] = err
	return refused
}

func dispatchError(refused []error) error {
	if refused == nil {
		return nil
	}
	e := &transport.DispatchError{Total: len(refused)}
	for i, err := range refused {
		if err != nil {
			e.Ops = append(e.Ops, transport.OpError{Index: i, Err: err})
		}
	}
	return e
}

// put carries out the operations that were not refused.
func (c *conn) put(ops []transport.Operation, refused []error) (receipts []transport.Receipt) {
	now := time.Now()
	for i := range ops {
		if refused != nil && refused[i] != nil {
			continue
		}
		cancel := c.putOne(&ops[i], now)
		if cancel != "" && receipts == nil {
			receipts = make([]transport.Receipt, len(ops))
		}
		if cancel != "" {
			receipts[i].Cancel = cancel
		}
	}
	return receipts
}

// putOne returns the handle to cancel a delayed send. A delayed publish has none: it is a message per subscriber.
func (c *conn) putOne(op *transport.Operation, now time.Time) (cancel string) {
	delay := op.Delay(now)
	if op.Queue != "" {
		it := newItem(op)
		c.b.queues[op.Queue].enter(it, now, delay)
		if delay > 0 {
			it.receipt = strconv.FormatUint(it.seq, 10)
			c.b.receipts[it.receipt] = it
		}
		return it.receipt
	}
	for _, q := range c.b.destinations(op.Types) {
		q.enter(newItem(op), now, delay)
	}
	return ""
}

func (q *queue) enter(it *item, now time.Time, delay time.Duration) {
	if delay > 0 {
		q.delay(it, now.Add(delay))
		return
	}
	q.put(it, now)
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

// newItem copies the message of an operation, which its sender may reuse afterwards, without the properties of an
// earlier delivery.
func newItem(op *transport.Operation) *item {
	return &item{
		message: transport.Message{
			ID:      op.Message.ID,
			Headers: op.Message.Headers.Clone(),
			Body:    slices.Clone(op.Message.Body),
		},
		ttl: op.TTL,
	}
}
