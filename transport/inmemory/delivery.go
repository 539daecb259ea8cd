package inmemory

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// held is a delivery of this package, also one without some capabilities.
type held interface {
	transport.Delivery
	transport.Deferrer
	self() *delivery
}

type delivery struct {
	conn     *conn
	item     *item
	attempts int
	inbox    string                // of key
	key      *transport.HandledKey // recorded by its completion, if there is one
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
		if err := d.conn.unhandled(d.inbox, d.key); err != nil {
			return err
		}
		it.queue.end(it)
		d.conn.record(d.inbox, d.key)
		return nil
	})
}

// RecordHandled implements [transport.HandledRecorder].
func (d *delivery) RecordHandled(inbox string, key *transport.HandledKey) {
	d.inbox, d.key = inbox, key
}

func (d *delivery) CompleteWith(ctx context.Context, ops []transport.Operation) error {
	return d.completeWith(ctx, ops, nil)
}

// completeWith completes, records, writes and sends, or does nothing.
func (d *delivery) completeWith(ctx context.Context, ops []transport.Operation, writes []func()) error {
	failed := d.conn.check(ctx, ops)
	return d.settle(ctx, "CompleteWith", func(it *item) error {
		if err := d.conn.unhandled(d.inbox, d.key); err != nil {
			return err
		}
		if failed = d.conn.b.missing(ops, failed); failed != nil {
			return failed.err(len(ops))
		}
		for _, write := range writes {
			write()
		}
		it.queue.end(it)
		d.conn.record(d.inbox, d.key)
		d.conn.put(ops, nil)
		return nil
	})
}

func (d *delivery) Retry(ctx context.Context) error {
	return d.settle(ctx, "Retry", func(it *item) error {
		it.queue.restore(it, time.Now())
		return nil
	})
}

func (d *delivery) Release(ctx context.Context) error {
	return d.settle(ctx, "Release", func(it *item) error {
		if d.conn.t.offers(FreeRelease) {
			it.attempts--
		}
		it.queue.restore(it, time.Now())
		return nil
	})
}

// Defer implements [transport.Deferrer].
func (d *delivery) Defer(ctx context.Context, after time.Duration) (handle string, err error) {
	err = d.settle(ctx, "Defer", func(it *item) error {
		if d.conn.t.offers(FreeRelease) {
			it.attempts--
		}
		it.queue.postpone(it, time.Now(), after)
		handle = strconv.FormatUint(it.seq, 10)
		return nil
	})
	return handle, err
}

// DeadLetter moves the message to the queue's dead-letter queue, whose name ends in ".dead", with
// the native property "DeadLetterReason".
func (d *delivery) DeadLetter(ctx context.Context, reason string) error {
	return d.settle(ctx, "DeadLetter", func(it *item) error {
		it.queue.end(it)
		dead := &item{message: it.message}
		dead.message.Native = map[string]string{"DeadLetterReason": reason}
		d.conn.b.create(it.queue.name+deadSuffix).put(dead, time.Now(), 0)
		return nil
	})
}

// settle calls f with the broker locked, if the delivery holds the message.
func (d *delivery) settle(ctx context.Context, verb string, f func(*item) error) error {
	q := d.item.queue
	return d.conn.call(ctx, verb, q.name, func() error {
		q.advance()
		if d.item.holder != d || q.b.queues[q.name] != q {
			return fmt.Errorf("inmemory: %s: %w", verb, transport.ErrLeaseLost)
		}
		return f(d.item)
	})
}
