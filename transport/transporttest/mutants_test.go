package transporttest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// mutants are faults of drivers, one for each rule at least, in the order of the rules.
var mutants = slices.Concat(
	receiveMutants, settleMutants, attemptMutants, leaseMutants, dispatchMutants, delayMutants,
	publishMutants, atomicMutants, pumpMutants, stopMutants, faultMutants, otherMutants,
)

var errMutant = errors.New("the mutant says no")

var receiveMutants = []mutant{
	{"receive-whole", "a header is lost", func(f *faulty) {
		f.message = func(m *transport.Message) *transport.Message { m.Headers.Del(header.ReplyToAddress); return m }
	}},
	{"receive-whole", "the driver leaves a header of its own", func(f *faulty) {
		f.message = func(m *transport.Message) *transport.Message { m.Headers.Set("x-driver", "1"); return m }
	}},
	{"receive-any-text", "what is not ASCII becomes a question mark", func(f *faulty) {
		f.message = func(m *transport.Message) *transport.Message {
			for name, value := range m.Headers.Clone().All() {
				m.Headers.Set(name, strings.Map(ascii, value))
			}
			return m
		}
	}},
	{"receive-any-text", "header names are not case-sensitive", func(f *faulty) {
		f.message = func(m *transport.Message) *transport.Message {
			seen := map[string]string{}
			for name, value := range m.Headers.Clone().All() {
				if first, ok := seen[strings.ToLower(name)]; ok {
					m.Headers.Del(name)
					m.Headers.Set(first, value)
				}
				seen[strings.ToLower(name)] = name
			}
			return m
		}
	}},
	{"receive-large-body", "a body is cut off at 64 KiB", func(f *faulty) {
		f.message = func(m *transport.Message) *transport.Message { m.Body = m.Body[:min(len(m.Body), 64<<10)]; return m }
	}},
	{"receive-limit", "the limit is off by one", func(f *faulty) {
		f.receive = func(ctx context.Context, r *faultyReceiver, limit int) ([]transport.Delivery, error) {
			return r.soundly(ctx, limit+1)
		}
	}},
	{"receive-bound", "MaxReceive is not what is said", func(f *faulty) {
		f.MaxReceive = 20
		f.limits = func(l transport.Limits) transport.Limits { l.MaxReceive = 10; return l }
	}},
	{"receive-waits", "Receive returns empty-handed", func(f *faulty) {
		f.receive = func(ctx context.Context, r *faultyReceiver, limit int) ([]transport.Delivery, error) {
			short, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			ds, err := r.soundly(short, limit)
			if ctx.Err() == nil && short.Err() != nil {
				err = nil
			}
			return ds, err
		}
	}},
	{"receive-ends", "the context's error is hidden", func(f *faulty) {
		f.receive = func(ctx context.Context, r *faultyReceiver, limit int) ([]transport.Delivery, error) {
			ds, err := r.soundly(ctx, limit)
			if err != nil {
				err = errMutant
			}
			return ds, err
		}
	}},
	{"receive-drops-nothing", "what was taken when the context ended is dropped", func(f *faulty) {
		f.receive = func(ctx context.Context, r *faultyReceiver, limit int) ([]transport.Delivery, error) {
			ds, err := r.soundly(ctx, limit)
			select { // the answer takes a while
			case <-ctx.Done():
			case <-time.After(time.Millisecond):
			}
			if ctx.Err() != nil && len(ds) > 0 {
				for _, d := range ds {
					err = d.(*faultyDelivery).whole.Complete(context.Background())
				}
				return nil, errors.Join(ctx.Err(), err)
			}
			return ds, err
		}
	}},
	{"receive-closed", "Close leaves Receive waiting", func(f *faulty) {
		f.closeReceiver = func(*faultyReceiver) error { return nil }
	}},
	{"receive-closed-settle", "deliveries of a closed receiver cannot be settled", func(f *faulty) {
		f.settle = func(ctx context.Context, _ string, d *faultyDelivery, sound func(context.Context) error) error {
			if d.receiver.isClosed() {
				return transport.ErrClosed
			}
			return sound(ctx)
		}
	}},
	{"receive-closed-returns", "what was prefetched is kept by a closed receiver", prefetching},
	{"receive-window", "more is prefetched than the window allows", prefetching},
	{"receive-parallel", "a message is handed out twice", handingOutTwice},
	{"receive-competing", "each message is in the queue twice", func(f *faulty) {
		f.dispatch = func(ctx context.Context, c *faultyConn, ops []transport.Operation) ([]transport.Receipt, error) {
			return c.sound.Dispatch(ctx, append(slices.Clone(ops), ops...))
		}
	}},
	{"receive-apart", "a Dispatch goes to the first queue only", func(f *faulty) {
		f.dispatch = func(ctx context.Context, c *faultyConn, ops []transport.Operation) ([]transport.Receipt, error) {
			ops = slices.Clone(ops)
			for i := range ops {
				ops[i].Queue = ops[0].Queue
			}
			return c.sound.Dispatch(ctx, ops)
		}
	}},
	{"receive-no-queue", "a missing queue is created by who receives", func(f *faulty) {
		f.openReceiver = func(ctx context.Context, c *faultyConn, queue string) (transport.Receiver, error) {
			c.f.CreateQueues(queue)
			return c.sound.OpenReceiver(ctx, transport.ReceiverOptions{Queue: queue})
		}
	}},
	{"receive-reopened", "messages are gone with the connection", func(f *faulty) {
		f.close = func(c *faultyConn) error {
			for _, q := range c.queues() {
				c.drain(q, len(c.f.Messages(q)))
			}
			return c.sound.Close()
		}
	}},
	{"receive-identity", "a retry makes a copy under a new id", func(f *faulty) {
		f.settle = func(ctx context.Context, verb string, d *faultyDelivery, sound func(context.Context) error) error {
			if verb != "Retry" {
				return sound(ctx)
			}
			again := copyOf(d.whole.Message())
			again.ID += "-again"
			return d.whole.CompleteWith(ctx, []transport.Operation{{Message: again, Queue: d.receiver.queue}})
		}
	}},
	{"receive-kept", "bodies share a buffer that is used again", func(f *faulty) {
		f.message = func(m *transport.Message) *transport.Message { return m }
		f.settle = func(ctx context.Context, verb string, d *faultyDelivery, sound func(context.Context) error) error {
			if body := d.Message().Body; verb == "Complete" {
				clear(body)
			}
			return sound(ctx)
		}
	}},
	{"receive-undecodable", "what cannot be read is thrown away", func(f *faulty) {
		f.receive = func(ctx context.Context, r *faultyReceiver, limit int) ([]transport.Delivery, error) {
			for {
				ds, err := r.soundly(ctx, limit)
				ds = slices.DeleteFunc(ds, func(d transport.Delivery) bool {
					return d.Message().Undecodable != nil && d.Complete(ctx) == nil
				})
				if len(ds) > 0 || err != nil {
					return ds, err
				}
			}
		}
	}},
}

