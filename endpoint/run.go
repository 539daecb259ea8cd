package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/audit"
	"github.com/holdfast-go/holdfast/endpoint/internal/keylock"
	"github.com/holdfast-go/holdfast/endpoint/internal/process"
	"github.com/holdfast-go/holdfast/endpoint/internal/quarantine"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/transport"
)

// Run connects, receives and handles messages until ctx ends. Then Run waits for the handlers,
// cancels their context after StopTimeout, and disconnects when the last handler has returned. Run
// returns nil after such a stop, and an error if the endpoint could not start, also because ctx
// ended first. If handlers, or other functions of the program, have not returned 5 s after
// StopTimeout, Run disconnects and returns a [*StuckError]. If the broker becomes unreachable later,
// Run waits for the broker. An endpoint runs once.
func (e *Endpoint) Run(ctx context.Context) (err error) {
	return e.run(ctx, pump.NewGroup(), nil)
}

// run is Run beside further endpoints of a group. shared is for the connections of the group; nil
// for a single endpoint.
func (e *Endpoint) run(ctx context.Context, group *pump.Group, shared *transport.Shared) (err error) {
	if e.started.Swap(true) {
		return fmt.Errorf("endpoint %q: it has been run already: make another by New", e.cfg.Name)
	}
	defer func() {
		e.err = err
		close(e.ended)
	}()
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	ran := errRunGoexit
	go func() {
		defer end()
		ran = e.runToEnd(ctx, group, shared)
	}()
	if err := waitFor(ctx, running, e); err != nil {
		return err // of a run that goes on and still sets ran
	}
	return ran
}

// runToEnd runs the endpoint and returns when the last handler has.
func (e *Endpoint) runToEnd(ctx context.Context, group *pump.Group, shared *transport.Shared) (err error) {
	conn, err := connect(ctx, e, shared)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	stored, err := openOutbox(ctx, e, shared)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stored.Close()) }()
	l := newLaunch(ctx, e, conn, stored)
	defer l.Settler.Deadlines.Close()
	defer func() { l.Outage.Close() }() // prepare makes it
	l.group, l.budget = group, pump.NewBudget(e.cfg.MaxBufferedBytes)
	if err := l.prepare(ctx); err != nil {
		return err
	}
	return l.receiveAll(ctx)
}

// prepare checks the transport and prepares the queues.
func (l *launch) prepare(ctx context.Context) error {
	if l.e.cfg.Transactions == SendsAtomicWithReceive && !l.Limits.Atomic {
		return fmt.Errorf("endpoint %q: the transport does not offer %v", l.e.cfg.Name, l.e.cfg.Transactions)
	}
	if err := checkQueues(l); err != nil {
		return err
	}
	retries, err := offeredRetries(ctx, l)
	if err != nil {
		return err
	}
	l.recoverability = l.names.InPolicy(retries)
	l.Auditor.Refusals = audit.Refusals{
		ErrorQueue: l.recoverability.ErrorQueue, Host: l.e.host, Instance: l.e.cfg.Instance, Config: l.recoverability,
		Names: &l.names, Notifier: l.Notifier, Log: l.e.cfg.Logger,
	}
	if l.e.cfg.Install {
		if err := installIn(ctx, l.e.cfg.Name, l.conn, l.layout.plan()); err != nil {
			return err
		}
		if l.Outbox != nil {
			if err := installIn(ctx, l.e.cfg.Name, l.Outbox.Conn, l.layout.databasePlan()); err != nil {
				return err
			}
		}
	}
	err = l.prepareOutbox(ctx)
	if err == nil {
		err = verifyRecords(ctx, l)
	}
	if err != nil {
		return fmt.Errorf("endpoint %q: %w", l.e.cfg.Name, err)
	}
	if err := verifyQueues(ctx, l); err != nil {
		return err
	}
	return subscribe(ctx, l)
}

