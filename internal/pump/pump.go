// Package pump is the receive loop of every driver. The pump asks the driver for messages, bounds
// the number that is handled at once, renews the leases, paces a failing Receive, and stops without
// losing messages.
//
// A message is buffered until a slot is free. It is handled in that slot until its handlers return.
// Then it settles, without a slot:
//
//	Receive -> buffered -> handling -> settling -> gone
//	                       1 slot      up to 4 per slot
//
// So a broker that settles slowly does not block handlers, and the number of messages that settle
// is bounded. A message that waits for something else than a slot for a long time is held: see
// [Slot.Hold].
package pump

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

// ErrStopping is the cause of a handler's context that was cancelled because the pump stops and
// StopTimeout has passed.
var ErrStopping = errors.New("stopping: the time for handlers to finish is over")

// Config configures a pump. All fields are required unless they say otherwise.
type Config struct {
	// Receiver receives the messages. The pump does not close it: its owner does, after Run has
	// returned.
	Receiver transport.Receiver
	// Limits are those of the Receiver's Conn.
	Limits transport.Limits
	// Queue is the receiver's queue, for logs.
	Queue string
	// Concurrency is how many messages are handled at once; less than 1 is 1.
	//
	// With 1 a message keeps its slot until it is settled, before the next begins: so sent messages
	// are in the order of the received ones.
	Concurrency int
	// Serial receives one message at a time, and the next one when that is settled: so at most one
	// delivery count is raised by a crash. Concurrency is 1.
	Serial bool
	// Handle handles and settles one delivery. It calls slot.Free when the handlers have returned,
	// and returns when the delivery is settled. It is called from many goroutines; a panic in it is
	// not recovered.
	//
	// ctx is for the handlers. It does not end with Run's context. It is cancelled with cause
	// [ErrStopping] after StopTimeout, or with [transport.ErrLeaseLost] when the lease is lost.
	// Settling needs another context.
	Handle func(ctx context.Context, d transport.Delivery, slot *Slot)
	// Arrived is called with the messages of a Receive before they are buffered, by the goroutine
	// that receives: what it attaches to them spares each handler a request of its own. With it
	// messages are buffered also where the driver prefetches, so that a Receive returns several. It
	// returns soon when ctx ends. nil: not called.
	Arrived func(ctx context.Context, arrived []Slot)
	// StopTimeout is the time from the end of Run's context until the handlers' context is
	// cancelled. 0 cancels it at once; less than 0 never. No handler starts in the second half of
	// it.
	StopTimeout time.Duration
	// Budget bounds the bytes of the messages of all pumps that share it. nil: no bound.
	Budget *Budget
	// Logger logs outages and lost leases. nil: no logs.
	Logger *slog.Logger
	// OnReceive is called with the error of each Receive that failed, and with nil when one
	// succeeds again, or waits for a message while the broker answers. Calls do not overlap;
	// receiving waits for them. May be nil.
	OnReceive func(err error)
}

// Stats counts the messages that a pump holds.
type Stats struct {
	Buffered int   // received, waiting for a slot
	Handling int   // in handlers
	Settling int   // handlers have returned, not settled yet
	Held     int   // see [Slot.Hold]
	Bytes    int64 // of the headers and bodies, without held messages
}

// Pump receives messages and calls Handle with each message. The methods are safe for concurrent
// use.
type Pump struct {
	cfg       Config
	renewer   transport.Renewer // nil where deliveries need no renewing
	outage    outage
	startedAt time.Time
	workers   workers

	abandoning sync.WaitGroup // releases of deliveries whose leases were lost

	mu          sync.Mutex // guards what follows
	changed     sync.Cond  // there is room to receive; while stopping: any change
	phase       phase
	releasing   bool // buffered deliveries are released, not handled
	concurrency int
	serial      bool
	window      int           // the last window of the receiver
	windowing   bool          // a goroutine sets the window
	quiet       chan struct{} // closed when the pump is at rest; nil unless it rests

	stopped   chan struct{} // closed when phase becomes stopping
	regaining []regain      // first come, first served

	buffer   queue
	handling int
	settling int
	waiting  int     // settling messages that wait until further messages have been handled
	held     int     // by Hold
	widening int     // held messages that the driver counts against its window
	started  int64   // messages started, also by earlier pumps of the source
	finished int     // messages done since Run began
	leases   []*Slot // with leases: everything buffered, handling, settling and held

	calls  int  // Receive calls running
	asked  int  // sum of the limits of the calls
	full   bool // the last call returned as many messages as the limit
	paused bool // no call starts, because the last call failed
	demand demand
	share  share
}

