// Package pump is the receive loop: one for every driver. It asks the driver for
// messages, bounds how many are handled at once, keeps their leases, paces a
// Receive that fails, and stops without losing anything.
//
// A message passes through three states. It is buffered until a slot is free; it is handled in
// that slot until its handlers are done; then it settles, which no longer takes the slot:
//
//	Receive -> buffered -> handling -> settling -> gone
//	                       1 slot      up to 4 per slot
//
// So a broker that is slow to settle does not hold up handlers, and yet cannot
// pile up work without end.
package pump

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// ErrStopping is the cause of a handler's context that was cancelled because the
// pump stops and StopTimeout has passed.
var ErrStopping = errors.New("stopping: the time for handlers to finish is over")

var errRunTwice = errors.New("pump: Run was called before")

// Config is what a pump works with. All fields are required unless they say otherwise.
type Config struct {
	// Receiver is where messages come from. The pump does not close it: its owner
	// does when Run has returned.
	Receiver transport.Receiver
	// Limits are those of the Receiver's Conn.
	Limits transport.Limits
	// Queue is the receiver's queue, for logs.
	Queue string
	// Concurrency is how many messages are handled at once; less than 1 is 1.
	//
	// With 1 a message keeps its slot until it is settled, so that one message is
	// over before the next begins: what the handlers send leaves in the order of what came in.
	Concurrency int
	// Serial has one message received at a time, and the next only when that is settled: what a
	// crash is counted against is then the message in hand. Concurrency is 1.
	Serial bool
	// Handle works on one delivery and settles it. It calls slot.Free when the handlers
	// are done and returns when the delivery is settled. It is called from many
	// goroutines; a panic in it is not recovered.
	//
	// ctx is for the handlers. It goes on when Run's context ends, and is cancelled with cause
	// [ErrStopping] when StopTimeout is over, or with [transport.ErrLeaseLost] when the
	// message is no longer ours. Settling needs a context apart from it.
	Handle func(ctx context.Context, d transport.Delivery, slot *Slot)
	// StopTimeout is how long handlers may go on after Run's context has ended, before
	// theirs is cancelled. 0 cancels it at once; less than 0 never. None starts in the second half of it.
	StopTimeout time.Duration
	// Budget bounds the bytes of the messages that are held, with those of the other pumps that share it. nil: no bound.
	Budget *Budget
	// Logger takes what nobody is there to be told: outages and lost leases. nil discards it.
	Logger *slog.Logger
	// OnReceive is called with the error of each Receive that failed, and with nil when
	// one works again. Calls come one after the other; receiving waits for them. May be nil.
	OnReceive func(err error)
}

// Stats is what a pump holds at a moment.
type Stats struct {
	Buffered int   // received, waiting for a slot
	Handling int   // in handlers
	Settling int   // handlers are done, not settled yet
	Bytes    int64 // headers and bodies of all these; 0 without a [Budget]
}

// Pump receives messages and has them handled. Its methods are safe for concurrent use.
type Pump struct {
	cfg     Config
	renewer transport.Renewer // nil where deliveries need no renewing
	outage  outage
	born    time.Time
	workers workers

	abandoning sync.WaitGroup // giving up of deliveries whose leases were lost

	mu          sync.Mutex // guards what follows
	changed     sync.Cond  // there is room to receive; while stopping: anything changed
	phase       phase
	releasing   bool // buffered deliveries go back instead of to handlers
	concurrency int
	serial      bool
	window      int           // last one given to the receiver
	windowing   bool          // somebody is giving it one
	quiet       chan struct{} // closed when Quiesce has what it waits for; nil when nobody holds us

	stopped   chan struct{} // closed when phase becomes stopping
	regaining []regain      // first come, first served

	buffer   queue
	handling int
	settling int
	finished int     // messages done since Run began
	held     []*Slot // with leases: everything buffered, handling and settling

	calls  int  // Receive calls running
	asked  int  // sum of their limits
	full   bool // the last one returned all that it was asked for
	paused bool // none may start: the last one failed
	demand demand
	share  share
}

type phase int8

const (
	fresh phase = iota
	running
	stopping
)

// New makes a pump. It does nothing before Run.
func New(cfg Config) *Pump {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Logger = cfg.Logger.With(slog.String("queue", cfg.Queue))
	p := &Pump{
		cfg:         cfg,
		born:        time.Now(),
		outage:      newOutage(cfg.Logger, cfg.OnReceive),
		stopped:     make(chan struct{}),
		concurrency: max(1, cfg.Concurrency),
		serial:      cfg.Serial,
		share:       newShare(cfg),
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

// Run pumps until ctx ends. Then it receives no more, gives back what is buffered
// where that does not count as an attempt (Limits.FreeRelease) and has it handled where it
// does, and returns when every handler has: also those that ignore their
// context. Nothing of the pump is running afterwards.
//
// The error is nil, unless Run was called before.
func (p *Pump) Run(ctx context.Context) error {
	if !p.begin() {
		return errRunTwice
	}
	if ctx.Err() != nil { // a window would have a driver that prefetches take messages
		p.stop(true)
		return nil
	}
	lasting := context.WithoutCancel(ctx)
	work, cut := context.WithCancelCause(lasting)
	defer cut(nil)
	held, release := context.WithCancel(lasting)
	defer release()

	p.share.join()
	defer p.leaveBudget()
	p.giveWindow()
	var routines sync.WaitGroup
	for range max(1, p.cfg.Limits.ParallelReceive) {
		routines.Go(func() { p.fetch(ctx, work) })
	}
	if p.renewer != nil {
		routines.Go(func() { p.keepLeases(held) })
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
	return nil
}

func (p *Pump) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.phase != fresh {
		return false
	}
	p.phase, p.windowing = running, true
	return true
}

func (p *Pump) leaveBudget() {
	p.mu.Lock()
	p.share.leave(p)
	p.mu.Unlock()
	p.cfg.Budget.freed(p)
}

// SetConcurrency changes how many messages are handled at once; less than 1 is 1. More
// start at once; fewer are handled as those that are running finish.
func (p *Pump) SetConcurrency(n int) { p.set(n, p.cfg.Serial) }

func (p *Pump) set(concurrency int, serial bool) {
	p.mu.Lock()
	p.concurrency, p.serial = max(1, concurrency), serial
	p.wake()
	giving := p.phase == running && !p.windowing
	p.windowing = p.windowing || giving
	p.mu.Unlock()
	if giving {
		p.giveWindow()
	}
	p.startReady()
}

// Stats says what the pump holds.
func (p *Pump) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{Buffered: p.buffer.len(), Handling: p.handling, Settling: p.settling, Bytes: p.share.held}
}

// now is the time since the pump was made, by a clock that nobody sets.
func (p *Pump) now() time.Duration { return time.Since(p.born) }