func ascii(r rune) rune {
	if r > 127 {
		return '?'
	}
	return r
}

// prefetching takes more than it was asked for, and keeps it.
func prefetching(f *faulty) {
	var mu sync.Mutex
	ahead := map[*faultyReceiver][]transport.Delivery{}
	f.receive = func(ctx context.Context, r *faultyReceiver, limit int) ([]transport.Delivery, error) {
		mu.Lock()
		defer mu.Unlock()
		if len(ahead[r]) == 0 {
			ds, err := r.soundly(ctx, limit+5)
			if err != nil {
				return nil, err
			}
			ahead[r] = ds
		}
		n := min(limit, len(ahead[r]))
		ds := ahead[r][:n]
		ahead[r] = ahead[r][n:]
		return ds, nil
	}
}

func handingOutTwice(f *faulty) {
	var mu sync.Mutex
	n := 0
	f.receive = func(ctx context.Context, r *faultyReceiver, limit int) ([]transport.Delivery, error) {
		ds, err := r.soundly(ctx, limit)
		mu.Lock()
		defer mu.Unlock()
		if n++; err == nil && n == 3 && len(ds) < limit {
			ds = append(ds, ds[0])
		} else if err == nil && n == 3 {
			ds[len(ds)-1] = ds[0]
		}
		return ds, err
	}
}