type phase int8

const (
	fresh phase = iota
	running
	stopping
)

// New returns a pump, which does nothing before Run.
func New(cfg Config) *Pump {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Logger = cfg.Logger.With(slog.String("queue", cfg.Queue))
	if cfg.OnReceive == nil {
		cfg.OnReceive = func(error) {}
	}
	var bounding transport.ByteReceiver
	if cfg.Budget == nil {
		cfg.Budget = NewBudget(math.MaxInt64)
	} else {
		bounding, _ = cfg.Receiver.(transport.ByteReceiver)
	}
	p := &Pump{
		cfg: cfg, startedAt: time.Now(), stopped: make(chan struct{}),
		outage:      newOutage(cfg.Logger, cfg.OnReceive),
		concurrency: max(1, cfg.Concurrency), serial: cfg.Serial,
		share: share{budget: cfg.Budget, prefetch: cfg.Limits.Prefetch, receiver: bounding},
	}
	if cfg.Serial {
		p.concurrency = 1
	}
	p.changed.L = &p.mu
	if cfg.Limits.Lease > 0 {
		p.renewer, _ = cfg.Receiver.(transport.Renewer)
	}
	return p
}

// Run pumps until ctx ends. Then Run stops receiving. If a release does not count as an attempt
// (Limits.FreeRelease), Run releases the buffer, and otherwise handles the buffer. Run returns when
// every handler has returned, also a handler that ignores its context. Then no goroutine of the pump
// is left. Run is called once.
func (p *Pump) Run(ctx context.Context) {
	p.mu.Lock()
	p.phase, p.windowing = running, true
	p.mu.Unlock()
	if ctx.Err() != nil { // a window would make the driver prefetch messages
		p.stop(true)
		return
	}
	lasting := context.WithoutCancel(ctx)
	work, cut := context.WithCancelCause(lasting)
	defer cut(nil)
	held, release := context.WithCancel(lasting)
	defer release()

	p.cfg.Budget.pumps.Add(1)
	defer p.share.leave(p)
	p.giveWindow()
	var routines sync.WaitGroup
	for range max(1, p.cfg.Limits.ParallelReceive) {
		routines.Go(func() { p.fetch(ctx, work) })
	}
	if p.renewer != nil {
		routines.Go(func() { newKeeper(p).run(held) })
	}
	<-ctx.Done()
	p.stop(p.cfg.Limits.FreeRelease)
	routines.Go(func() { p.cutLate(held, cut) })
	p.takeAhead(lasting, work)
	p.drain(lasting)
	p.endWorkers()
	release()
	routines.Wait()
	p.abandoning.Wait()
}

// Stats returns the numbers of the messages that the pump holds.
func (p *Pump) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{Buffered: p.buffer.len(), Handling: p.handling, Settling: p.settling, Held: p.held, Bytes: p.share.held}
}

// releaseTimeout bounds the release of buffered deliveries, and the wait for prefetched ones.
const releaseTimeout = 10 * time.Second

