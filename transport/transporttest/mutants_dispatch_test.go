package transporttest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/transport"
)

// sending changes the operations of Dispatch.
func sending(change func(ops []transport.Operation) []transport.Operation) func(*faulty) {
	return func(f *faulty) {
		f.dispatch = func(ctx context.Context, c *faultyConn, ops []transport.Operation) ([]transport.Receipt, error) {
			return c.sound.Dispatch(ctx, change(slices.Clone(ops)))
		}
	}
}

// each is a fault in every operation that is sent.
func each(change func(op *transport.Operation)) func(*faulty) {
	return sending(func(ops []transport.Operation) []transport.Operation {
		for i := range ops {
			change(&ops[i])
		}
		return ops
	})
}

// answering changes the results of Dispatch.
func answering(change func(ctx context.Context, ops []transport.Operation, receipts []transport.Receipt, err error,
) ([]transport.Receipt, error),
) func(*faulty) {
	return func(f *faulty) {
		f.dispatch = func(ctx context.Context, c *faultyConn, ops []transport.Operation) ([]transport.Receipt, error) {
			receipts, err := c.sound.Dispatch(ctx, ops)
			return change(ctx, ops, receipts, err)
		}
	}
}

// refusingOdd sends all operations but one whose header is not valid UTF-8. Then the error is that
// of refuse.
func refusingOdd(refuse func(ops []transport.Operation, at int) error) func(*faulty) {
	return func(f *faulty) {
		f.dispatch = func(ctx context.Context, c *faultyConn, ops []transport.Operation) ([]transport.Receipt, error) {
			at := slices.IndexFunc(ops, func(op transport.Operation) bool {
				return op.Message != nil && !utf8.ValidString(op.Message.Headers.Get("Kit.Odd"))
			})
			if at < 0 {
				return c.sound.Dispatch(ctx, ops)
			}
			if _, err := c.sound.Dispatch(ctx, slices.Delete(slices.Clone(ops), at, at+1)); err != nil {
				return nil, err
			}
			return nil, refuse(ops, at)
		}
	}
}

func reversed(ops []transport.Operation) []transport.Operation {
	slices.Reverse(ops)
	return ops
}

