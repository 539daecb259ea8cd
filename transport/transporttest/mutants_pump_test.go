package transporttest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// withOps changes the operations of CompleteWith.
func withOps(change func(ops []transport.Operation) []transport.Operation) func(*faulty) {
	return func(f *faulty) {
		f.completeWith = func(ctx context.Context, d *faultyDelivery, ops []transport.Operation) error {
			return d.whole.CompleteWith(ctx, change(slices.Clone(ops)))
		}
	}
}

var atomicMutants = []mutant{
	{"atomic-crash", "what was not settled is gone when the connection closes", dropsUnsettled},
	{"atomic-both", "CompleteWith sends nothing", withOps(func([]transport.Operation) []transport.Operation { return nil })},
	{"atomic-both", "CompleteWith sends in reverse order", withOps(reversed)},
	{"atomic-published", "CompleteWith does not publish", withOps(func(ops []transport.Operation) []transport.Operation {
		return slices.DeleteFunc(ops, func(op transport.Operation) bool { return op.Queue == "" })
	})},
	{"atomic-neither", "CompleteWith sends what it can", func(f *faulty) {
		f.completeWith = func(ctx context.Context, d *faultyDelivery, ops []transport.Operation) error {
			if _, err := d.receiver.conn.sound.Dispatch(ctx, ops); err != nil {
				return err
			}
			return d.whole.Complete(ctx)
		}
	}},
	{"atomic-neither", "a refused CompleteWith completes", completesRefused},
	{"atomic-too-large", "a refused CompleteWith completes", func(f *faulty) {
		f.MaxBody = 1 << 10
		completesRefused(f)
	}},
	{"atomic-contended", "CompleteWith sends twice now and then", func(f *faulty) {
		var mu sync.Mutex
		n := 0
		withOps(func(ops []transport.Operation) []transport.Operation {
			mu.Lock()
			defer mu.Unlock()
			if n++; n%20 == 0 {
				ops = append(ops, ops...)
			}
			return ops
		})(f)
	}},
	{"atomic-limits", "Limits.Atomic is forgotten", func(f *faulty) {
		f.limits = func(l transport.Limits) transport.Limits { l.Atomic = false; return l }
	}},
	{"tx-commit", "a transaction sends nothing", func(f *faulty) {
		f.commit = func(ctx context.Context, tx *faultyTx, _ []transport.Operation) error {
			return tx.Tx.Complete(ctx, nil)
		}
	}},
	{"tx-commit", "Rollback after Complete is an error", func(f *faulty) {
		f.rollback = func(context.Context, *faultyTx) error { return errMutant }
	}},
	{"tx-rollback", "Rollback settles", func(f *faulty) {
		f.rollback = func(ctx context.Context, tx *faultyTx) error {
			_ = tx.d.whole.Release(ctx) // the first time
			return tx.Tx.Rollback(ctx)
		}
	}},
	{"tx-rollback", "Rollback does nothing", func(f *faulty) {
		f.rollback = func(context.Context, *faultyTx) error { return nil }
	}},
	{"tx-refused", "a refused transaction completes", func(f *faulty) {
		f.commit = func(ctx context.Context, tx *faultyTx, ops []transport.Operation) error {
			err := tx.Tx.Complete(ctx, ops)
			if err != nil {
				_ = tx.d.whole.Complete(ctx) // which may work
			}
			return err
		}
	}},
	{"tx-closed", "Close commits what is open", dropsUnsettled},
}

// dropsUnsettled completes unsettled messages when the connection closes.
func dropsUnsettled(f *faulty) {
	f.close = func(c *faultyConn) error {
		for _, d := range c.unsettled() {
			_ = d.whole.Complete(context.Background()) // unless it is settled
		}
		return c.sound.Close()
	}
}

func completesRefused(f *faulty) {
	f.completeWith = func(ctx context.Context, d *faultyDelivery, ops []transport.Operation) error {
		err := d.whole.CompleteWith(ctx, ops)
		if err != nil {
			_ = d.whole.Complete(ctx) // which works
		}
		return err
	}
}

