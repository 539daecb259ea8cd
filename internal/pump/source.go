package pump

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

// reopenTimeout bounds opening the receiver after a pause.
const reopenTimeout = 30 * time.Second

// ErrEnded is returned by [Source.Pause] and [Source.Resume] when the source has ended.
var ErrEnded = errors.New("pump: the source has ended")

// SourceConfig configures a [Source]. All fields are required.
type SourceConfig struct {
	// Config is of each pump. Receiver is set by the source.
	Config
	// Open opens the receiver: once at the beginning, and after each pause.
	Open func(ctx context.Context) (transport.Receiver, error)
	// Group contains the source's pump.
	Group *Group
}

// A Source is a queue from which messages are received, until it is paused or ends. Its methods are
// safe for concurrent use.
type Source struct {
	cfg      SourceConfig
	ended    <-chan struct{}
	requests chan request
	paused   atomic.Bool
	opened   atomic.Pointer[opened] // nil while paused

	started int64 // messages that pumps before the present one have started

	resizing    sync.Mutex // guards the rest, and the order of changes at the pump
	concurrency int
	serial      bool // one message at a time, none received ahead
	slow        bool // one message at a time: see SlowStart
}

// opened is a receiver with its pump, from one opening to the next pause.
type opened struct {
	receiver transport.Receiver
	pump     *Pump
}

// request asks Run to pause or to resume. done has room for the answer.
type request struct {
	pause bool
	done  chan error
}

// OpenSource opens the receiver of a source. The caller calls [Source.Run] next, or [Source.Close].
// The source ends with ctx.
func OpenSource(ctx context.Context, cfg SourceConfig) (*Source, error) {
	s := &Source{cfg: cfg, ended: ctx.Done(), requests: make(chan request), concurrency: cfg.Concurrency}
	return s, s.open(ctx)
}

func (s *Source) open(ctx context.Context) error {
	receiver, err := s.cfg.Open(ctx)
	if err != nil {
		return err
	}
	cfg := s.cfg.Config
	cfg.Receiver = receiver
	p := New(cfg)
	p.started = s.started
	s.cfg.Group.Join(p)
	s.opened.Store(&opened{receiver, p})
	s.resize(func() {})
	return nil
}

// Run receives until ctx ends, except while the source is paused.
func (s *Source) Run(ctx context.Context) {
	for {
		pause := s.receive(ctx)
		if pause == nil {
			return
		}
		queue := slog.String("queue", s.cfg.Queue)
		if err := s.Close(); err != nil {
			s.cfg.Logger.WarnContext(ctx, "closing the receiver of a paused queue failed", queue, slog.Any("error", err))
		}
		s.cfg.OnReceive(nil) // an outage is over: nothing is received
		s.cfg.Logger.InfoContext(ctx, "receiving is paused", queue)
		pause.done <- nil
		if !s.rest(ctx) {
			return
		}
		s.cfg.Logger.InfoContext(ctx, "receiving is resumed", queue)
	}
}

// receive pumps until a request to pause, which it returns, or until ctx ends. Every received
// message is settled then.
func (s *Source) receive(ctx context.Context) *request {
	pumping, stop := context.WithCancel(ctx)
	var pump sync.WaitGroup
	pump.Go(func() { s.opened.Load().pump.Run(pumping) })
	pause := s.await(ctx, true)
	s.paused.Store(pause != nil)
	stop()
	pump.Wait()
	return pause
}

// rest returns true when a request to resume has succeeded, and false when ctx has ended.
func (s *Source) rest(ctx context.Context) bool {
	for {
		resume := s.await(ctx, false)
		if resume == nil {
			return false
		}
		opening, cancel := context.WithTimeout(ctx, reopenTimeout)
		err := s.open(opening)
		cancel()
		s.paused.Store(err != nil)
		resume.done <- err
		if err == nil {
			return true
		}
	}
}

// await returns the next request to pause, or to resume, and nil when ctx ends. await fulfils
// requests without a change.
func (s *Source) await(ctx context.Context, pause bool) *request {
	for {
		select {
		case <-ctx.Done():
			return nil
		case r := <-s.requests:
			if r.pause == pause {
				return &r
			}
			r.done <- nil
		}
	}
}

// Pause stops receiving and returns when every received message is settled. It returns [ErrEnded]
// when the source ends before it takes the request. When ctx ends first, Pause returns the cause
// and the pause continues.
func (s *Source) Pause(ctx context.Context) error { return s.request(ctx, true) }

// Resume receives again, and returns when the receiver is open. Its errors are those of
// [Source.Pause] and of opening; the source stays paused then.
func (s *Source) Resume(ctx context.Context) error { return s.request(ctx, false) }

