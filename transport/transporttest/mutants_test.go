package transporttest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// mutants are faults of drivers, one for each rule at least, in the order of the rules.
var mutants = slices.Concat(
	receiveMutants, settleMutants, attemptMutants, leaseMutants, dispatchMutants, delayMutants,
	publishMutants, atomicMutants, joinMutants, inboxMutants, recordMutants, outboxMutants, deferMutants, checkMutants, storeTxMutants, timerMutants, stateMutants, pumpMutants, stopMutants, faultMutants, otherMutants, removeMutants,
	browseMutants, addressMutants,
)

var errMutant = errors.New("the mutant says no")

var receiveMutants = []mutant{
	{"message-whole", "a header is lost", func(f *faulty) {
		f.message = func(m *transport.Message) *transport.Message { m.Headers.Del(header.ReplyToAddress); return m }
	}},
	{"message-whole", "the driver leaves a header of its own", func(f *faulty) {
		f.message = func(m *transport.Message) *transport.Message { m.Headers.Set("x-driver", "1"); return m }
	}},
	{"message-any-text", "what is not ASCII becomes a question mark", func(f *faulty) {
		f.message = func(m *transport.Message) *transport.Message {
			for name, value := range m.Headers.Clone().All() {
				m.Headers.Set(name, strings.Map(ascii, value))
			}
			return m
		}
	}},
	{"message-any-text", "header names are not case-sensitive", func(f *faulty) {
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
	{"message-large-body", "a body is cut off at 64 KiB", func(f *faulty) {
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
	{"receive-bytes", "the bound in bytes is not kept", func(f *faulty) {
		f.receiveBytes = func(ctx context.Context, r *faultyReceiver, limit int, _ int64) ([]transport.Delivery, error) {
			return r.soundly(ctx, limit)
		}
	}},
	{"receive-bytes", "a message above the bound is never received", func(f *faulty) {
		f.receiveBytes = func(ctx context.Context, r *faultyReceiver, limit int, maxBytes int64) ([]transport.Delivery, error) {
			if maxBytes < 40<<10 {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return r.soundlyWithin(ctx, limit, maxBytes)
		}
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
	{"receive-held", "held messages count against the window", func(f *faulty) {
		var window atomic.Int64
		f.window = func(_ *faultyReceiver, n int) { window.Store(int64(n)) }
		f.receive = func(ctx context.Context, r *faultyReceiver, limit int) ([]transport.Delivery, error) {
			room := int(window.Load()) - len(r.conn.unsettled())
			if room <= 0 {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return r.soundly(ctx, min(limit, room))
		}
	}},
	{"receive-parallel", "a message is delivered twice", deliveringTwice},
	{"receive-competing", "each message is in the queue twice", func(f *faulty) {
		f.dispatch = func(ctx context.Context, c *faultyConn, ops []transport.Operation) ([]transport.Receipt, error) {
			return c.sound.Dispatch(ctx, append(slices.Clone(ops), ops...))
		}
	}},
	{"message-apart", "a Dispatch goes to the first queue only", func(f *faulty) {
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
	{"message-reopened", "messages are gone with the connection", func(f *faulty) {
		f.close = func(c *faultyConn) error {
			for _, q := range c.queues() {
				c.drain(q, len(c.f.Messages(q)))
			}
			return c.sound.Close()
		}
	}},
	{"message-identity", "a retry makes a copy under a new id", func(f *faulty) {
		f.settle = func(ctx context.Context, verb string, d *faultyDelivery, sound func(context.Context) error) error {
			if verb != "Retry" {
				return sound(ctx)
			}
			again := copyOf(d.whole.Message())
			again.ID += "-again"
			return d.whole.CompleteWith(ctx, []transport.Operation{{Message: again, Queue: d.receiver.queue}})
		}
	}},
	{"message-unnamed", "the id is a hash of the body", each(func(op *transport.Operation) {
		if op.Message.ID == "" {
			m := *op.Message
			m.ID = fmt.Sprintf("%x", sha256.Sum256(m.Body))
			op.Message = &m
		}
	})},
	{"message-kept", "bodies share a buffer that is used again", func(f *faulty) {
		f.message = func(m *transport.Message) *transport.Message { return m }
		f.settle = func(ctx context.Context, verb string, d *faultyDelivery, sound func(context.Context) error) error {
			if body := d.Message().Body; verb == "Complete" {
				clear(body)
			}
			return sound(ctx)
		}
	}},
	{"message-undecodable", "what cannot be read is thrown away", func(f *faulty) {
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
	{"message-translated", "the driver calls the function", func(f *faulty) {
		f.message = func(m *transport.Message) *transport.Message {
			if f.user != nil {
				f.user(copyOf(m))
			}
			return m
		}
	}},
	{"message-translated", "the driver delivers translated messages", func(f *faulty) {
		f.translation = func(user func(*transport.Message)) func(*transport.Message) {
			if user == nil {
				return nil
			}
			return func(m *transport.Message) {
				f.message = func(m *transport.Message) *transport.Message { m.Body = []byte("translated"); return m }
				user(m)
			}
		}
	}},
	{"message-translated", "the function is lost", translationOf(func(*transport.Message, func(*transport.Message)) {})},
	{"message-translated", "there is no function", func(f *faulty) {
		f.translation = func(func(*transport.Message)) func(*transport.Message) { return nil }
	}},
	{"message-translated", "there is always a function", func(f *faulty) {
		f.translation = func(user func(*transport.Message)) func(*transport.Message) {
			if user == nil {
				return func(*transport.Message) {}
			}
			return user
		}
	}},
	{"message-translated", "the function gets a copy", translationOf(func(m *transport.Message, user func(*transport.Message)) {
		user(copyOf(m))
	})},
	{"message-translated", "a panic of the function is dropped", translationOf(func(m *transport.Message, user func(*transport.Message)) {
		defer func() { _ = recover() }()
		user(m)
	})},
}

// translationOf has Translation return call, which is to call the function of the user.
func translationOf(call func(m *transport.Message, user func(*transport.Message))) func(*faulty) {
	return func(f *faulty) {
		f.translation = func(user func(*transport.Message)) func(*transport.Message) {
			if user == nil {
				return nil
			}
			return func(m *transport.Message) { call(m, user) }
		}
	}
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

func deliveringTwice(f *faulty) {
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
	defer r.Close()
	for range n {
		ds, err := r.Receive(ctx, 1)
		if err != nil || ds[0].Complete(ctx) != nil {
			return
		}
	}
}