// holding hands out nothing while more than most are unsettled.
func holding(most int) func(*faulty) {
	return func(f *faulty) {
		f.receive = func(ctx context.Context, r *faultyReceiver, limit int) ([]transport.Delivery, error) {
			for {
				if room := most - len(r.conn.unsettled()); room > 0 {
					return r.soundly(ctx, min(limit, room))
				}
				select {
				case <-time.After(time.Millisecond):
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
		}
	}
}

// shaken returns unsettled messages to the queue when the window changes.
func shaken(f *faulty) {
	f.window = func(r *faultyReceiver, _ int) {
		for _, d := range r.conn.unsettled() {
			_ = d.whole.Release(context.Background()) // unless it is settled
		}
	}
}

var pumpMutants = []mutant{
	{"concurrency-reached", "one message is out at a time", holding(1)},
	{"concurrency-one", "what is received together is turned round", func(f *faulty) {
		f.receive = func(ctx context.Context, r *faultyReceiver, limit int) ([]transport.Delivery, error) {
			ds, err := r.soundly(ctx, limit)
			slices.Reverse(ds)
			return ds, err
		}
	}},
	{"concurrency-raised", "the first window is kept", holding(8)},
	{"concurrency-lowered", "a change of the window returns unsettled messages", shaken},
	{"concurrency-changed", "a change of the window returns unsettled messages", shaken},
	{"concurrency-in-flight", "a change of the window returns unsettled messages", shaken},
	{"concurrency-failing", "every fifth Retry drops the message", func(f *faulty) {
		var mu sync.Mutex
		n := 0
		settling("Retry", func(ctx context.Context, d *faultyDelivery) error {
			mu.Lock()
			defer mu.Unlock()
			if n++; n%5 == 0 {
				return d.whole.Complete(ctx)
			}
			return d.whole.Retry(ctx)
		})(f)
	}},
	{"concurrency-slow-one", "a completion waits for all older deliveries", func(f *faulty) {
		f.settle = func(ctx context.Context, _ string, d *faultyDelivery, sound func(context.Context) error) error {
			for d.receiver.conn.unsettled()[0] != d && ctx.Err() == nil {
				select {
				case <-time.After(time.Second):
				case <-ctx.Done():
				}
			}
			return sound(ctx)
		}
	}},
}

var stopMutants = []mutant{
	{"stop-waits", "nothing can be settled when receiving has ended", func(f *faulty) {
		f.settle = func(_ context.Context, _ string, d *faultyDelivery, sound func(context.Context) error) error {
			return sound(d.ctx)
		}
	}},
	{"stop-cuts", "Retry drops the message", settling("Retry", drop)},
	{"stop-returns", "Release drops the message", settling("Release", drop)},
	{"stop-under-load", "a message is lost now and then", losing},
	{"start-again", "a queue without a receiver is not kept", func(f *faulty) {
		open := map[string]int{}
		var mu sync.Mutex
		f.openReceiver = func(ctx context.Context, c *faultyConn, queue string) (transport.Receiver, error) {
			mu.Lock()
			defer mu.Unlock()
			open[queue]++
			return c.sound.OpenReceiver(ctx, transport.ReceiverOptions{Queue: queue})
		}
		f.closeReceiver = func(r *faultyReceiver) error {
			mu.Lock()
			defer mu.Unlock()
			open[r.queue]--
			return r.Receiver.Close()
		}
		sending(func(ops []transport.Operation) []transport.Operation {
			mu.Lock()
			defer mu.Unlock()
			return slices.DeleteFunc(ops, func(op transport.Operation) bool { return open[op.Queue] < 1 })
		})(f)
	}},
	{"open-fails", "Open does not look at its context", func(f *faulty) {
		f.open = func(ctx context.Context) (transport.Conn, error) {
			return f.Transport.Open(context.WithoutCancel(ctx), transport.Env{})
		}
	}},
	{"close-twice", "a second Close is an error", func(f *faulty) {
		n := 0
		f.close = func(c *faultyConn) error {
			if n++; n > 1 {
				return transport.ErrClosed
			}
			return c.sound.Close()
		}
	}},
	{"close-ends-receive", "Receive goes on after Close", func(f *faulty) {
		f.close = func(*faultyConn) error { return nil }
	}},
	{"close-ends-all", "Dispatch works after Close", func(f *faulty) {
		f.dispatch = func(ctx context.Context, c *faultyConn, ops []transport.Operation) ([]transport.Receipt, error) {
			fresh, err := c.f.Transport.Open(ctx, transport.Env{})
			if err != nil {
				return nil, err
			}
			defer fresh.Close()
			return fresh.Dispatch(ctx, ops)
		}
	}},
	{"close-ends-all", "deliveries can be settled after Close", func(f *faulty) {
		f.settle = func(ctx context.Context, _ string, _ *faultyDelivery, sound func(context.Context) error) error {
			if err := sound(ctx); !errors.Is(err, transport.ErrClosed) {
				return err
			}
			return nil
		}
	}},
	{"close-returns", "Close leaves messages to their leases", func(f *faulty) {
		f.Lease = time.Second
		f.close = func(*faultyConn) error { return nil }
	}},
	{"close-completed", "the last completions before Close are dropped", func(f *faulty) {
		var mu sync.Mutex
		var buffered []func()
		f.settle = func(ctx context.Context, verb string, _ *faultyDelivery, sound func(context.Context) error) error {
			if verb != "Complete" {
				return sound(ctx)
			}
			mu.Lock()
			defer mu.Unlock()
			buffered = append(buffered, func() { _ = sound(context.WithoutCancel(ctx)) })
			if len(buffered) > 10 {
				buffered[0]()
				buffered = buffered[1:]
			}
			return nil
		}
	}},
	{"close-no-goroutines", "a Receive leaves a goroutine behind", func(f *faulty) {
		f.receive = func(ctx context.Context, r *faultyReceiver, limit int) ([]transport.Delivery, error) {
			go func() {
				select {
				case <-ctx.Done(): // which the rule's end brings
				case <-time.After(time.Minute):
				}
			}()
			return r.soundly(ctx, limit)
		}
	}},
}

// wired is a fault of a driver that shows when its connection breaks.
func wired(change func(w *wire)) func(*faulty) {
	return func(f *faulty) { f.wire = change }
}

var faultMutants = []mutant{
	{"fault-cut", "a lost connection is never replaced", wired(func(w *wire) { w.once = true })},
	{"fault-stale", "a settle of a lost connection affects the newer delivery", wired(func(w *wire) { w.adopting = true })},
	{"fault-lost", "a delivery of a lost connection does not say so", wired(func(w *wire) { w.hopeful = true })},
	{"fault-away", "Dispatch waits for the broker, whatever its context says", wired(func(w *wire) { w.hanging = true })},
	{"fault-listening", "a receiver without a broker says that it listens", wired(func(w *wire) { w.boasting = true })},
	{"fault-half-open", "what is only buffered is called accepted", wired(func(w *wire) { w.lying = true })},
	{"fault-half-open-receive", "Receive does not see its context end", wired(func(w *wire) { w.deaf = true })},
	{"fault-close-away", "Close leaves a goroutine that waits for the broker", wired(func(w *wire) { w.leaking = true })},
	{"fault-load", "what is written to a lost connection is called accepted", wired(func(w *wire) { w.fading = true })},
	{"fault-restart", "what is out when the broker restarts is gone", wired(func(w *wire) { w.dropping = true })},
	{"fault-restart-load", "what does not reach the broker is called accepted", wired(func(w *wire) { w.lying = true })},
	{"fault-restart-load", "a lost connection is never replaced", wired(func(w *wire) { w.once = true })},
}

var otherMutants = []mutant{
	{"inspect", "what is out counts as ready", func(f *faulty) {
		f.inspect = func(stats []transport.QueueStats, err error) ([]transport.QueueStats, error) {
			for i := range stats {
				stats[i].Ready += stats[i].Unsettled
			}
			return stats, err
		}
	}},
	{"inspect-no-queue", "a missing queue is empty", func(f *faulty) {
		f.inspect = func(stats []transport.QueueStats, err error) ([]transport.QueueStats, error) {
			if errors.Is(err, transport.ErrNoQueue) {
				return []transport.QueueStats{{}, {}}, nil
			}
			return stats, err
		}
	}},
	{"install-again", "Install purges", func(f *faulty) {
		f.install = func(ctx context.Context, c *faultyConn, plan transport.Plan) error {
			for _, q := range plan.Queues {
				c.drain(q.Name, len(c.f.Messages(q.Name)))
			}
			return c.sound.Install(ctx, plan)
		}
	}},
	{"install-at-once", "what exists is an error", func(f *faulty) {
		f.install = func(ctx context.Context, c *faultyConn, plan transport.Plan) error {
			for _, q := range plan.Queues {
				if slices.Contains(c.queues(), q.Name) {
					return errMutant
				}
			}
			return c.sound.Install(ctx, plan)
		}
	}},
	{"install-names", "names are not case-sensitive", func(f *faulty) {
		f.openReceiver = func(ctx context.Context, c *faultyConn, queue string) (transport.Receiver, error) {
			return c.sound.OpenReceiver(ctx, transport.ReceiverOptions{Queue: strings.ToLower(queue)})
		}
		f.install = func(ctx context.Context, c *faultyConn, plan transport.Plan) error {
			for i := range plan.Queues {
				plan.Queues[i].Name = strings.ToLower(plan.Queues[i].Name)
			}
			return c.sound.Install(ctx, plan)
		}
		each(func(op *transport.Operation) { op.Queue = strings.ToLower(op.Queue) })(f)
	}},
}