// queues are the queues that a connection has received from or sent to, and those it knows of.
func (c *faultyConn) queues() (names []string) {
	stats, err := c.sound.Inspect(context.Background())
	if err != nil {
		return nil
	}
	for _, s := range stats {
		names = append(names, s.Name)
	}
	return names
}

// drain takes n messages from a queue, which are there.
func (c *faultyConn) drain(queue string, n int) {
	ctx := context.Background()
	r, err := c.sound.OpenReceiver(ctx, transport.ReceiverOptions{Queue: queue})
	if err != nil {
		return
	}
	defer r.Close() //nolint:errcheck // it never fails
	for range n {
		ds, err := r.Receive(ctx, 1)
		if err != nil || ds[0].Complete(ctx) != nil {
			return
		}
	}
}

// settling is a fault in one verb.
func settling(verb string, instead func(ctx context.Context, d *faultyDelivery) error) func(*faulty) {
	return func(f *faulty) {
		f.settle = func(ctx context.Context, v string, d *faultyDelivery, sound func(context.Context) error) error {
			if v == verb {
				return instead(ctx, d)
			}
			return sound(ctx)
		}
	}
}

func nothing(context.Context, *faultyDelivery) error { return nil }

func drop(ctx context.Context, d *faultyDelivery) error { return d.whole.Complete(ctx) }

func retryNow(ctx context.Context, d *faultyDelivery) error { return d.whole.Retry(ctx) }

var settleMutants = []mutant{
	{"settle-complete", "Complete does nothing", settling("Complete", nothing)},
	{"settle-retry", "Retry does nothing", settling("Retry", nothing)},
	{"settle-retry", "Retry drops the message", settling("Retry", drop)},
	{"settle-release", "Release drops the message", settling("Release", drop)},
	{"settle-once", "settling twice works", lenient},
	{"settle-race", "settling twice works", lenient},
	{"settle-any-order", "Complete completes all before it too", func(f *faulty) {
		f.settle = func(ctx context.Context, verb string, d *faultyDelivery, sound func(context.Context) error) error {
			if verb != "Complete" {
				return sound(ctx)
			}
			for _, older := range d.receiver.conn.unsettled() {
				if older.id() < d.id() {
					_ = older.whole.Complete(ctx) // it may be settled
				}
			}
			err := sound(ctx)
			if errors.Is(err, transport.ErrLeaseLost) {
				err = nil
			}
			return err
		}
	}},
	{"settle-own-context", "settles use the context of Receive", func(f *faulty) {
		f.settle = func(_ context.Context, _ string, d *faultyDelivery, sound func(context.Context) error) error {
			return sound(d.ctx)
		}
	}},
	{"settle-again", "a settle whose context had ended cannot be repeated", func(f *faulty) {
		tried := map[*faultyDelivery]bool{}
		f.settle = func(ctx context.Context, _ string, d *faultyDelivery, sound func(context.Context) error) error {
			if tried[d] {
				return errMutant
			}
			tried[d] = true
			return sound(ctx)
		}
	}},
	{"settle-again", "a settle whose context had ended drops the message", func(f *faulty) {
		f.settle = func(ctx context.Context, _ string, d *faultyDelivery, sound func(context.Context) error) error {
			if ctx.Err() != nil {
				return errors.Join(ctx.Err(), d.whole.Complete(context.WithoutCancel(ctx)))
			}
			return sound(ctx)
		}
	}},
	{"settle-spaced", "RetryAfter does not wait", settling("RetryAfter", retryNow)},
	{"settle-dead-letter", "DeadLetter returns the message to its queue", settling("DeadLetter", retryNow)},
}

