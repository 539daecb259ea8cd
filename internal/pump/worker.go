package pump

import (
	"sync"

	"github.com/holdfast-go/holdfast/internal/goroutines"
)

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
