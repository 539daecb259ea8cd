package endpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/holdfast-go/holdfast/endpoint/internal/keylock"
	"github.com/holdfast-go/holdfast/endpoint/internal/names"
	"github.com/holdfast-go/holdfast/endpoint/internal/notify"
	"github.com/holdfast-go/holdfast/endpoint/internal/outbox"
	"github.com/holdfast-go/holdfast/endpoint/internal/overdue"
	"github.com/holdfast-go/holdfast/endpoint/internal/process"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/endpoint/internal/throttle"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// launch is a run of an endpoint, from the connection to the end of the last handler.
type launch struct {
	live

	e        *Endpoint
	layout   layout
	site     site
	limiting throttle.Shared // of the rate limits
	budget   *pump.Budget    // of all received messages
	group    *pump.Group     // of the endpoints that run together
	loop     *process.Loop

	recoverability recoverability.Config // without what the transport and the transaction mode do not offer
}

func newLaunch(ctx context.Context, e *Endpoint, conn transport.Conn, stored *outbox.Outbox) *launch {
	l := &launch{e: e, layout: layout{&e.cfg, e.types}}
	l.conn, l.Outbox, l.stopping = conn, stored, ctx.Done()
	_, l.publishes = conn.(transport.Subscriber)
	_, l.joins = l.database().(transport.TxDispatcher)
	l.names = names.New(conn, e.cfg.Name, append(l.layout.queues(), e.cfg.Name+quarantineSuffix))
	l.atomic = e.cfg.Transactions == SendsAtomicWithReceive
	l.site = site{sender: &e.sender, live: &l.live, raised: e.cfg.Raised}
	l.Limits, l.Calls = conn.Limits(), overdue.New(e.cfg.Logger)
	l.Notifier = notify.New(e.cfg.Notify, e.cfg.Logger, l.Calls)
	l.Auditor.Conn, l.Auditor.AuditQueue, l.Auditor.ExpireAfter = conn, e.cfg.AuditQueue, e.cfg.AuditExpireAfter
	l.Settler = settle.Settler{
		Conn: conn, Log: e.cfg.Logger, Failures: e.failures, OnError: l.Auditor.Failed, TxElsewhere: stored != nil,
		Config: &l.recoverability, Instance: e.cfg.Instance,
		Deadlines: settle.Deadlines{Parent: context.WithoutCancel(ctx)},
	}
	l.limiting.Notifier, l.limiting.MaxDelay = l.Notifier, l.Limits.MaxDelay
	l.Throttle = throttle.New(e.cfg.Recoverability.RateLimit, maps.Keys(e.types.byName), &l.limiting)
	if slices.ContainsFunc(e.cfg.Handlers, func(h Handler) bool { return h.key != nil }) {
		l.Locks = new(keylock.Locks)
	}
	if t, ok := conn.(transport.Translator); ok {
		l.Translate = t.Translation()
	}
	if b, ok := conn.(transport.Blocker); ok { // a stop does not wait for the broker
		l.Settler.Deadlines.Blocked = func() bool { return ctx.Err() == nil && b.Blocked() }
	}
	return l
}

func connect(ctx context.Context, e *Endpoint, shared *transport.Shared) (transport.Conn, error) {
	conn, err := e.cfg.Transport.Open(ctx, environment(e, shared))
	if err != nil {
		return nil, fmt.Errorf("endpoint %q: connect: %w", e.cfg.Name, err)
	}
	return conn, nil
}

// openOutbox connects to the database of the outbox. It returns nil if no outbox is configured.
func openOutbox(ctx context.Context, e *Endpoint, shared *transport.Shared) (*outbox.Outbox, error) {
	if e.cfg.Outbox == nil {
		return nil, nil //nolint:nilnil // no outbox is no error
	}
	conn, err := e.cfg.Outbox.Open(ctx, environment(e, shared))
	if err != nil {
		return nil, fmt.Errorf("endpoint %q: connect to the outbox: %w", e.cfg.Name, err)
	}
	o, ok := outbox.New(conn, e.cfg.Name+outboxSuffix, e.cfg.Name+inboxSuffix)
	if !ok {
		err := fmt.Errorf("endpoint %q: a %T cannot be an outbox: use a transport on a SQL database", e.cfg.Name, e.cfg.Outbox)
		return nil, errors.Join(err, conn.Close())
	}
	return o, nil
}

// environment returns the environment for the transport and the outbox of the endpoint.
func environment(e *Endpoint, shared *transport.Shared) transport.Env {
	return transport.Env{
		Logger: e.cfg.Logger, Endpoint: e.cfg.Name, Instance: e.cfg.Instance, Shared: shared,
		Remember: max(0, e.cfg.Remember),
	}
}

// openSource opens a source. The source ends with ctx. arrived may be nil: see [pump.Config].
func (l *launch) openSource(
	ctx context.Context, opts transport.ReceiverOptions, concurrency int,
	handle handleFunc, arrived func(context.Context, []pump.Slot),
) (source, error) {
	r := &pump.Reception{Queue: opts.Queue}
	s, err := pump.OpenSource(ctx, pump.SourceConfig{
		Config: pump.Config{
			Limits: l.Limits, Queue: opts.Queue, Budget: l.budget, Concurrency: concurrency,
			Handle: handle, Arrived: arrived, StopTimeout: l.e.cfg.StopTimeout, Logger: l.e.cfg.Logger, OnReceive: l.watch(ctx, r),
		},
		Group: l.group,
		Open: func(ctx context.Context) (transport.Receiver, error) {
			receiver, err := l.conn.OpenReceiver(ctx, opts)
			_, impossible := errors.AsType[*transport.NameError](err)
			if errors.Is(err, transport.ErrNoQueue) && !impossible && !l.e.cfg.Install {
				err = fmt.Errorf("%w: create it with Config.Install or Endpoint.Install", err)
			}
			if err != nil {
				return nil, fmt.Errorf("receive from %q: %w", opts.Queue, err)
			}
			return receiver, nil
		},
	})
	return source{s, r}, err
}

// watch returns a function for the pump: the function is called after each failed Receive, and after
// the first successful Receive.
func (l *launch) watch(ctx context.Context, r *pump.Reception) func(error) {
	return func(err error) { l.Notifier.Outage(ctx, r.Queue, r.Note(err)) }
}
