package endpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast/endpoint/internal/audit"
	"github.com/holdfast-go/holdfast/endpoint/internal/keylock"
	"github.com/holdfast-go/holdfast/endpoint/internal/names"
	"github.com/holdfast-go/holdfast/endpoint/internal/notify"
	"github.com/holdfast-go/holdfast/endpoint/internal/outbox"
	"github.com/holdfast-go/holdfast/endpoint/internal/overdue"
	"github.com/holdfast-go/holdfast/endpoint/internal/process"
	"github.com/holdfast-go/holdfast/endpoint/internal/quarantine"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/endpoint/internal/throttle"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// live is the state of a running endpoint.
type live struct {
	process.Shared

	e         *Endpoint
	conn      transport.Conn
	noTimers  error         // why Timers is nil, if that is not the configuration
	relay     *outbox.Relay // of timers; nil without
	names     names.Queues
	publishes bool
	joins     bool
	stopping  <-chan struct{} // closed when no more messages are received
	units     unitStore
	sources   []source        // of the endpoint's own queues
	limiting  throttle.Shared // of the rate limits
	budget    *pump.Budget    // of all received messages

	recoverability recoverability.Config // without what the transport and the transaction mode do not offer

	satellites *satellites
	group      *pump.Group // of the endpoints that run together
	loop       *process.Loop
}

// Run connects, receives and handles messages until ctx ends. Then it waits for the handlers,
// cancels their context after StopTimeout, and disconnects when the last one has returned. It
// returns nil after such a stop, and an error if it could not start, also because ctx ended first.
// If handlers, or other functions of the program, have not returned 5 s after StopTimeout, Run
// disconnects and returns a [*StuckError]. When the broker becomes unreachable later, Run waits for
// it. An endpoint runs once.
func (e *Endpoint) Run(ctx context.Context) (err error) {
	return e.run(ctx, pump.NewGroup(), nil)
}

// run is Run beside the other endpoints of a group. shared is for their connections; nil for a
// single endpoint.
func (e *Endpoint) run(ctx context.Context, group *pump.Group, shared *transport.Shared) (err error) {
	if e.started.Swap(true) {
		return fmt.Errorf("endpoint %q: it has been run already: make another by New", e.cfg.Name)
	}
	defer func() {
		e.err = err
		close(e.ended)
	}()
	ran := make(chan error, 1)
	go func() {
		err := errRunGoexit
		defer func() { ran <- err }()
		err = e.runToEnd(ctx, group, shared)
	}()
	return e.untilReturned(ctx, ran)
}

// runToEnd runs the endpoint and returns when the last handler has.
func (e *Endpoint) runToEnd(ctx context.Context, group *pump.Group, shared *transport.Shared) (err error) {
	conn, err := e.open(ctx, shared)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	stored, err := e.openOutbox(ctx, shared)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stored.Close()) }()
	live := newLive(ctx, e, conn, stored)
	defer live.Settler.Deadlines.Close()
	defer func() { live.Outage.Close() }() // prepare makes it
	live.group, live.budget = group, pump.NewBudget(e.cfg.MaxBufferedBytes)
	if err := live.prepare(ctx); err != nil {
		return err
	}
	return live.receiveAll(ctx)
}

