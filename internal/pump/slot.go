package pump

import (
	"context"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// settlesPerSlot bounds how many messages settle beyond those that are handled. One
// that finds no room keeps its slot.
const settlesPerSlot = 4

// enoughSettles bounds them where there are fewer slots, and the driver prefetches: of a broker
// that hands out and settles one by one, each of more only takes longer. One that is asked for
// messages settles at once what has gathered, and gets faster.
const enoughSettles = 192

// settles is how many may settle. Called with mu held.
func (p *Pump) settles() int {
	n := settlesPerSlot * p.concurrency
	if p.cfg.Limits.Prefetch {
		n = min(n, max(enoughSettles, p.concurrency))
	}
	return n
}

// Slot is a message's place in the pump. Its methods are safe for concurrent use, and do
// nothing once Handle has returned. The zero Slot is no place, and its methods do nothing.
type Slot struct {
	pump     *Pump
	delivery transport.Delivery
	ctx      context.Context         //nolint:containedctx // given to the handler, by whichever goroutine runs it
	cancel   context.CancelCauseFunc // of ctx; nil without leases
	since    time.Duration           // when it was received
	size     int64                   // bytes of the message; 0 without a budget

	// The rest is guarded by the pump's mutex.
	state  state
	at     int32         // index in the pump's held; -1 when not there
	leased time.Duration // since when the lease is known to hold
	due    time.Duration // when to renew it
}

type state int8

const (
	buffered state = iota
	handling
	settling
	gone // settled, or lost before it was started
)

// Free says that the handlers are done: the next message may start while this one
// settles. A second call does nothing unless Retake came between.
func (s *Slot) Free() {
	p := s.pump
	if p == nil {
		return
	}
	p.mu.Lock()
	if s.state != handling {
		p.mu.Unlock()
		return
	}
	s.state = settling
	p.handling--
	p.settling++
	next := p.next()
	p.wake()
	p.mu.Unlock()
	if next != nil {
		p.start(next)
	}
}

// Retake takes a slot again after Free: the message is to be handled after all. It does not wait
// for a free one, so the caller sees to it that another message frees its slot at once.
func (s *Slot) Retake() {
	p := s.pump
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.state == settling {
		s.state = handling
		p.settling--
		p.handling++
	}
}

// Regain waits for a slot after Free, and gets one before anything that is buffered. It returns the
// cause of ctx when that ends first, and [ErrStopping] when the pump stops.
func (s *Slot) Regain(ctx context.Context) error {
	p := s.pump
	if p == nil {
		return nil
	}
	p.mu.Lock()
	if s.state != settling {
		p.mu.Unlock()
		return nil
	}
	in := make(chan struct{})
	p.regaining = append(p.regaining, regain{s, in})
	p.letIn()
	p.mu.Unlock()
	select {
	case <-in:
		return nil
	case <-ctx.Done():
	case <-p.stopped:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.state == handling {
		return nil // at the last moment
	}
	p.regaining = slices.DeleteFunc(p.regaining, func(r regain) bool { return r.slot == s })
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return ErrStopping
}

// regain is a message that waits for a slot again.
type regain struct {
	slot *Slot
	in   chan struct{} // closed when it has one
}

// letIn gives slots to those that had one before, also while the pump comes to rest: they are
// what that waits for. Called with mu held.
func (p *Pump) letIn() {
	for len(p.regaining) > 0 && p.handling < p.concurrency {
		r := p.regaining[0]
		p.regaining = p.regaining[1:]
		r.slot.state = handling
		p.settling--
		p.handling++
		close(r.in)
	}
}

// Age is how long ago the message was received.
func (s *Slot) Age() time.Duration {
	if s.pump == nil {
		return 0
	}
	return s.pump.now() - s.since
}

// Stopping is closed when the pump stops: who waits with a message gives it back.
func (s *Slot) Stopping() <-chan struct{} {
	if s.pump == nil {
		return nil
	}
	return s.pump.stopped
}

// StopRenewing gives up the lease of the delivery. It is for one that is to be settled before
// it is handled: otherwise its lease would be found missing, and the handler's context cancelled.
func (s *Slot) StopRenewing() {
	p := s.pump
	if p == nil {
		return
	}
	p.mu.Lock()
	p.unhold(s)
	p.mu.Unlock()
}

// finish takes s out of the pump and returns the next to handle; when there is none,
// whether the worker is to wait for one, which then comes through more.
func (p *Pump) finish(s *Slot, more chan *Slot) (next *Slot, wait bool) {
	s.end(nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.state != gone {
		p.leave(s)
	}
	if next = p.next(); next == nil {
		wait = p.keep(more)
	}
	p.wake()
	return next, wait
}

// Settled says that the message is settled, while Handle goes on: the message no longer counts, and the next one may
// start. A second call does nothing.
func (s *Slot) Settled() {
	p := s.pump
	if p == nil {
		return
	}
	p.mu.Lock()
	if s.state == gone {
		p.mu.Unlock()
		return
	}
	p.leave(s)
	next := p.next()
	p.wake()
	p.mu.Unlock()
	if next != nil {
		p.start(next)
	}
}

// leave takes a message out of the count. Called with mu held.
func (p *Pump) leave(s *Slot) {
	if s.state == settling {
		p.settling--
	} else {
		p.handling--
	}
	p.finished++
	p.forget(s)
	p.rest()
}

// end ends the context of s, where it has one of its own. Never called with mu held.
func (s *Slot) end(cause error) {
	if s.cancel != nil {
		s.cancel(cause)
	}
}

// forget lets go of s, which may share its memory with slots that live longer.
// Called with mu held.
func (p *Pump) forget(s *Slot) {
	s.state = gone
	s.delivery, s.ctx = nil, nil
	p.unhold(s)
	p.share.drop(s.size)
}

// startReady starts what is buffered as far as there are slots.
func (p *Pump) startReady() {
	for {
		p.mu.Lock()
		s := p.next()
		p.mu.Unlock()
		if s == nil {
			return
		}
		p.start(s)
	}
}

// next takes the first buffered delivery if there is a slot for it. Called with mu held.
func (p *Pump) next() *Slot {
	p.letIn()
	if p.releasing || p.quiet != nil || p.buffer.len() == 0 || p.free() <= 0 {
		return nil
	}
	s := p.buffer.pop()
	s.state = handling
	p.handling++
	return s
}

// free is how many more may be handled; below 0 after concurrency was lowered. Called
// with mu held.
func (p *Pump) free() int {
	out := p.handling + p.settling
	if p.concurrency == 1 {
		return 1 - out // settles one before it starts another: see Config.Concurrency
	}
	return min(p.concurrency-p.handling, p.concurrency+p.settles()-out)
}

// wake tells who waits that there is room, or that something ended. Called with mu held.
func (p *Pump) wake() {
	switch {
	case p.phase == stopping:
		p.changed.Broadcast()
	case p.room() > 0:
		p.changed.Signal()
	}
}
