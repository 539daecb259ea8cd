package tablequeue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

// Install implements [transport.Installer].
func (c *Conn) Install(ctx context.Context, plan transport.Plan) error {
	defer c.unusable.found()
	plan = c.shortPlan(plan)
	return c.call(ctx, names(plan), func(ctx context.Context) error { return c.store.Install(ctx, plan) })
}

// Inspect implements [transport.Inspector].
func (c *Conn) Inspect(ctx context.Context, queues ...string) ([]transport.QueueStats, error) {
	queues = c.shortNames(queues)
	return ask(ctx, c, queues, func(ctx context.Context) (all []transport.QueueStats, err error) {
		listed := len(queues) == 0
		if listed {
			if queues, err = c.store.List(ctx); err != nil {
				return nil, err
			}
		}
		for _, q := range queues {
			stats, err := c.store.Inspect(ctx, q)
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
func (c *Conn) Subscribe(ctx context.Context, queue string, types []string) error {
	defer c.unusable.found()
	queue = c.ShortName(queue)
	return c.subscribe(ctx, func(ctx context.Context) error { return c.store.Subscribe(ctx, queue, types) }, queue)
}

// Unsubscribe implements [transport.Subscriber]. Messages that other processes publish may arrive
// for a second more.
func (c *Conn) Unsubscribe(ctx context.Context, queue string, types []string) error {
	queue = c.ShortName(queue)
	return c.subscribe(ctx, func(ctx context.Context) error { return c.store.Unsubscribe(ctx, queue, types) }, queue)
}

// Remove implements [transport.Remover]: a queue is deleted with its subscriptions and its queue of
// forwards.
func (c *Conn) Remove(ctx context.Context, queues ...string) error {
	queues = c.shortNames(queues)
	return c.subscribe(ctx, func(ctx context.Context) error {
		forwards, err := c.forwardsOf(ctx, queues)
		if err != nil {
			return err
		}
		return c.store.Remove(ctx, append(forwards, queues...))
	}, queues...)
}

// subscribe changes the subscriptions of queues, and has other processes notified.
func (c *Conn) subscribe(ctx context.Context, change func(context.Context) error, queues ...string) error {
	defer c.subs.forget()
	err := c.call(ctx, queues, change)
	if err == nil {
		c.wakes.announce(subscriptionsChanged)
	}
	return err
}

// subscriptions reads the subscriptions for a publish. When it fails, no message of the publish was
// sent.
func (c *Conn) subscriptions(ctx context.Context) ([]Subscription, error) {
	all, err := ask(ctx, c, nil, func(ctx context.Context) ([]Subscription, error) {
		all, err := c.store.Subscriptions(ctx)
		if err != nil {
			return nil, err
		}
		return c.reachable(ctx, all)
	})
	if err != nil {
		return nil, c.unreachable(err)
	}
	return all, nil
}

// unreachable returns err, of a call that has written no message, with [transport.ErrUnreachable]
// where the call may succeed later.
func (c *Conn) unreachable(err error) error {
	switch c.store.Classify(err) {
	case Unavailable, Impeded, Unknown, Locked:
		return fmt.Errorf("%w: %w", transport.ErrUnreachable, err)
	case Failed, Refused, Conflict:
	}
	return err
}

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

// sweepEvery is the time between two sweeps of a Conn that receives.
const sweepEvery = time.Minute

const (
	// MaxSwept is the largest number of rows that one call of a Sweeper removes.
	MaxSwept = 1000
	// SweepPause is the least time between two sweeps of a queue by all processes together.
	SweepPause = 45 * time.Second
)

// Sweeper is implemented by a [Store] that can remove expired rows from queues without a receiver.
// Without it an expired row is removed only when it is claimed.
type Sweeper interface {
	// DueForSweep returns the queues that no process has swept for [SweepPause], each to one
	// process, which sweeps it.
	DueForSweep(ctx context.Context) ([]string, error)
	// SweepSome removes up to [MaxSwept] expired rows of queue that are not leased, and returns
	// their number.
	SweepSome(ctx context.Context, queue string) (int64, error)
}

// Warner is implemented by a [Store] that can foresee failures. Without it there are no warnings.
type Warner interface {
	// Warnings returns texts about the tables of queues that will fail in time.
	Warnings(ctx context.Context, queues []string) ([]string, error)
}

// Warnings implements [transport.Warner]: the warnings are those of the last sweep, and about
// queues that take no messages.
func (c *Conn) Warnings() []string {
	all := c.unusable.warnings()
	if swept := c.warnings.Load(); swept != nil {
		all = append(all, *swept...)
	}
	return all
}

// warn looks for failures of the queues that the Conn receives from.
func (c *Conn) warn(ctx context.Context) error {
	all, err := c.inboxWarnings(ctx)
	w, ok := c.store.(Warner)
	if !ok {
		c.warnings.Store(&all)
		return err
	}
	var queues []string
	c.queues.Range(func(queue, _ any) bool {
		queues = append(queues, queue.(string)) //nolint:errcheck // its keys are names
		return true
	})
	slices.Sort(queues)
	more, werr := w.Warnings(ctx, queues)
	if err = errors.Join(err, werr); err == nil {
		all = append(all, more...)
		c.warnings.Store(&all)
	}
	return err
}

// Sweep sweeps the queues that are due: also the others where one cannot be swept.
func Sweep(ctx context.Context, store Sweeper) error {
	queues, err := store.DueForSweep(ctx)
	errs := []error{err}
	for _, q := range queues {
		var err error
		for n := int64(MaxSwept); n == MaxSwept && err == nil; {
			n, err = store.SweepSome(ctx, q)
		}
		if !errors.Is(err, transport.ErrNoQueue) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// sweep sweeps, unless store is nil, and looks for failures until the Conn is closed. It repeats a
// sweep that fails after the usual pause.
func (c *Conn) sweep(store Sweeper) {
	for backoff.Sleep(c.life, sweepEvery) == nil {
		ctx, cancel := context.WithTimeout(c.life, sweepEvery)
		if store != nil {
			if err := Sweep(ctx, store); err != nil && c.life.Err() == nil {
				c.cfg.Env.Log().WarnContext(ctx, "expired messages cannot be removed: it is tried again in a minute", slog.Any("error", err))
			}
		}
		if err := errors.Join(c.warn(ctx), c.compareClocks(ctx)); err != nil && c.life.Err() == nil {
			c.cfg.Env.Log().DebugContext(ctx, "tables cannot be examined: it is tried again in a minute", slog.Any("error", err))
		}
		cancel()
	}
}

// Verify implements [transport.Verifier].
func (c *Conn) Verify(ctx context.Context, plan transport.Plan) (found []transport.Finding, err error) {
	plan = c.shortPlan(plan)
	err = c.call(ctx, names(plan), func(ctx context.Context) error {
		switch _, err := c.store.Subscriptions(ctx); {
		case errors.Is(err, ErrNotInstalled):
			found = append(found, transport.Finding{Kind: "table", Name: "subscriptions", State: transport.Missing})
		case err != nil:
			return err
		}
		if plan.Queues, err = c.withForwards(ctx, plan.Queues); err != nil {
			return err
		}
		for _, q := range plan.Queues {
			remarks, err := c.examine(ctx, q)
			if err != nil {
				return err
			}
			for _, r := range remarks {
				found = append(found, transport.Finding{Kind: "queue", Name: q.Name, State: r.State, Detail: r.Text})
			}
		}
		more, err := c.verifyInboxes(ctx, plan.Inboxes)
		found = append(found, more...)
		if err != nil || len(plan.Records) == 0 {
			return err
		}
		more, err = c.verifyRecords(ctx)
		found = append(found, more...)
		return err
	})
	return found, err
}

func (c *Conn) verifyInboxes(ctx context.Context, inboxes []string) (found []transport.Finding, err error) {
	for _, inbox := range inboxes {
		err := c.store.InboxState(ctx, inbox)
		unfit, differs := errors.AsType[*UnfitError](err)
		switch {
		case errors.Is(err, transport.ErrNoQueue):
			found = append(found, transport.Finding{Kind: "inbox", Name: inbox, State: transport.Missing})
		case differs:
			found = append(found, transport.Finding{Kind: "inbox", Name: inbox, State: transport.Differs, Detail: unfit.Reason})
		case err != nil:
			return found, err
		}
	}
	return found, nil
}

func (c *Conn) verifyRecords(ctx context.Context) (found []transport.Finding, err error) {
	records, err := c.records()
	if err != nil {
		return nil, err
	}
	err = records.RecordsState(ctx)
	unfit, differs := errors.AsType[*UnfitError](err)
	switch {
	case errors.Is(err, transport.ErrNoQueue):
		return []transport.Finding{{Kind: "table", Name: "records", State: transport.Missing}}, nil
	case differs:
		return []transport.Finding{{Kind: "table", Name: "records", State: transport.Differs, Detail: unfit.Reason}}, nil
	}
	return nil, err
}

// Examiner is implemented by a [Store] whose tables may differ from those that the installer
// creates, and yet can be used. Without it [Topology].Exists decides.
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
func (c *Conn) examine(ctx context.Context, q transport.Queue) (all []Remark, err error) {
	err = c.store.Exists(ctx, q.Name)
	unfit, differs := errors.AsType[*UnfitError](err)
	switch {
	case errors.Is(err, transport.ErrNoQueue):
		return []Remark{{State: transport.Missing}}, nil
	case err != nil && !differs:
		return nil, err
	case differs && (!unfit.Foreign || !q.Shared):
		all = append(all, Remark{transport.Differs, unfit.Reason})
	}
	if examiner, ok := c.store.(Examiner); ok && (!differs || unfit.Foreign) {
		more, err := examiner.Examine(ctx, q)
		return append(all, more...), err
	}
	return all, nil
}

// VerifySubscriptions implements [transport.SubscriptionVerifier].
func (c *Conn) VerifySubscriptions(ctx context.Context, queue string, types []string) (found []transport.Finding, err error) {
	queue = c.ShortName(queue)
	all, err := ask(ctx, c, []string{queue}, c.store.Subscriptions)
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