func (s *Source) request(ctx context.Context, pause bool) error {
	r := request{pause, make(chan error, 1)}
	select {
	case s.requests <- r:
	case <-s.ended:
		return ErrEnded
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Paused reports whether the source is paused, or is being paused.
func (s *Source) Paused() bool { return s.paused.Load() }

// Queue returns the name of the queue.
func (s *Source) Queue() string { return s.cfg.Queue }

// Stats returns the numbers of the messages that the source holds.
func (s *Source) Stats() Stats {
	if o := s.opened.Load(); o != nil {
		return o.pump.Stats()
	}
	return Stats{}
}

// Slots returns how many messages are handled at once at most.
func (s *Source) Slots() int {
	s.resizing.Lock()
	defer s.resizing.Unlock()
	return s.slots()
}

// slots returns the number of slots. Called with resizing held.
func (s *Source) slots() int {
	if s.serial || s.slow {
		return 1
	}
	return s.concurrency
}

// SetConcurrency changes how many messages are handled at once, as [Pump.SetConcurrency] does, and
// keeps the number over a pause.
func (s *Source) SetConcurrency(n int) { s.resize(func() { s.concurrency = n }) }

// SetSerial turns [Config].Serial on or off. A message that was received ahead would wait for long,
// and no other instance could receive it.
func (s *Source) SetSerial(on bool) { s.resize(func() { s.serial = on }) }

func (s *Source) setSlow(on bool) { s.resize(func() { s.slow = on }) }

// resize makes a change and applies the result to the pump.
func (s *Source) resize(change func()) {
	s.resizing.Lock()
	defer s.resizing.Unlock()
	change()
	if o := s.opened.Load(); o != nil {
		o.pump.set(s.slots(), s.serial)
	}
}

// Close closes the receiver, if there is one. The pump has ended, or never ran.
func (s *Source) Close() error {
	if o := s.opened.Swap(nil); o != nil {
		s.cfg.Group.Leave(o.pump)
		s.started = o.pump.startedSoFar()
		return o.receiver.Close()
	}
	return nil
}

// A Group is a set of pumps of which all can be made to rest, so that one message is processed
// exclusively. Groups do not know of each other. A Group is safe for concurrent use.
type Group struct {
	turn chan struct{} // holds a token from Exclusive to Shared

	mu      sync.Mutex // guards the rest
	pumps   []*Pump
	resting bool
}

// NewGroup returns a group without pumps.
func NewGroup() *Group { return &Group{turn: make(chan struct{}, 1)} }

// Join adds a pump that does not run yet. The pump begins at rest between [Group.Exclusive] and
// [Group.Shared].
func (g *Group) Join(p *Pump) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pumps = append(g.pumps, p)
	if g.resting {
		_ = p.Quiesce(context.Background()) // returns at once: p does not run yet
	}
}

// Leave removes a pump that has ended.
func (g *Group) Leave(p *Pump) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pumps = slices.DeleteFunc(g.pumps, func(other *Pump) bool { return other == p })
}

// Exclusive returns nil when no pump of the group processes a message, and none starts one before
// [Group.Shared] is called. When ctx ends first it returns the cause, and the pumps continue. A
// second caller waits for the first one's Shared.
func (g *Group) Exclusive(ctx context.Context) error {
	select {
	case g.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := g.quiesce(ctx); err != nil {
		g.Shared()
		return err
	}
	return nil
}

func (g *Group) quiesce(ctx context.Context) error {
	pumps := g.setResting(true)
	errs := make(chan error, len(pumps))
	for _, p := range pumps {
		go func() { errs <- p.Quiesce(ctx) }()
	}
	var err error
	for range pumps {
		if e := <-errs; e != nil {
			err = e
		}
	}
	return err
}

// Shared lets all pumps continue after a successful [Group.Exclusive].
func (g *Group) Shared() {
	for _, p := range g.setResting(false) {
		p.Resume()
	}
	<-g.turn
}

func (g *Group) setResting(resting bool) []*Pump {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.resting = resting
	return slices.Clone(g.pumps)
}

// slowStartMost bounds a slow start.
const slowStartMost = 5 * time.Second

// A SlowStart makes sources handle one message at a time after a start, until a message without an
// earlier delivery succeeds, for 5 s at most from the first message on. A first handled message
// without an earlier delivery ends the slow start at once. The reason: a message that was delivered
// before may have crashed the process, and each message in flight at the next crash is redelivered
// with a higher delivery count.
//
// The zero value is ready to use; nil does nothing. Arrived, Received and Succeeded are safe for
// concurrent use.
type SlowStart struct {
	sources  []*Source
	phase    atomic.Int32
	received atomic.Bool // a message that handlers receive
}

const (
	startBegun int32 = iota // no message has arrived
	startSlow
	startOver
)

// Add makes a source start slowly. It is called before the source runs.
func (s *SlowStart) Add(source *Source) {
	s.sources = append(s.sources, source)
	source.setSlow(true)
}

// Arrived is called for each message, also for a message that no handler receives.
func (s *SlowStart) Arrived() {
	if s != nil && s.phase.Load() == startBegun && s.phase.CompareAndSwap(startBegun, startSlow) {
		time.AfterFunc(slowStartMost, s.end)
	}
}

// Received is called with the delivery count of each message that handlers receive, after Arrived.
func (s *SlowStart) Received(count int) {
	if s == nil || s.phase.Load() == startOver || s.received.Swap(true) {
		return
	}
	if count < 2 {
		s.end()
	}
}

// Succeeded is called with the delivery count of each message that is processed successfully.
func (s *SlowStart) Succeeded(count int) {
	if s != nil && count < 2 && s.phase.Load() == startSlow {
		s.end()
	}
}

func (s *SlowStart) end() {
	if s.phase.Swap(startOver) == startOver {
		return
	}
	for _, source := range s.sources {
		source.setSlow(false)
	}
}
