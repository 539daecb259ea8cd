package pump

import (
	"context"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// settlesPerSlot bounds the messages that settle beside those that are handled. A message beyond that keeps its slot.
const settlesPerSlot = 4

// enoughSettles bounds them where the driver prefetches and there are fewer slots: a broker that settles messages one
// by one gets slower with more of them. A broker that is asked for messages settles them in batches, and gets faster.
const enoughSettles = 192

// settles returns how many messages may settle. Called with mu held.
func (p *Pump) settles() int {
	n := settlesPerSlot * p.concurrency
	if p.cfg.Limits.Prefetch {
		n = min(n, max(enoughSettles, p.concurrency))
	}
	return n
}

// Slot is a message's place in the pump. Its methods are safe for concurrent use, and do nothing once Handle has
// returned.
type Slot struct {
	pump     *Pump
	delivery transport.Delivery
	ctx      context.Context         //nolint:containedctx // passed to the handler by the goroutine that runs it
	cancel   context.CancelCauseFunc // of ctx; nil without leases
	since    time.Duration           // time of receipt
	size     int64                   // bytes of the message; 0 without a budget

	// The rest is guarded by the pump's mutex.
	state  state
	at     int32         // index in the pump's held; -1 when not there
	leased time.Duration // begin of the lease
	due    time.Duration // when to renew it
}

type state int8

const (
	buffered state = iota
	handling
	settling
	gone // settled, or lost before it was started
)

// Free ends the handling: the next message may start while this one settles. A second call does nothing unless Retake
// was called in between.
func (s *Slot) Free() {
	p := s.pump
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.state == handling {
		s.state = settling
		p.handling--
		p.settling++
		p.startReady()
		p.wake()
	}
}

// Retake takes a slot again after Free. It does not wait for a free one: the caller must free the slot of another
// message at once.
func (s *Slot) Retake() {
	s.pump.mu.Lock()
	defer s.pump.mu.Unlock()
	if s.state == settling {
		s.retake()
	}
}

// retake is Retake with mu held.
func (s *Slot) retake() {
	s.state = handling
	s.pump.settling--
	s.pump.handling++
}

// Regain waits for a slot after Free, and gets one before any buffered message. It returns the cause of ctx when that
// ends first, and [ErrStopping] when the pump stops.
func (s *Slot) Regain(ctx context.Context) error {
	p := s.pump
	p.mu.Lock()
	if s.state != settling {
		p.mu.Unlock()
		return nil
	}
	admitted := make(chan struct{})
	p.regaining = append(p.regaining, regain{s, admitted})
	p.admit()
	p.mu.Unlock()
	select {
	case <-admitted:
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
	slot     *Slot
	admitted chan struct{} // closed when it has a slot
}

// admit gives slots to messages that wait in Regain, also while the pump comes to rest, which waits for them. Called
// with mu held.
func (p *Pump) admit() {
	for len(p.regaining) > 0 && p.handling < p.concurrency {
		r := p.regaining[0]
		p.regaining = p.regaining[1:]
		r.slot.retake()
		close(r.admitted)
	}
}

// Age returns the time since the message was received.
func (s *Slot) Age() time.Duration { return s.pump.now() - s.since }

// Stopping returns a channel that is closed when the pump stops. A message that waits is released then.
func (s *Slot) Stopping() <-chan struct{} { return s.pump.stopped }

// StopRenewing stops renewing the lease of the delivery. It is called for a message that is completed before it is
// handled: otherwise a renewal would fail, and cancel the handler's context.
func (s *Slot) StopRenewing() {
	s.pump.mu.Lock()
	defer s.pump.mu.Unlock()
	s.pump.unhold(s)
}

// Settled removes the message from the counts while Handle continues: the next message may start. A second call does
// nothing.
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

// leave removes a message from the counts. Called with mu held.
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

// end ends the context of s, if it has its own. Never called with mu held.
func (s *Slot) end(cause error) {
	if s.cancel != nil {
		s.cancel(cause)
	}
}

// forget clears s, which may share its memory with slots that live longer. Called with mu held.
func (p *Pump) forget(s *Slot) {
	s.state = gone
	s.delivery, s.ctx = nil, nil
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
	return s
}

// free returns how many more messages may be handled; below 0 after the concurrency was lowered. Called with mu held.
func (p *Pump) free() int {
	out := p.handling + p.settling
	if p.concurrency == 1 {
		return 1 - out // settles one before it starts another: see Config.Concurrency
	}
	return min(p.concurrency-p.handling, p.concurrency+p.settles()-out)
}

// wake wakes the waiting goroutines when there is room, or while the pump stops. Called with mu held.
func (p *Pump) wake() {
	switch {
	case p.phase == stopping:
		p.changed.Broadcast()
	case p.room() > 0:
		p.changed.Signal()
	}
}