var dispatchMutants = []mutant{
	{"dispatch-order", "the order is reversed", sending(reversed)},
	{"dispatch-odd-text", "a text that is not UTF-8 ends the connection", answering(func(_ context.Context, ops []transport.Operation,
		receipts []transport.Receipt, err error,
	) ([]transport.Receipt, error) {
		for i := range ops {
			if m := ops[i].Message; m != nil && !utf8.ValidString(m.Headers.Get("Kit.Odd")) {
				err = transport.FailAll(len(ops), transport.ErrOutcomeUnknown)
			}
		}
		return receipts, err
	})},
	{"dispatch-content", "a refusal does not say that it is one of the content", refusingOdd(func(ops []transport.Operation, at int) error {
		return &transport.DispatchError{Ops: []transport.OpError{{Index: at, Err: errMutant}}, Total: len(ops)}
	})},
	{"dispatch-content", "a refusal of a message fails those beside it", refusingOdd(func(ops []transport.Operation, _ int) error {
		return transport.FailAll(len(ops), transport.ErrContent)
	})},
	{"dispatch-content", "a header is changed where the broker does not take it", each(func(op *transport.Operation) {
		if m := op.Message; m != nil && !utf8.ValidString(m.Headers.Get("Kit.Odd")) {
			changed := *m
			changed.Headers = m.Headers.Clone()
			changed.Headers.Set("Kit.Odd", "?")
			op.Message = &changed
		}
	})},
	{"dispatch-nothing", "no operations are an error", answering(func(_ context.Context, ops []transport.Operation,
		receipts []transport.Receipt, err error,
	) ([]transport.Receipt, error) {
		if len(ops) == 0 {
			err = errMutant
		}
		return receipts, err
	})},
	{"dispatch-no-queue", "a missing queue is swallowed", answering(func(_ context.Context, _ []transport.Operation,
		receipts []transport.Receipt, err error,
	) ([]transport.Receipt, error) {
		if errors.Is(err, transport.ErrNoQueue) {
			err = nil
		}
		return receipts, err
	})},
	{"dispatch-no-queue", "the error is no DispatchError", answering(func(_ context.Context, _ []transport.Operation,
		receipts []transport.Receipt, err error,
	) ([]transport.Receipt, error) {
		if err != nil {
			err = transport.ErrNoQueue
		}
		return receipts, err
	})},
	{"dispatch-partly", "one refused operation fails its neighbours", answering(func(_ context.Context,
		ops []transport.Operation, receipts []transport.Receipt, err error,
	) ([]transport.Receipt, error) {
		return receipts, transport.FailAll(len(ops), err)
	})},
	{"dispatch-partly", "neighbours of a refused operation are not sent", func(f *faulty) {
		f.dispatch = func(ctx context.Context, c *faultyConn, ops []transport.Operation) ([]transport.Receipt, error) {
			missing := slices.ContainsFunc(ops, func(op transport.Operation) bool {
				return !slices.Contains(c.queues(), op.Queue)
			})
			if missing {
				ops = slices.DeleteFunc(slices.Clone(ops), func(op transport.Operation) bool {
					return slices.Contains(c.queues(), op.Queue)
				})
			}
			return c.sound.Dispatch(ctx, ops)
		}
	}},
	{"dispatch-apart", "a refused operation fails the next batch too", func(f *faulty) {
		var mu sync.Mutex
		var last error
		f.dispatch = func(ctx context.Context, c *faultyConn, ops []transport.Operation) ([]transport.Receipt, error) {
			mu.Lock()
			defer mu.Unlock()
			if err := last; err != nil {
				last = nil
				return nil, transport.FailAll(len(ops), err)
			}
			var receipts []transport.Receipt
			receipts, last = c.sound.Dispatch(ctx, ops)
			return receipts, last
		}
	}},
	{"dispatch-body-bound", "a body that is too large is cut off", func(f *faulty) {
		f.MaxBody = 64 << 10
		each(func(op *transport.Operation) {
			op.Message = copyOf(op.Message)
			op.Message.Body = op.Message.Body[:min(len(op.Message.Body), f.MaxBody)]
		})(f)
	}},
	{"dispatch-body-bound", "what was measured is not told", func(f *faulty) {
		f.MaxBody = 64 << 10
		answering(func(_ context.Context, _ []transport.Operation, r []transport.Receipt, err error,
		) ([]transport.Receipt, error) {
			if failed, ok := errors.AsType[*transport.DispatchError](err); ok {
				failed.Ops[0].Err = &transport.TooLargeError{What: "body"}
			}
			return r, err
		})(f)
	}},
	{"dispatch-header-bound", "the bound on headers is less than is said", func(f *faulty) {
		f.MaxHeaders = 8 << 10
		f.limits = func(l transport.Limits) transport.Limits { l.MaxHeaders += l.MaxHeaders / 2; return l }
	}},
	{"dispatch-keeps-nothing", "bodies alias the sender's", func(f *faulty) {
		sent := map[string]*transport.Message{}
		f.dispatch = func(ctx context.Context, c *faultyConn, ops []transport.Operation) ([]transport.Receipt, error) {
			for _, op := range ops {
				sent[op.Message.ID] = op.Message
			}
			return c.sound.Dispatch(ctx, ops)
		}
		f.message = func(m *transport.Message) *transport.Message {
			m.Body = sent[m.ID].Body
			return m
		}
	}},
	{"dispatch-changes-nothing", "a header is written into the sender's message", each(func(op *transport.Operation) {
		op.Message.Headers.Set("x-driver", "1")
	})},
	{"dispatch-changes-nothing", "operations are sorted in place", func(f *faulty) {
		f.dispatch = func(ctx context.Context, c *faultyConn, ops []transport.Operation) ([]transport.Receipt, error) {
			defer slices.Reverse(ops)
			return c.sound.Dispatch(ctx, ops)
		}
	}},
	{"dispatch-receipts", "only delayed messages have an entry", answering(func(_ context.Context,
		_ []transport.Operation, receipts []transport.Receipt, err error,
	) ([]transport.Receipt, error) {
		return slices.DeleteFunc(receipts, func(r transport.Receipt) bool { return r.Cancel == "" }), err
	})},
	{"dispatch-ended", "what is sent is called refused when the context ends", func(f *faulty) {
		f.dispatch = func(ctx context.Context, c *faultyConn, ops []transport.Operation) ([]transport.Receipt, error) {
			receipts, err := c.sound.Dispatch(context.WithoutCancel(ctx), ops)
			return receipts, errors.Join(err, transport.FailAll(len(ops), ctx.Err()))
		}
	}},
	{"dispatch-ended", "what is refused is called sent when the context has ended", answering(func(ctx context.Context,
		_ []transport.Operation, receipts []transport.Receipt, err error,
	) ([]transport.Receipt, error) {
		if ctx.Err() != nil {
			err = nil
		}
		return receipts, err
	})},
	{"dispatch-many", "a message is lost now and then", losing},
	{"ttl-over", "the TTL is ignored", each(func(op *transport.Operation) { op.TTL = 0 })},
	{"ttl-not-over", "the TTL is in the wrong unit", each(func(op *transport.Operation) { op.TTL /= 1000 * 1000 })},
	{"ttl-not-over", "a message with a TTL is tried once", func(f *faulty) {
		timed := map[string]bool{}
		f.dispatch = func(ctx context.Context, c *faultyConn, ops []transport.Operation) ([]transport.Receipt, error) {
			for _, op := range ops {
				timed[op.Message.ID] = op.TTL > 0
			}
			return c.sound.Dispatch(ctx, ops)
		}
		f.settle = func(ctx context.Context, _ string, d *faultyDelivery, sound func(context.Context) error) error {
			if timed[d.id()] {
				return d.whole.Complete(ctx)
			}
			return sound(ctx)
		}
	}},
}

