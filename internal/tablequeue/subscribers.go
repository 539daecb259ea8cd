package tablequeue

import (
	"context"
	"slices"
	"sync/atomic"
	"time"
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
