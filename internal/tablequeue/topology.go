package tablequeue

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// topology creates, inspects and removes queues and subscriptions.
type topology struct {
	*core

	subs     *subscribers
	unusable *unusable
	forwards *forwards
	inboxes  *inboxes
	records  *records
}

// Install implements [transport.Installer].
func (t *topology) Install(ctx context.Context, plan transport.Plan) error {
	defer t.unusable.found()
	plan = t.shortPlan(plan)
	return t.call(ctx, names(plan), func(ctx context.Context) error { return t.store.Topology.Install(ctx, plan) })
}

// Inspect implements [transport.Inspector].
func (t *topology) Inspect(ctx context.Context, queues ...string) ([]transport.QueueStats, error) {
	queues = t.shortNames(queues)
	return ask(ctx, t.core, queues, func(ctx context.Context) (all []transport.QueueStats, err error) {
		listed := len(queues) == 0
		if listed {
			if queues, err = t.store.Topology.List(ctx); err != nil {
				return nil, err
			}
		}
		for _, q := range queues {
			stats, err := t.store.Topology.Inspect(ctx, q)
			switch {
			case listed && errors.Is(err, transport.ErrNoQueue): // removed since
			case err != nil:
				return nil, err
			default:
				all = append(all, stats)
			}
		}
		return all, nil
	})
}

// Subscribe implements [transport.Subscriber]. This Conn publishes to the new subscriber at once,
// and others when they are notified, or after a second.
func (t *topology) Subscribe(ctx context.Context, queue string, types []string) error {
	defer t.unusable.found()
	queue = t.shortName(queue)
	return t.subscribe(ctx, func(ctx context.Context) error { return t.store.Subscriptions.Subscribe(ctx, queue, types) }, queue)
}

// Unsubscribe implements [transport.Subscriber]. Messages that other processes publish may arrive
// for a second more.
func (t *topology) Unsubscribe(ctx context.Context, queue string, types []string) error {
	queue = t.shortName(queue)
	return t.subscribe(ctx, func(ctx context.Context) error { return t.store.Subscriptions.Unsubscribe(ctx, queue, types) }, queue)
}

// Remove implements [transport.Remover]: a queue is deleted with its subscriptions and its queue of
// forwards.
func (t *topology) Remove(ctx context.Context, queues ...string) error {
	queues = t.shortNames(queues)
	return t.subscribe(ctx, func(ctx context.Context) error {
		forwards, err := t.forwards.beside(ctx, queues)
		if err != nil {
			return err
		}
		return t.store.Topology.Remove(ctx, append(forwards, queues...))
	}, queues...)
}

// subscribe changes the subscriptions of queues, and has other processes notified.
func (t *topology) subscribe(ctx context.Context, change func(context.Context) error, queues ...string) error {
	defer t.subs.forget()
	err := t.call(ctx, queues, change)
	if err == nil {
		t.wakes.announce(subscriptionsChanged)
	}
	return err
}

// Verify implements [transport.Verifier].
func (t *topology) Verify(ctx context.Context, plan transport.Plan) (found []transport.Finding, err error) {
	plan = t.shortPlan(plan)
	err = t.call(ctx, names(plan), func(ctx context.Context) error {
		switch _, err := t.store.Subscriptions.Subscriptions(ctx); {
		case errors.Is(err, ErrNotInstalled):
			found = append(found, transport.Finding{Kind: "table", Name: "subscriptions", State: transport.Missing})
		case err != nil:
			return err
		}
		if plan.Queues, err = t.forwards.with(ctx, plan.Queues); err != nil {
			return err
		}
		for _, q := range plan.Queues {
			remarks, err := t.examine(ctx, q)
			if err != nil {
				return err
			}
			for _, r := range remarks {
				found = append(found, transport.Finding{Kind: "queue", Name: q.Name, State: r.State, Detail: r.Text})
			}
		}
		more, err := t.inboxes.verify(ctx, plan.Inboxes)
		found = append(found, more...)
		if err != nil || len(plan.Records) == 0 {
			return err
		}
		more, err = t.records.verify(ctx)
		found = append(found, more...)
		return err
	})
	return found, err
}

// Examiner is the part of a [Store] whose tables may differ from those that the installer creates,
// and yet can be used.
type Examiner interface {
	// Examine returns remarks about the table of a queue, which exists and is one of this version
	// or a foreign one.
	Examine(ctx context.Context, q transport.Queue) ([]Remark, error)
}

