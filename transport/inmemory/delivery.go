package inmemory

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ held                   = (*delivery)(nil)
	_ transport.Completer    = (*delivery)(nil)
	_ transport.Transactor   = (*delivery)(nil)
	_ transport.DeadLetterer = (*delivery)(nil)
)

// held is a delivery of this package, also one without some capabilities.
type held interface {
	transport.Delivery
	self() *delivery
}

type delivery struct {
	conn     *conn
	item     *item
	attempts int
}

func (d *delivery) self() *delivery { return d }

func (d *delivery) Message() *transport.Message { return &d.item.message }

func (d *delivery) Attempt() transport.Attempt {
	if d.conn.t.offers(Exact) {
		return transport.Attempt{N: d.attempts, Exact: true}
	}
	return transport.Attempt{N: min(d.attempts, 2)}
}

func (d *delivery) Complete(ctx context.Context) error {
	return d.settle(ctx, "Complete", func(it *item) error {
		it.queue.reclaim(it)
		return nil
	})
}

func (d *delivery) CompleteWith(ctx context.Context, ops []transport.Operation) error {
	refused := d.conn.check(ctx, ops)
	return d.settle(ctx, "CompleteWith", func(it *item) error {
		return d.completeWith(it, ops, refused, nil)
	})
}

// completeWith completes, writes and sends, or does nothing. The broker is locked.
func (d *delivery) completeWith(
	it *item, ops []transport.Operation, refused []error, writes []func(),
) error {
	if refused = d.conn.b.missing(ops, refused); refused != nil {
		return dispatchError(refused)
	}
	for _, write := range writes {
		write()
	}
	it.queue.reclaim(it)
	d.conn.put(ops, nil)
	return nil
}

func (d *delivery) Retry(ctx context.Context) error {
	return d.settle(ctx, "Retry", func(it *item) error {
		it.queue.reclaim(it)
		it.queue.restore(it, time.Now())
		return nil
	})
}

func (d *delivery) Release(ctx context.Context) error {
	return d.settle(ctx, "Release", func(it *item) error {
		it.queue.reclaim(it)
		if d.conn.t.offers(FreeRelease) {
			it.attempts--
		}
		it.queue.restore(it, time.Now())
		return nil
	})
}

// DeadLetter moves the message to the queue's dead-letter queue, whose name ends in ".dead", with the native property
// "DeadLetterReason".
func (d *delivery) DeadLetter(ctx context.Context, reason string) error {
	return d.settle(ctx, "DeadLetter", func(it *item) error {
		it.queue.reclaim(it)
		dead := &item{message: it.message}
		dead.message.Native = map[string]string{"DeadLetterReason": reason}
		d.conn.b.create(it.queue.name+deadSuffix).put(dead, time.Now())
		return nil
	})
}

// settle calls f with the broker locked, if the delivery holds the message.
func (d *delivery) settle(ctx context.Context, verb string, f func(*item) error) error {
	q := d.item.queue
	if err := d.conn.t.refuse(ctx, verb, q.name); err != nil {
		return err
	}
	return d.conn.locked(func() error {
		q.advance()
		if d.item.holder != d || q.removed {
			return fmt.Errorf("inmemory: %s: %w", verb, transport.ErrLeaseLost)
		}
		return f(d.item)
	})
}