// Quiesce brings the pump to rest: no message starts any more. Quiesce returns nil when no message
// is handled or settles, and the cause of ctx when ctx ends first. In either case the pump rests
// until [Pump.Resume]: the pump does not receive, keeps the buffer and renews the leases. A pump
// that does not run yet begins at rest.
//
// If a pump stops at rest, the pump releases the buffer if a release does not count as an attempt,
// and otherwise handles the buffer after Resume. Calls of Quiesce and Resume alternate.
func (p *Pump) Quiesce(ctx context.Context) error {
	p.mu.Lock()
	quiet := make(chan struct{})
	p.quiet = quiet
	p.rest()
	p.mu.Unlock()
	select {
	case <-quiet:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Resume ends the rest that [Pump.Quiesce] began.
func (p *Pump) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.quiet = nil
	p.startReady()
	p.wake()
}

// stop ends receiving. With release, buffered messages are released; otherwise they are handled.
func (p *Pump) stop(release bool) {
	p.mu.Lock()
	if p.phase != stopping {
		p.phase = stopping
		close(p.stopped)
	}
	p.releasing = release
	p.wake()
	p.mu.Unlock()
}

// cutLate cancels the handlers when StopTimeout has passed before done ends. Messages without a
// start after half of StopTimeout are released, so that a starting handler has time to finish.
func (p *Pump) cutLate(done context.Context, cut context.CancelCauseFunc) {
	half := p.cfg.StopTimeout / 2
	if p.cfg.StopTimeout < 0 || backoff.Sleep(done, half) != nil {
		return
	}
	p.stop(true)
	if backoff.Sleep(done, p.cfg.StopTimeout-half) == nil {
		cut(ErrStopping)
	}
}

// takeAhead handles the prefetched messages of the driver, if a release would count as an attempt.
// Messages without a free handler stay with the driver: the driver learns of a lost connection and
// releases the messages.
func (p *Pump) takeAhead(ctx, work context.Context) {
	d, ok := p.cfg.Receiver.(transport.Drainer)
	if !ok {
		return
	}
	timeout := releaseTimeout
	if p.cfg.StopTimeout >= 0 { // later they could not be begun
		timeout = min(timeout, p.cfg.StopTimeout/2)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for n := p.freeAhead(); n > 0; n = p.freeAhead() {
		ss := p.slots(work, d.Drain(ctx, n))
		if len(ss) == 0 {
			return
		}
		p.mu.Lock()
		p.take(ss)
		p.startReady()
		p.mu.Unlock()
	}
}

// freeAhead waits until prefetched messages can be begun, and returns how many; 0 ends the drain.
// Messages of a running Receive come first. A pump that is serial for the moment only does not
// drain, because a drain would take too long.
func (p *Pump) freeAhead() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch n := p.free() - p.buffer.len(); {
		case p.releasing, p.serial && !p.cfg.Serial, p.cfg.StopTimeout == 0:
			return 0
		case n > 0 && p.calls == 0 && p.quiet == nil:
			return n
		}
		p.changed.Wait()
	}
}

// drain returns when the pump holds no message. A releasing pump releases the buffer.
func (p *Pump) drain(ctx context.Context) {
	for {
		p.mu.Lock()
		for p.windowing || p.handling+p.settling+p.held+p.calls+p.buffer.len() > 0 {
			if p.releasing && p.buffer.len() > 0 {
				break
			}
			p.changed.Wait()
		}
		var left []*Slot
		for p.buffer.len() > 0 {
			s := p.buffer.pop()
			s.state = gone
			p.unhold(s)
			p.share.drop(s.size)
			left = append(left, s)
		}
		p.mu.Unlock()
		if len(left) == 0 {
			return
		}
		p.release(ctx, left)
	}
}

// release releases all slots at once, so that the driver can use few requests.
func (p *Pump) release(ctx context.Context, left []*Slot) {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	errs := make([]error, len(left))
	var all sync.WaitGroup
	for i, s := range left {
		all.Go(func() {
			errs[i] = s.delivery.Release(ctx)
			s.end(nil)
		})
	}
	all.Wait()
	// After a lost lease the message is released already.
	errs = slices.DeleteFunc(errs, func(err error) bool {
		return err == nil || errors.Is(err, transport.ErrLeaseLost)
	})
	if len(errs) > 0 {
		p.cfg.Logger.LogAttrs(ctx, slog.LevelWarn,
			"releasing messages that were not started failed: the broker redelivers them",
			slog.Int("messages", len(errs)), slog.Any("error", errs[0]))
	}
}