// lenient says that a second settle has worked.
func lenient(f *faulty) {
	f.settle = func(ctx context.Context, _ string, d *faultyDelivery, sound func(context.Context) error) error {
		err := sound(ctx)
		if errors.Is(err, transport.ErrLeaseLost) && d.isSettled() {
			return nil
		}
		return err
	}
}

// counting is a count of hand-outs that is kept elsewhere than it should be.
func counting(key func(d *faultyDelivery) any) func(*faulty) {
	return func(f *faulty) {
		var mu sync.Mutex
		counts := map[any]int{}
		seen := map[*faultyDelivery]int{}
		f.attempt = func(d *faultyDelivery) transport.Attempt {
			mu.Lock()
			defer mu.Unlock()
			if seen[d] == 0 {
				counts[key(d)]++
				seen[d] = counts[key(d)]
			}
			return transport.Attempt{N: seen[d], Exact: true}
		}
	}
}

var attemptMutants = []mutant{
	{"attempts-first", "attempts are counted from 0", func(f *faulty) {
		f.attempt = func(d *faultyDelivery) transport.Attempt {
			return transport.Attempt{N: d.whole.Attempt().N - 1, Exact: true}
		}
	}},
	{"attempts-counted", "the count is not raised", func(f *faulty) {
		f.attempt = func(*faultyDelivery) transport.Attempt { return transport.Attempt{N: 1, Exact: true} }
	}},
	{"attempts-counted", "a guess is called exact", func(f *faulty) {
		f.attempt = func(d *faultyDelivery) transport.Attempt {
			return transport.Attempt{N: min(2, d.whole.Attempt().N), Exact: true}
		}
	}},
	{"attempts-shared", "attempts are counted in the connection", counting(func(d *faultyDelivery) any {
		return d.receiver.conn
	})},
	{"attempts-own", "attempts are counted for the queue", counting(func(d *faultyDelivery) any {
		return d.receiver.queue
	})},
	{"attempts-closed", "Close gives back what was not settled as if nobody had had it", func(f *faulty) {
		f.close = func(c *faultyConn) error {
			for _, d := range c.unsettled() {
				_ = d.whole.Release(context.Background()) // or Close does it
			}
			return c.sound.Close()
		}
	}},
	{"attempts-released", "Release counts although FreeRelease says no", settling("Release", retryNow)},
	{"attempts-of-copies", "attempts are counted by the message's id", counting(func(d *faultyDelivery) any {
		return d.id()
	})},
	{"attempts-of-delayed", "the end of a delay counts as a hand-out", func(f *faulty) {
		f.dispatch = func(ctx context.Context, c *faultyConn, ops []transport.Operation) ([]transport.Receipt, error) {
			return c.sound.Dispatch(ctx, ops)
		}
		f.attempt = func(d *faultyDelivery) transport.Attempt {
			return transport.Attempt{N: d.whole.Attempt().N + 1, Exact: true}
		}
	}},
}

