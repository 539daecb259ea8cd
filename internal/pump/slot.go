package pump

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/goroutines"
	"github.com/holdfast-go/holdfast/transport"
)

// Slot is a message's place in the pump. The methods are safe for concurrent use, and do nothing
// once Handle has returned.
type Slot struct {
	pump      *Pump
	delivery  transport.Delivery
	ctx       context.Context         //nolint:containedctx // passed to the handler by the goroutine that runs it
	cancel    context.CancelCauseFunc // of ctx; nil without leases
	since     time.Duration           // time of receipt
	size      int64                   // bytes of the message; 0 without a budget
	order     int64                   // set when it starts
	attached  any                     // by Config.Arrived
	goroutine uint64                  // that runs Handle

	// The rest is guarded by the pump's mutex.
	state  state
	waits  bool          // while settling: the message waits for further messages
	widens bool          // while held: the window is larger by one
	at     int32         // index in the pump's held; -1 when not there
	leased time.Duration // begin of the lease
	due    time.Duration // when to renew the lease
}

type state int8

const (
	buffered state = iota
	handling
	settling
	holding
	gone // settled, or lost before the start
)

// Delivery returns the message, for Config.Arrived.
func (s *Slot) Delivery() transport.Delivery { return s.delivery }

// Attach sets the result of Attached, for Config.Arrived.
func (s *Slot) Attach(v any) { s.attached = v }

// Attached returns what Config.Arrived has attached to the message, or nil.
func (s *Slot) Attached() any { return s.attached }

// Goroutine returns the number of the goroutine that runs Config.Handle for the message:
// goroutines.ID has it.
func (s *Slot) Goroutine() uint64 { return s.goroutine }

// Free ends the handling: the next message may start while this one settles. A second call does
// nothing unless the message got a slot again in between.
func (s *Slot) Free() { s.free(false) }

// Wait is Free for a message that waits until further messages have been handled, and then calls
// Request. At most waitsPerSlot messages per slot wait: with that many, no further message starts.
func (s *Slot) Wait() { s.free(true) }

func (s *Slot) free(waits bool) {
	p := s.pump
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.state == handling {
		s.state = settling
		p.handling--
		p.settling++
		if s.waits = waits; waits {
			p.waiting++
		}
		p.startReady()
		p.wake()
	}
}

// Request asks for a slot after Free or Wait, and returns at once. granted is closed when the
// message has one: before any buffered message, and in the order of the requests.
func (s *Slot) Request(granted chan struct{}) {
	p := s.pump
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.state != settling {
		close(granted)
		return
	}
	p.regaining = append(p.regaining, regain{s, granted})
	p.admit()
}

// Withdraw ends a request. Withdraw does nothing if the slot was granted before.
func (s *Slot) Withdraw() {
	p := s.pump
	p.mu.Lock()
	defer p.mu.Unlock()
	p.regaining = slices.DeleteFunc(p.regaining, func(r regain) bool { return r.slot == s })
}