func newLive(ctx context.Context, e *Endpoint, conn transport.Conn, stored *outbox.Outbox) *live {
	_, publishes := conn.(transport.Subscriber)
	_, joins := conn.(transport.TxDispatcher)
	if stored != nil {
		joins = stored.Joins
	}
	l := &live{
		e: e, conn: conn, names: names.New(conn, e.cfg.Name, append(e.queues(), e.cfg.Name+quarantineSuffix)), publishes: publishes, joins: joins, stopping: ctx.Done(),
	}
	l.Outbox, l.Limits, l.Calls = stored, conn.Limits(), overdue.New(e.cfg.Logger)
	l.units.live = l
	l.Notifier = notify.New(e.cfg.Notify, e.cfg.Logger, l.Calls)
	l.Auditor.Conn, l.Auditor.AuditQueue, l.Auditor.ExpireAfter = conn, e.cfg.AuditQueue, e.cfg.AuditExpireAfter
	l.Settler = settle.Settler{
		Conn: conn, Log: e.cfg.Logger, Failures: e.failures, OnError: l.Auditor.Failed, TxElsewhere: stored != nil,
		Config: &l.recoverability, Instance: e.cfg.Instance,
		Deadlines: settle.Deadlines{Parent: context.WithoutCancel(ctx)},
	}
	l.limiting.Notifier, l.limiting.MaxDelay = l.Notifier, l.Limits.MaxDelay
	l.Throttle = throttle.New(e.cfg.Recoverability.RateLimit, e.types.names(), &l.limiting)
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

func (e *Endpoint) open(ctx context.Context, shared *transport.Shared) (transport.Conn, error) {
	conn, err := e.cfg.Transport.Open(ctx, e.env(shared))
	if err != nil {
		return nil, fmt.Errorf("endpoint %q: connect: %w", e.cfg.Name, err)
	}
	return conn, nil
}

// prepare checks the transport and prepares its queues.
func (l *live) prepare(ctx context.Context) error {
	if l.e.cfg.Transactions == SendsAtomicWithReceive && !l.Limits.Atomic {
		return fmt.Errorf("endpoint %q: the transport does not offer %v", l.e.cfg.Name, l.e.cfg.Transactions)
	}
	if err := l.checkQueues(); err != nil {
		return err
	}
	retries, err := l.offeredRetries(ctx)
	if err != nil {
		return err
	}
	l.recoverability = l.names.InPolicy(retries)
	l.Auditor.Refusals = audit.Refusals{
		ErrorQueue: l.recoverability.ErrorQueue, Host: l.e.host, Instance: l.e.cfg.Instance, Config: l.recoverability,
		Names: &l.names, Notifier: l.Notifier, Log: l.e.cfg.Logger,
	}
	if l.e.cfg.Install {
		if err := l.e.installIn(ctx, l.conn, l.e.plan()); err != nil {
			return err
		}
	}
	if err := l.prepareOutbox(ctx); err != nil {
		return err
	}
	if err := l.verifyRecords(ctx); err != nil {
		return err
	}
	if err := l.verify(ctx); err != nil {
		return err
	}
	return l.subscribe(ctx)
}

// queues returns the queues that the endpoint receives from.
func (e *Endpoint) queues() []string {
	switch own := e.cfg.instanceQueue(); {
	case e.cfg.SendOnly:
		return nil
	case own != "":
		return []string{e.cfg.Name, own}
	}
	return []string{e.cfg.Name}
}

// receiveAll receives from the queues of the endpoint and of the driver until ctx ends.
func (l *live) receiveAll(ctx context.Context) (err error) {
	var sources []source
	defer func() { err = errors.Join(err, closeAll(sources)) }()
	for _, queue := range l.e.queues() {
		queue = l.names.Of(queue)
		opts := transport.ReceiverOptions{Queue: queue, CompletesFirst: l.e.cfg.Transactions == None}
		own, err := l.openSource(ctx, opts, l.e.cfg.Concurrency, l.handle(queue), l.Inbox.Arrived(queue))
		if err != nil {
			return fmt.Errorf("endpoint %q: %w", l.e.cfg.Name, err)
		}
		sources = append(sources, own)
	}
	if l.Timers != nil {
		if l.relay, err = l.openRelay(ctx); err != nil {
			return fmt.Errorf("endpoint %q: %w", l.e.cfg.Name, err)
		}
		defer func() { err = errors.Join(err, l.relay.Close()) }()
	}
	l.sources, l.satellites = sources, l.newSatellites()
	l.limiting.SetSerial = serial(sources)
	if queue := l.e.quarantineQueue(); queue != "" {
		l.Quarantine = newQuarantine(l, queue)
		l.Slow = new(pump.SlowStart)
		for _, s := range sources {
			l.Slow.Add(s.Source)
		}
	}
	l.composeRecovery()
	l.composeProcess()
	l.e.live.Store(l)
	close(l.e.ready)
	defer l.e.live.Store(nil)
	defer l.relay.Begin(ctx)() // after the functions of Background have returned, which may store messages
	defer l.background(ctx)()
	defer l.watchCalls(ctx)()
	l.Quarantine.Begin(ctx)
	defer l.reportStart(ctx)()
	var wg sync.WaitGroup
	wg.Go(func() { l.Quarantine.Watch(ctx) })
	wg.Go(func() { err = l.satellites.run(ctx) })
	for _, s := range sources {
		wg.Go(func() { s.Run(ctx) })
	}
	<-ctx.Done()
	wg.Wait()
	l.limiting.WaitForReports()
	return err
}

// newQuarantine returns the quarantine of an endpoint that receives from l.sources.
func newQuarantine(l *live, queue string) *quarantine.Quarantine {
	return quarantine.New(quarantine.Config{
		Quarantine: l.recoverability.Quarantine, Queue: l.names.Of(queue),
		Conn: l.conn, Limits: l.Limits, Names: &l.names, Notifier: l.Notifier, Group: l.group, Budget: l.budget,
		StopTimeout: l.e.cfg.StopTimeout, Log: l.e.cfg.Logger,
		Paused: l.sources[0].Paused, StuckPause: l.Recovery.StuckPause, Handle: l.handleExclusively,
	})
}
