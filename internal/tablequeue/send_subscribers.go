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

// subscriptionsAge is how old the known subscriptions may be when something is
// published: another process's Subscribe takes effect by then.
const subscriptionsAge = time.Second

// subscribers knows who subscribed to what. It reads the whole table, at most once in
// subscriptionsAge, and only when something is published.
type subscribers struct {
	load    func(context.Context) ([]Subscription, error)
	loading chan struct{} // holds a token while one goroutine loads
	known   atomic.Pointer[subscriptionsAt]
	changed atomic.Int64 // how often forget was called
}

type subscriptionsAt struct {
	queues  map[string][]string // by type, each once
	read    time.Time
	changed int64
}

func (s *subscribers) init(load func(context.Context) ([]Subscription, error)) {
	s.load, s.loading = load, make(chan struct{}, 1)
}

// of returns the queues that subscribed to any of types, each once.
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

// maxLost is how often a unit is tried whose subscribers turn out to be gone: each time they are read anew.
const maxLost = 3

// lostSubscribers reports whether err is about a subscriber of what ops publish whose table is gone. The next publish
// leaves the subscriber out.
func (c *Conn) lostSubscribers(err error, ops []transport.Operation) bool {
	var refused *transport.DispatchError
	if err == nil || !errors.As(err, &refused) {
		return false
	}
	found := slices.ContainsFunc(refused.Ops, func(f transport.OpError) bool { return lost(f, ops) })
	if found {
		c.subs.forget()
	}
	return found
}

// lost reports whether a subscriber's table is what the failed operation needs and there is not.
func lost(failed transport.OpError, ops []transport.Operation) bool {
	return ops[failed.Index].Queue == "" && errors.Is(failed.Err, transport.ErrNoQueue)
}

// reachable returns all without the subscribers that nothing can be sent to, and warns of each of their queues once.
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
		c.warned.Delete(queue) // to be warned of again
		return
	}
	if _, already := c.warned.LoadOrStore(queue, nil); already {
		return
	}
	c.cfg.Env.Log().WarnContext(ctx, "a subscriber is left out, as nothing can be sent to its queue: install the endpoint again, or remove its subscriptions",
		slog.String("queue", queue), slog.Any("reason", why))
}