// losing loses every fiftieth Dispatch.
func losing(f *faulty) {
	var mu sync.Mutex
	n := 0
	f.dispatch = func(ctx context.Context, c *faultyConn, ops []transport.Operation) ([]transport.Receipt, error) {
		mu.Lock()
		n++
		lost := n%50 == 0
		mu.Unlock()
		if lost {
			return nil, nil
		}
		return c.sound.Dispatch(ctx, ops)
	}
}

func undelayed(op *transport.Operation) { op.After, op.At = 0, time.Time{} }

var delayMutants = []mutant{
	{"delay-after", "delays are ignored", each(undelayed)},
	{"delay-after", "delays are much longer", each(func(op *transport.Operation) { op.After += 2 * tardiness })},
	{"delay-at", "After wins over At", each(func(op *transport.Operation) {
		if op.After > 0 {
			op.At = time.Time{}
		}
	})},
	{"delay-at", "a time is taken for less than it is", each(func(op *transport.Operation) {
		if !op.At.IsZero() {
			op.At = op.At.Add(-shortDelay / 2)
		}
	})},
	{"delay-past", "a time in the past gives way to After", each(func(op *transport.Operation) {
		if op.At.Before(time.Now()) {
			op.At = time.Time{}
		}
	})},
	{"delay-past", "a negative delay is for ever", each(func(op *transport.Operation) {
		if op.After < 0 {
			op.After = -op.After
		}
	})},
	{"delay-order", "a delay holds up those sent after it", func(f *faulty) {
		var longest time.Duration
		each(func(op *transport.Operation) {
			longest = max(longest, op.After)
			op.After = longest
		})(f)
	}},
	{"delay-whole", "a delayed message loses its headers", each(func(op *transport.Operation) {
		if op.After > 0 {
			op.Message = &transport.Message{ID: op.Message.ID, Body: op.Message.Body}
		}
	})},
	{"delay-reopened", "delayed messages are kept in the process", func(f *faulty) {
		var all []transport.Receipt
		f.dispatch = func(ctx context.Context, c *faultyConn, ops []transport.Operation) ([]transport.Receipt, error) {
			receipts, err := c.sound.Dispatch(ctx, ops)
			all = append(all, receipts...)
			return receipts, err
		}
		f.close = func(c *faultyConn) error {
			for _, r := range all {
				_ = c.sound.Cancel(context.Background(), r.Cancel) // of which some have none
			}
			return c.sound.Close()
		}
	}},
	{"delay-no-queue", "the queue is looked for when the delay is over", func(f *faulty) {
		f.dispatch = func(ctx context.Context, c *faultyConn, ops []transport.Operation) ([]transport.Receipt, error) {
			receipts, err := c.sound.Dispatch(ctx, ops)
			if len(ops) > 1 && errors.Is(err, transport.ErrNoQueue) {
				err = nil
			}
			return receipts, err
		}
	}},
	{"delay-published", "a publish is never delayed", each(func(op *transport.Operation) {
		if op.Queue == "" {
			undelayed(op)
		}
	})},
	{"delay-long", "a long delay is none", each(func(op *transport.Operation) {
		if op.After > 49*24*time.Hour {
			undelayed(op)
		}
	})},
	{"cancel", "Cancel does nothing", func(f *faulty) {
		n := 0
		f.cancel = func(context.Context, *faultyConn, string) error {
			if n++; n > 1 {
				return transport.ErrNotFound
			}
			return nil
		}
	}},
	{"cancel", "what was cancelled can be cancelled again", lenientCancel},
	{"cancel-late", "whatever cannot be cancelled has been", lenientCancel},
}