// Regain is Request, and waits. Regain returns the cause of ctx when ctx ends first, and
// [ErrStopping] when the pump stops.
func (s *Slot) Regain(ctx context.Context) error {
	granted := make(chan struct{})
	s.Request(granted)
	err := ErrStopping
	select {
	case <-granted:
		return nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-s.pump.stopped:
	}
	s.Withdraw()
	select {
	case <-granted: // at the last moment
		return nil
	default:
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

// regain is a message that waits for a slot again.
type regain struct {
	slot    *Slot
	granted chan struct{} // closed when the message has a slot
}

// unsettle removes a message from the settling or waiting messages. Called with mu held.
func (s *Slot) unsettle() {
	s.pump.settling--
	if s.waits {
		s.waits = false
		s.pump.waiting--
	}
}

// Order returns the place of the message among the started messages of the source, from 1. Messages
// start in the order of receipt.
func (s *Slot) Order() int64 { return s.order }

// Age returns the time since the message was received.
func (s *Slot) Age() time.Duration { return s.pump.now() - s.since }

// Stopping returns a channel that is closed when the pump stops. A message that waits is released
// then.
func (s *Slot) Stopping() <-chan struct{} { return s.pump.stopped }

// StopRenewing stops renewing the lease of the delivery. StopRenewing is called for a message that
// is completed before the handlers run: otherwise a renewal would fail, and cancel the handler's
// context.
func (s *Slot) StopRenewing() {
	s.pump.mu.Lock()
	defer s.pump.mu.Unlock()
	s.pump.unhold(s)
}

// Settled removes the message from the counts while Handle continues: the next message may start. A
// second call does nothing.
func (s *Slot) Settled() {
	p := s.pump
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.state != gone {
		p.leave(s)
		p.startReady()
		p.wake()
	}
}

// Hold takes the message out of the bounds of the pump, because the message waits for long: the
// message has neither a slot nor a place in the window of the receiver, and the bytes do not count
// in the budget. The caller bounds the messages that it holds. The lease is still renewed, and the
// end of Run waits for the message. A second call does nothing.
//
// until is the time at which the broker delivers the message again if it is not settled; zero if
// the driver does not say.
func (s *Slot) Hold() (until time.Time) {
	p := s.pump
	p.mu.Lock()
	switch s.state {
	case handling:
		p.handling--
	case settling:
		s.unsettle()
	case buffered, holding, gone:
		p.mu.Unlock()
		return time.Time{}
	}
	s.state = holding
	p.held++
	p.share.drop(s.size)
	s.size = 0
	d := s.delivery
	holder, ok := d.(transport.Holder)
	giving := false
	if s.widens = !ok && p.cfg.Limits.Prefetch; s.widens {
		p.widening++
		giving = p.beginWindow()
	}
	p.rest()
	p.startReady()
	p.wake()
	p.mu.Unlock()
	if ok {
		until = holder.Hold()
	}
	if giving {
		p.giveWindow()
	}
	p.cfg.Budget.freed(p)
	return until
}

// LeaseLate reports whether half of the lease is over without a renewal, so that the lease may be
// lost soon. It returns false for a message without a lease.
func (s *Slot) LeaseLate() bool {
	p := s.pump
	p.mu.Lock()
	defer p.mu.Unlock()
	return s.at >= 0 && p.now()-s.leased > p.cfg.Limits.Lease/2
}

// end ends the context of s, if it has its own. Never called with mu held.
func (s *Slot) end(cause error) {
	if s.cancel != nil {
		s.cancel(cause)
	}
}

// AllTaken reports whether no further message starts while the messages of slots stay as they are:
// they are handled and take all slots of the pump, or they settle and no further message may. Slots
// of another pump than that of the first one do not count.
func AllTaken(slots []*Slot) bool {
	if len(slots) == 0 {
		return false
	}
	p := slots[0].pump
	p.mu.Lock()
	defer p.mu.Unlock()
	var handled, settled, waiting int
	for _, s := range slots {
		if s.pump != p {
			continue
		}
		switch s.state {
		case handling:
			handled++
		case settling:
			settled++
			if s.waits {
				waiting++
			}
		case buffered, holding, gone:
		}
	}
	return freeBeside(p, handled, settled, waiting) <= 0
}

// workers are the goroutines that handle messages. An idle worker is kept for the next message: its
// stack has grown to the size that handlers need, and growing a new one for each message costs as
// much as the rest of the endpoint's work.
type workers struct {
	all sync.WaitGroup

	// idle holds a channel for each waiting worker. The last one is used first, because a garbage
	// collection halves the stack of a waiting goroutine. Guarded by the pump's mutex.
	idle []chan *Slot
}

// startReady starts buffered messages while there are free slots, each in a waiting worker or in a
// new one. Called with mu held.
func (p *Pump) startReady() {
	for s := p.next(); s != nil; s = p.next() {
		if last := len(p.workers.idle) - 1; last >= 0 {
			p.workers.idle[last] <- s // there is room
			p.workers.idle = p.workers.idle[:last]
		} else {
			p.workers.all.Go(func() { p.work(s) })
		}
	}
}

// work handles s, then other messages while there are any.
func (p *Pump) work(s *Slot) {
	defer func() {
		if s != nil { // Handle ended the goroutine by runtime.Goexit
			p.workers.all.Go(func() { p.work(p.after(s, nil)) })
		}
	}()
	more := make(chan *Slot, 1)
	id := goroutines.ID()
	for s != nil {
		s.goroutine = id
		p.cfg.Handle(s.ctx, s.delivery, s)
		s = p.after(s, more)
	}
}

// after removes s, which was handled, from the pump and returns the slot that its worker handles
// next, or nil. If there is none, a worker with a channel may wait for one.
func (p *Pump) after(s *Slot, more chan *Slot) *Slot {
	s.end(nil)
	p.mu.Lock()
	if s.state != gone {
		p.leave(s)
	}
	next := p.next()
	wait := next == nil && more != nil && p.phase == running && len(p.workers.idle) < p.concurrency+p.settles()
	if wait {
		p.workers.idle = append(p.workers.idle, more)
	}
	p.wake()
	p.mu.Unlock()
	p.cfg.Budget.freed(p)
	if wait {
		next = <-more
	}
	return next
}

// endWorkers ends the workers and waits for them. No message may be left to handle.
func (p *Pump) endWorkers() {
	p.mu.Lock()
	for _, worker := range p.workers.idle {
		close(worker)
	}
	p.workers.idle = nil
	p.mu.Unlock()
	p.workers.all.Wait()
}

// settlesPerSlot bounds the settling messages beside the handled messages. A message beyond the
// bound keeps its slot.
const settlesPerSlot = 4

// waitsPerSlot bounds the messages that wait for further messages. Any handled message may have to.
const waitsPerSlot = 4

// enoughSettles bounds the settling messages if the driver prefetches and there are fewer slots: a
// broker that settles single messages gets slower with more messages. A broker that is asked for
// messages settles in batches, and gets faster.
const enoughSettles = 192

// settles returns how many messages may settle. Called with mu held.
func (p *Pump) settles() int {
	n := settlesPerSlot * p.concurrency
	if p.cfg.Limits.Prefetch {
		n = min(n, max(enoughSettles, p.concurrency))
	}
	return n
}

// admit gives slots to messages that have requested one, also while the pump comes to rest, which
// waits for them. Called with mu held.
func (p *Pump) admit() {
	for len(p.regaining) > 0 && p.handling < p.concurrency {
		r := p.regaining[0]
		p.regaining = p.regaining[1:]
		r.slot.unsettle()
		r.slot.state = handling
		p.handling++
		close(r.granted)
	}
}

func (p *Pump) startedSoFar() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.started
}

// leave removes a message from the counts. Called with mu held.
func (p *Pump) leave(s *Slot) {
	switch s.state {
	case settling:
		s.unsettle()
	case holding:
		p.held--
		if s.widens {
			p.widening--
		}
	case buffered, handling, gone:
		p.handling--
	}
	p.finished++
	p.forget(s)
	p.rest()
}

// forget clears s, which may share its memory with slots that live longer. Called with mu held.
func (p *Pump) forget(s *Slot) {
	s.state = gone
	s.delivery, s.ctx, s.attached = nil, nil, nil
	p.unhold(s)
	p.share.drop(s.size)
}

// next removes the first buffered delivery if there is a slot for it. Called with mu held.
func (p *Pump) next() *Slot {
	p.admit()
	if p.releasing || p.quiet != nil || p.buffer.len() == 0 || p.free() <= 0 {
		return nil
	}
	s := p.buffer.pop()
	s.state = handling
	p.handling++
	p.started++
	s.order = p.started
	return s
}

// free returns how many more messages may be handled; below 0 after the concurrency was lowered.
// Called with mu held.
func (p *Pump) free() int { return freeBeside(p, p.handling, p.settling, p.waiting) }

// freeBeside returns how many more messages may be handled beside such numbers of others. Called
// with mu held.
func freeBeside(p *Pump, handling, settling, waiting int) int {
	out := handling + settling
	if p.concurrency == 1 {
		return 1 - out // settles one before it starts another: see Config.Concurrency
	}
	return min(p.concurrency-handling, p.concurrency+p.settles()-out, waitsPerSlot*p.concurrency-handling-waiting)
}

// wake wakes the waiting goroutines when there is room, or while the pump stops. Called with mu
// held.
func (p *Pump) wake() {
	switch {
	case p.phase == stopping:
		p.changed.Broadcast()
	case p.room() > 0:
		p.changed.Signal()
	}
}

// unhold stops renewing the lease of s. Called with mu held.
func (p *Pump) unhold(s *Slot) {
	if s.at < 0 {
		return
	}
	last := len(p.leases) - 1
	p.leases[s.at] = p.leases[last]
	p.leases[s.at].at = s.at
	p.leases[last] = nil
	p.leases = p.leases[:last]
	s.at = -1
}

func (p *Pump) set(concurrency int, serial bool) {
	p.mu.Lock()
	p.concurrency, p.serial = max(1, concurrency), serial
	p.startReady()
	p.wake()
	giving := p.beginWindow()
	p.mu.Unlock()
	if giving {
		p.giveWindow()
	}
}

// SetConcurrency changes how many messages are handled at once; less than 1 is 1. More messages
// start at once; a lower number takes effect as handlers finish.
func (p *Pump) SetConcurrency(n int) { p.set(n, p.cfg.Serial) }

// now returns the monotonic time since the pump was made.
func (p *Pump) now() time.Duration { return time.Since(p.startedAt) }

// rest ends the wait of Quiesce if no message is handled or settles. Called with mu held.
func (p *Pump) rest() {
	if p.quiet == nil || p.handling+p.settling > 0 {
		return
	}
	select {
	case <-p.quiet: // closed before
	default:
		close(p.quiet)
	}
}
