package endpoint

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// live is the state of a running endpoint.
type live struct {
	conn       transport.Conn
	limits     transport.Limits
	publishes  bool
	joins      bool
	stopping   <-chan struct{} // closed when no more messages are received
	settling   deadlines
	requeues   pauses
	acks       ackQueue
	held       atomic.Int64   // failed messages that could be neither settled nor moved and are not yet released
	sources    []source       // of the endpoint's own queues
	unreported atomic.Int64   // notifications of messages that have not returned
	reports    sync.WaitGroup // those of rate limits
	budget     *pump.Budget   // of all received messages

	recoverability recoverability.Config // without what the transport and the transaction mode do not offer

	satellites *satellites
	group      *pump.Group     // of the endpoints that run together
	quarantine *quarantine     // nil where there is no guard
	slow       *pump.SlowStart // same
}

// Run connects, receives and handles messages until ctx ends. Then it waits for the handlers, cancels their context
// after StopTimeout, and disconnects when the last one has returned. It returns nil after such a stop, and an error if
// it could not start, also because ctx ended first. When the broker becomes unreachable later, Run waits for it. An
// endpoint runs once.
func (e *Endpoint) Run(ctx context.Context) (err error) {
	return e.run(ctx, pump.NewGroup(), nil)
}

// run is Run beside the other endpoints of a group. shared is for their connections; nil for a single endpoint.
func (e *Endpoint) run(ctx context.Context, group *pump.Group, shared *transport.Shared) (err error) {
	if e.started.Swap(true) {
		return fmt.Errorf("endpoint %q: it has been run already: make another by New", e.cfg.Name)
	}
	defer func() {
		e.err = err
		close(e.ended)
	}()
	conn, err := e.open(ctx, shared)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	live := newLive(ctx, conn)
	defer live.settling.close()
	live.group, live.budget = group, pump.NewBudget(e.cfg.MaxBufferedBytes)
	if err := e.prepare(ctx, live); err != nil {
		return err
	}
	return e.receiveAll(ctx, live)
}

func newLive(ctx context.Context, conn transport.Conn) *live {
	_, publishes := conn.(transport.Subscriber)
	_, joins := conn.(transport.TxDispatcher)
	return &live{
		conn: conn, limits: conn.Limits(), publishes: publishes, joins: joins, stopping: ctx.Done(),
		settling: deadlines{parent: context.WithoutCancel(ctx), span: settleTimeout, blocked: blockedUntil(ctx, conn)},
	}
}

// blockedUntil returns a function that reports whether the broker accepts no messages. It returns false after the end
// of ctx: a stop does not wait for the broker. It is nil if the transport does not know.
func blockedUntil(ctx context.Context, conn transport.Conn) func() bool {
	b, ok := conn.(transport.Blocker)
	if !ok {
		return nil
	}
	return func() bool { return ctx.Err() == nil && b.Blocked() }
}

func (e *Endpoint) open(ctx context.Context, shared *transport.Shared) (transport.Conn, error) {
	conn, err := e.cfg.Transport.Open(ctx, transport.Env{
		Logger: e.cfg.Logger, Endpoint: e.cfg.Name, Instance: e.cfg.Instance, Shared: shared,
	})
	if err != nil {
		return nil, fmt.Errorf("endpoint %q: connect: %w", e.cfg.Name, err)
	}
	return conn, nil
}

// prepare checks the transport and prepares its queues.
func (e *Endpoint) prepare(ctx context.Context, live *live) error {
	if e.cfg.Transactions == SendsAtomicWithReceive && !live.limits.Atomic {
		return fmt.Errorf("endpoint %q: the transport does not offer %v", e.cfg.Name, e.cfg.Transactions)
	}
	live.recoverability = e.effective(ctx, live)
	if e.cfg.Install {
		if err := e.install(ctx, live.conn); err != nil {
			return err
		}
	}
	if err := e.verify(ctx, live.conn); err != nil {
		return err
	}
	return e.subscribe(ctx, live.conn)
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
func (e *Endpoint) receiveAll(ctx context.Context, live *live) (err error) {
	var sources []source
	defer func() { err = errors.Join(err, closeAll(sources)) }()
	for _, queue := range e.queues() {
		opts := transport.ReceiverOptions{Queue: queue, CompletesFirst: e.cfg.Transactions == None}
		own, err := e.openSource(ctx, live, opts, e.cfg.Concurrency, e.handle(live, queue))
		if err != nil {
			return fmt.Errorf("endpoint %q: %w", e.cfg.Name, err)
		}
		sources = append(sources, own)
	}
	live.sources, live.quarantine, live.satellites = sources, e.newQuarantine(live), e.newSatellites(live)
	if live.quarantine != nil {
		live.slow = new(pump.SlowStart)
		for _, s := range sources {
			live.slow.Add(s.Source)
		}
	}
	e.begin(live)
	defer e.live.Store(nil)
	live.quarantine.begin(ctx)
	errs := make([]error, len(sources)+1)
	var wg sync.WaitGroup
	wg.Go(func() { live.quarantine.watch(ctx) })
	wg.Go(func() { errs[len(sources)] = live.satellites.run(ctx) })
	for i, s := range sources {
		wg.Go(func() { errs[i] = s.Run(ctx) })
	}
	<-ctx.Done()
	wg.Wait()
	live.reports.Wait()
	return errors.Join(errs...)
}

func (e *Endpoint) begin(live *live) {
	e.live.Store(live)
	close(e.ready)
}