var leaseMutants = []mutant{
	{"lease-expires", "leases are shorter than is said", func(f *faulty) {
		f.limits = func(l transport.Limits) transport.Limits { l.Lease = 2 * time.Second; return l }
	}},
	{"lease-expires", "the end of a lease does not count as an attempt", func(f *faulty) {
		f.attempt = func(*faultyDelivery) transport.Attempt { return transport.Attempt{N: 1, Exact: true} }
	}},
	{"lease-renewed", "Renew does nothing", func(f *faulty) {
		f.renew = func(_ context.Context, _ *faultyReceiver, ds []transport.Delivery) []error {
			return make([]error, len(ds))
		}
	}},
	{"lease-lost-settle", "a stale settle is accepted", func(f *faulty) {
		f.settle = func(ctx context.Context, _ string, _ *faultyDelivery, sound func(context.Context) error) error {
			err := sound(ctx)
			if errors.Is(err, transport.ErrLeaseLost) {
				return nil
			}
			return err
		}
	}},
	{"lease-lost-settle", "a stale settle hits the newer hand-out", func(f *faulty) {
		f.settle = func(ctx context.Context, _ string, d *faultyDelivery, sound func(context.Context) error) error {
			err := sound(ctx)
			if errors.Is(err, transport.ErrLeaseLost) {
				for _, newer := range d.receiver.conn.unsettled() {
					_ = newer.whole.Complete(ctx) // of which one works
				}
			}
			return err
		}
	}},
	{"lease-lost-sends-nothing", "CompleteWith sends before it looks at the lease", sendsFirst},
	{"lease-lost-at-once", "CompleteWith sends before it looks at the lease", sendsFirst},
	{"lease-lost-commits-nothing", "a transaction sends before it looks at the lease", func(f *faulty) {
		f.commit = func(ctx context.Context, tx *faultyTx, ops []transport.Operation) error {
			_, err := tx.d.receiver.conn.sound.Dispatch(ctx, ops)
			return errors.Join(err, tx.Tx.Complete(ctx, nil))
		}
	}},
	{"lease-renew-tells", "one lost lease fails those renewed with it", func(f *faulty) {
		f.renew = func(ctx context.Context, r *faultyReceiver, ds []transport.Delivery) []error {
			errs := r.renewSoundly(ctx, ds)
			for i := range errs {
				errs[i] = errors.Join(errs...)
			}
			return errs
		}
	}},
	{"lease-renew-settled", "a renewal leases what is no longer ours", func(f *faulty) {
		f.renew = func(ctx context.Context, r *faultyReceiver, ds []transport.Delivery) []error {
			short, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			_, _ = r.soundly(short, 1) // which nobody settles
			return make([]error, len(ds))
		}
	}},
}

func sendsFirst(f *faulty) {
	f.completeWith = func(ctx context.Context, d *faultyDelivery, ops []transport.Operation) error {
		if _, err := d.receiver.conn.sound.Dispatch(ctx, ops); err != nil {
			return err
		}
		return d.whole.Complete(ctx)
	}
}

// sending is a fault in what is sent.
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

// answering is a fault in what Dispatch returns.
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

func reversed(ops []transport.Operation) []transport.Operation {
	slices.Reverse(ops)
	return ops
}

var dispatchMutants = []mutant{
	{"dispatch-order", "the order is reversed", sending(reversed)},
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
	{"delay-after", "delays are much longer", each(func(op *transport.Operation) { op.After *= 10 })},
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
		_ = c.sound.Cancel(ctx, receipt) // whatever it says
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
	{"publish-nobody", "without subscriber there is no queue", func(f *faulty) {
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
		nobody := map[*faultyConn]bool{}
		f.dispatch = func(ctx context.Context, c *faultyConn, ops []transport.Operation) ([]transport.Receipt, error) {
			if ops[0].Queue == "" {
				nobody[c] = true
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

// withOps is a fault in what CompleteWith sends.
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

// dropsUnsettled completes what is out when the connection closes.
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

// shaken gives back what is handled when the window changes.
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
	{"concurrency-lowered", "a change of the window gives back what is handled", shaken},
	{"concurrency-changed", "a change of the window gives back what is handled", shaken},
	{"concurrency-in-flight", "a change of the window gives back what is handled", shaken},
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
	{"start-again", "a queue that nobody receives from is not kept", func(f *faulty) {
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
			defer fresh.Close() //nolint:errcheck // it never fails
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
	{"fault-stale", "a settle of a lost connection hits the newer hand-out", wired(func(w *wire) { w.adopting = true })},
	{"fault-away", "Dispatch waits for the broker, whatever its context says", wired(func(w *wire) { w.hanging = true })},
	{"fault-half-open", "what is only buffered is called accepted", wired(func(w *wire) { w.lying = true })},
	{"fault-half-open-receive", "Receive does not see its context end", wired(func(w *wire) { w.deaf = true })},
	{"fault-close-away", "Close leaves a goroutine that waits for the broker", wired(func(w *wire) { w.leaking = true })},
	{"fault-load", "what is written to a lost connection is called accepted", wired(func(w *wire) { w.fading = true })},
	{"fault-restart", "what is out when the broker restarts is gone", wired(func(w *wire) { w.dropping = true })},
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