func lenientCancel(f *faulty) {
	f.cancel = func(ctx context.Context, c *faultyConn, receipt string) error {
		_ = c.sound.Cancel(ctx, c.f.receiptOf(receipt)) // whatever it says
		return nil
	}
}

var publishMutants = []mutant{
	{"publish-each", "a new subscriber displaces the one before", func(f *faulty) {
		last := map[string]string{}
		f.subscribe = func(ctx context.Context, c *faultyConn, queue string, types []string) error {
			for _, of := range types {
				if err := c.sound.Unsubscribe(ctx, last[of], []string{of}); err != nil {
					return err
				}
				last[of] = queue
			}
			return c.sound.Subscribe(ctx, queue, types)
		}
	}},
	{"publish-each", "everybody receives what is published", func(f *faulty) {
		f.subscribe = func(ctx context.Context, c *faultyConn, queue string, _ []string) error {
			return c.sound.Subscribe(ctx, queue, []string{"everything"})
		}
		each(func(op *transport.Operation) {
			if op.Queue == "" {
				op.Types = []string{"everything"}
			}
		})(f)
	}},
	{"publish-no-subscriber", "without subscriber there is no queue", func(f *faulty) {
		f.dispatch = func(ctx context.Context, c *faultyConn, ops []transport.Operation) ([]transport.Receipt, error) {
			if ops[0].Queue == "" {
				return nil, transport.FailAll(len(ops), transport.ErrNoQueue)
			}
			return c.sound.Dispatch(ctx, ops)
		}
	}},
	{"publish-base", "a message is published as its own type only", each(func(op *transport.Operation) {
		op.Types = op.Types[:min(1, len(op.Types))]
	})},
	{"publish-one-copy", "a subscriber gets a copy for each type", sending(func(ops []transport.Operation) (all []transport.Operation) {
		for _, op := range ops {
			for _, of := range op.Types {
				one := op
				one.Types = []string{of}
				all = append(all, one)
			}
			if op.Queue != "" {
				all = append(all, op)
			}
		}
		return all
	})},
	{"publish-whole", "a published message gets a new id", each(func(op *transport.Operation) {
		if op.Queue == "" {
			op.Message = copyOf(op.Message)
			op.Message.ID += "-copy"
		}
	})},
	{"publish-independent", "attempts are counted by the message's id", counting(func(d *faultyDelivery) any {
		return d.id()
	})},
	{"publish-order", "the order is reversed", sending(reversed)},
	{"unsubscribe", "Unsubscribe does nothing", func(f *faulty) {
		f.unsubscribe = func(context.Context, *faultyConn, string, []string) error { return nil }
	}},
	{"unsubscribe", "what was never subscribed to is an error", func(f *faulty) {
		n := 0
		f.unsubscribe = func(ctx context.Context, c *faultyConn, queue string, types []string) error {
			if n++; n > 1 {
				return transport.ErrNotFound
			}
			return c.sound.Unsubscribe(ctx, queue, types)
		}
	}},
	{"subscribe-elsewhere", "subscriptions are read once and for all", func(f *faulty) {
		unsubscribed := map[*faultyConn]bool{}
		f.dispatch = func(ctx context.Context, c *faultyConn, ops []transport.Operation) ([]transport.Receipt, error) {
			if ops[0].Queue == "" {
				unsubscribed[c] = true
				return nil, nil
			}
			return c.sound.Dispatch(ctx, ops)
		}
	}},
	{"subscribe-reopened", "subscriptions are gone with the connection", func(f *faulty) {
		made := map[string][]string{}
		f.subscribe = func(ctx context.Context, c *faultyConn, queue string, types []string) error {
			made[queue] = append(made[queue], types...)
			return c.sound.Subscribe(ctx, queue, types)
		}
		f.close = func(c *faultyConn) error {
			for queue, types := range made {
				_ = c.sound.Unsubscribe(context.Background(), queue, types) // unless it is closed
			}
			return c.sound.Close()
		}
	}},
}
