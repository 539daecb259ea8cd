package tablequeue

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// subscriptionsAge is the largest age of the subscriptions that a publish uses, and so the time
// after which another process's Subscribe takes effect.
const subscriptionsAge = time.Second

// subscribers caches the subscriptions. It reads the whole table, at most once in subscriptionsAge,
// and only for a publish.
type subscribers struct {
	load    func(context.Context) ([]Subscription, error)
	loading chan struct{} // holds a token while one goroutine loads
	known   atomic.Pointer[subscriptionsAt]
	changed atomic.Int64 // number of calls of forget
}

type subscriptionsAt struct {
	queues  map[string][]string // by type, each once
	read    time.Time
	changed int64
}

// of returns the queues that subscribe to any of types, each once.
func (s *subscribers) of(ctx context.Context, types []string) ([]string, error) {
	known, err := s.fresh(ctx)
	if err != nil {
		return nil, err
	}
	if len(types) == 1 {
		return known.queues[types[0]], nil
	}
	var queues []string
	for _, t := range types {
		for _, q := range known.queues[t] {
			if !slices.Contains(queues, q) {
				queues = append(queues, q)
			}
		}
	}
	return queues, nil
}

// forget makes the next publish read the table: this process has changed it.
func (s *subscribers) forget() { s.changed.Add(1) }

func (s *subscribers) fresh(ctx context.Context) (*subscriptionsAt, error) {
	if known := s.ifFresh(); known != nil {
		return known, nil
	}
	select {
	case s.loading <- struct{}{}:
		defer func() { <-s.loading }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if known := s.ifFresh(); known != nil {
		return known, nil
	}
	next := &subscriptionsAt{read: time.Now(), changed: s.changed.Load(), queues: map[string][]string{}}
	all, err := s.load(ctx)
	if err != nil {
		return nil, err
	}
	for _, sub := range all {
		if queues := next.queues[sub.Type]; !slices.Contains(queues, sub.Queue) {
			next.queues[sub.Type] = append(queues, sub.Queue)
		}
	}
	s.known.Store(next)
	return next, nil
}

func (s *subscribers) ifFresh() *subscriptionsAt {
	known := s.known.Load()
	if known == nil || known.changed != s.changed.Load() || time.Since(known.read) > subscriptionsAge {
		return nil
	}
	return known
}

// maxLost is the number of attempts at a unit whose subscribers are gone. Each reads the
// subscriptions anew.
const maxLost = 3

// lostSubscribers reports whether err is of a subscriber to messages of ops whose table is gone.
// The next publish leaves that subscriber out.
func (c *Conn) lostSubscribers(err error, ops []transport.Operation) bool {
	refused, ok := errors.AsType[*transport.DispatchError](err)
	if !ok || !slices.ContainsFunc(refused.Ops, func(f transport.OpError) bool { return lost(f, ops) }) {
		return false
	}
	c.subs.forget()
	return true
}

// lost reports whether the operation has failed because a subscriber's table does not exist.
func lost(failed transport.OpError, ops []transport.Operation) bool {
	return ops[failed.Index].Queue == "" && errors.Is(failed.Err, transport.ErrNoQueue)
}

// reachable returns all without the subscribers whose queues take no messages, and logs a warning
// once for each queue.
func (c *Conn) reachable(ctx context.Context, all []Subscription) ([]Subscription, error) {
	reasons := map[string]error{}
	var queues []string
	for _, s := range all {
		if _, seen := reasons[s.Queue]; seen {
			continue
		}
		if reasons[s.Queue] = c.store.Check(s.Queue); reasons[s.Queue] == nil {
			queues = append(queues, s.Queue)
		}
	}
	if len(queues) > 0 {
		gone, err := c.store.Missing(ctx, queues)
		if err != nil {
			return nil, err
		}
		for i, q := range queues {
			if gone[i] {
				reasons[q] = transport.ErrNoQueue
			}
		}
	}
	for q, why := range reasons {
		c.warnOfSubscriber(ctx, q, why)
	}
	return slices.DeleteFunc(all, func(s Subscription) bool { return reasons[s.Queue] != nil }), nil
}

func (c *Conn) warnOfSubscriber(ctx context.Context, queue string, why error) {
	if why == nil {
		c.warned.Delete(queue) // the next time is logged again
		return
	}
	if _, already := c.warned.LoadOrStore(queue, nil); already {
		return
	}
	c.cfg.Env.Log().WarnContext(ctx, "a subscriber gets no messages because its queue takes none: install its endpoint again, or remove its subscriptions",
		slog.String("queue", queue), slog.Any("reason", why))
}