// receiveAll receives from the queues of the endpoint and of the driver until ctx ends.
func (l *launch) receiveAll(ctx context.Context) (err error) {
	var sources []source
	defer func() { err = errors.Join(err, closeAll(sources)) }()
	for _, queue := range l.layout.queues() {
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
	l.limiting.SetSerial = l.setSerial
	if queue := l.layout.quarantineQueue(); queue != "" {
		l.Quarantine = newQuarantine(l, queue)
		l.Slow = new(pump.SlowStart)
		for _, s := range sources {
			l.Slow.Add(s.Source)
		}
	}
	composeRecovery(l)
	composeProcess(l)
	l.e.live.Store(&l.live)
	close(l.e.ready)
	defer l.e.live.Store(nil)
	defer l.relay.Begin(ctx)() // after the functions of Background have returned, which may store messages
	lasting := context.WithoutCancel(ctx)
	defer beside(lasting, func(ctx context.Context) { runBackground(ctx, l) })()
	defer beside(lasting, l.Calls.Run)()
	l.Quarantine.Begin(ctx)
	defer beside(ctx, l.reportStart)()
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

// newQuarantine returns the quarantine of an endpoint with l.sources.
func newQuarantine(l *launch, queue string) *quarantine.Quarantine {
	return quarantine.New(quarantine.Config{
		Quarantine: l.recoverability.Quarantine, Queue: l.names.Of(queue),
		Conn: l.conn, Limits: l.Limits, Names: &l.names, Notifier: l.Notifier, Group: l.group, Budget: l.budget,
		StopTimeout: l.e.cfg.StopTimeout, Log: l.e.cfg.Logger,
		Paused: l.sources[0].Paused, StuckPause: l.Recovery.StuckPause, Handle: l.handleExclusively,
	})
}

// handle returns the function for each delivery from the queue.
func (l *launch) handle(queue string) handleFunc {
	var arrivals *keylock.Arrivals
	if l.Locks != nil {
		arrivals = l.Locks.Arrivals()
	}
	return func(ctx context.Context, d transport.Delivery, slot *pump.Slot) {
		l.loop.Process(ctx, l.receive(d, slot, queue, arrivals))
	}
}

// handleExclusively processes a delivery from the quarantine.
func (l *launch) handleExclusively(
	ctx context.Context, d transport.Delivery, slot *pump.Slot, stuck func(),
) {
	l.loop.ProcessExclusively(ctx, l.receive(d, slot, l.names.Of(l.e.cfg.Name), nil), stuck)
}

// newSatellites returns the driver's own queues.
func (l *launch) newSatellites() *satellites {
	finder, _ := l.conn.(transport.Satellites)
	return &satellites{
		finder: finder, log: l.e.cfg.Logger, watch: l.watch, open: l.openSatellite,
		search: pump.Reception{Queue: "the transport's own queues"},
	}
}

// openSatellite opens the source of a driver's own queue. A failed message is requeued after a
// pause.
func (l *launch) openSatellite(ctx context.Context, sat transport.Satellite) (source, error) {
	handle := func(ctx context.Context, d transport.Delivery, slot *pump.Slot) {
		l.loop.Forward(ctx, l.receive(d, slot, sat.Queue, nil), sat.Handle)
	}
	return l.openSource(ctx, transport.ReceiverOptions{Queue: sat.Queue}, max(1, sat.Concurrency), handle, nil)
}

// setSerial sets whether the sources start a single message at a time.
func (l *launch) setSerial(on bool) {
	for _, s := range l.sources {
		s.SetSerial(on)
	}
}

// waitFor waits for the end of running, the context of a run. If handlers outlast the stop, waitFor
// closes the connections, so that the handlers can neither send nor commit, and returns a
// StuckError.
func waitFor(ctx, running context.Context, e *Endpoint) error {
	select {
	case <-running.Done():
		return nil
	case <-ctx.Done():
	}
	if e.cfg.StopTimeout < 0 {
		<-running.Done()
		return nil
	}
	lasting := context.WithoutCancel(ctx)
	if backoff.Sleep(running, e.cfg.StopTimeout+100*time.Millisecond) == nil {
		warnOfStuck(lasting, e)
	}
	for pause := stuckGrace - 100*time.Millisecond; backoff.Sleep(running, pause) == nil; pause = time.Second {
		if err := abandon(lasting, e); err != nil {
			return err
		}
	}
	return nil
}

// warnOfStuck logs the handlers that run on after the end of the context of handlers.
func warnOfStuck(ctx context.Context, e *Endpoint) {
	live := e.live.Load()
	if live == nil {
		return
	}
	if stuck := stuckHandlers(live.Calls.Running(0)); len(stuck) > 0 {
		e.cfg.Logger.LogAttrs(ctx, slog.LevelError, "handlers run on after StopTimeout, although their context has ended: Run returns without them in 5 s",
			slog.String("endpoint", e.cfg.Name), slog.Int("count", len(stuck)), slog.String("handlers", namesOf(stuck)))
	}
}

// abandon closes the connections and returns a StuckError if handlers have run for the grace period
// and longer.
func abandon(ctx context.Context, e *Endpoint) error {
	live := e.live.Load()
	if live == nil {
		return nil
	}
	stuck := stuckHandlers(live.Calls.Running(stuckGrace))
	if len(stuck) == 0 {
		return nil
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if err := errors.Join(live.conn.Close(), live.Outbox.Close()); err != nil {
			e.cfg.Logger.WarnContext(ctx, "a connection could not be closed", slog.Any("error", err))
		}
	}()
	select {
	case <-closed:
	case <-time.After(closeGrace):
	}
	return &StuckError{Endpoint: e.cfg.Name, Handlers: stuck}
}

// receive returns the message of a delivery.
func (l *launch) receive(
	d transport.Delivery, slot *pump.Slot, queue string, arrivals *keylock.Arrivals,
) *process.Message {
	r := &received{e: l.e, site: &l.site}
	r.Attempts = r
	r.Begin(&l.Shared, d, slot, queue, arrivals)
	return &r.Message
}