// Remark is a part of a [transport.Finding] about a queue.
type Remark struct {
	State transport.FindingState
	Text  string
}

// examine compares the table of a queue with the one that the installer creates.
func (t *topology) examine(ctx context.Context, q transport.Queue) (all []Remark, err error) {
	err = t.store.Topology.Exists(ctx, q.Name)
	unfit, differs := errors.AsType[*UnfitError](err)
	switch {
	case errors.Is(err, transport.ErrNoQueue):
		return []Remark{{State: transport.Missing}}, nil
	case err != nil && !differs:
		return nil, err
	case differs && (!unfit.Foreign || !q.Shared):
		all = append(all, Remark{transport.Differs, unfit.Reason})
	}
	if t.store.Examiner != nil && (!differs || unfit.Foreign) {
		more, err := t.store.Examiner.Examine(ctx, q)
		return append(all, more...), err
	}
	return all, nil
}

// VerifySubscriptions implements [transport.SubscriptionVerifier].
func (t *topology) VerifySubscriptions(ctx context.Context, queue string, types []string) (found []transport.Finding, err error) {
	queue = t.shortName(queue)
	all, err := ask(ctx, t.core, []string{queue}, t.store.Subscriptions.Subscriptions)
	if err != nil && !errors.Is(err, ErrNotInstalled) {
		return nil, err
	}
	for _, t := range types {
		if !slices.Contains(all, Subscription{Type: t, Queue: queue}) {
			found = append(found, transport.Finding{Kind: "subscription", Name: t, State: transport.Missing, Detail: "of queue " + queue})
		}
	}
	return found, nil
}

func names(plan transport.Plan) (all []string) {
	for _, q := range plan.Queues {
		all = append(all, q.Name)
	}
	return append(all, plan.Inboxes...)
}

// subscriptionsAge is the largest age of the subscriptions that a publish uses, and so the time
// after which another process's Subscribe takes effect.
const subscriptionsAge = time.Second

// subscribers caches the subscriptions. It reads the whole table, at most once in subscriptionsAge,
// and only for a publish.
type subscribers struct {
	*core

	loading chan struct{} // holds a token while one goroutine loads
	known   atomic.Pointer[subscriptionsAt]
	changed atomic.Int64 // number of calls of forget
	warned  sync.Map     // the queues for which a warning was logged
}

func newSubscribers(c *core) *subscribers {
	return &subscribers{core: c, loading: make(chan struct{}, 1)}
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

// load reads the subscriptions for a publish. When it fails, no message of the publish was sent.
func (s *subscribers) load(ctx context.Context) ([]Subscription, error) {
	all, err := ask(ctx, s.core, nil, func(ctx context.Context) ([]Subscription, error) {
		all, err := s.store.Subscriptions.Subscriptions(ctx)
		if err != nil {
			return nil, err
		}
		return s.reachable(ctx, all)
	})
	if err != nil {
		return nil, s.unreachable(err)
	}
	return all, nil
}

// reachable returns all without the subscribers whose queues take no messages, and logs a warning
// once for each queue.
func (s *subscribers) reachable(ctx context.Context, all []Subscription) ([]Subscription, error) {
	reasons := map[string]error{}
	var queues []string
	for _, sub := range all {
		if _, seen := reasons[sub.Queue]; seen {
			continue
		}
		if reasons[sub.Queue] = s.store.Queues.Check(sub.Queue); reasons[sub.Queue] == nil {
			queues = append(queues, sub.Queue)
		}
	}
	if len(queues) > 0 {
		gone, err := s.store.Topology.Missing(ctx, queues)
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
		s.warnOfSubscriber(ctx, q, why)
	}
	return slices.DeleteFunc(all, func(sub Subscription) bool { return reasons[sub.Queue] != nil }), nil
}

func (s *subscribers) warnOfSubscriber(ctx context.Context, queue string, why error) {
	if why == nil {
		s.warned.Delete(queue) // the next time is logged again
		return
	}
	if _, already := s.warned.LoadOrStore(queue, nil); already {
		return
	}
	s.cfg.Env.Log().WarnContext(ctx, "a subscriber gets no messages because its queue takes none: install its endpoint again, or remove its subscriptions",
		slog.String("queue", queue), slog.Any("reason", why))
}
