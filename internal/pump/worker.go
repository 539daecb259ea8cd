package pump

import "sync"

// workers are the goroutines that handle messages. An idle worker is kept for the next message: its stack has grown to
// the size that handlers need, and growing a new one for each message costs as much as the rest of the endpoint's work.
type workers struct {
	all sync.WaitGroup

	// idle holds a channel for each waiting worker. The last one is used first, because a garbage collection halves the
	// stack of a waiting goroutine. Guarded by the pump's mutex.
	idle []chan *Slot
}

// start handles s in a waiting worker, or in a new one. Never called with mu held.
func (p *Pump) start(s *Slot) {
	p.mu.Lock()
	var worker chan *Slot
	if last := len(p.workers.idle) - 1; last >= 0 {
		worker = p.workers.idle[last]
		p.workers.idle = p.workers.idle[:last]
	}
	p.mu.Unlock()
	if worker != nil {
		worker <- s
		return
	}
	p.workers.all.Go(func() { p.work(s) })
}

// work handles s, then other messages while there are any.
func (p *Pump) work(s *Slot) {
	defer func() {
		if s != nil { // Handle ended the goroutine by runtime.Goexit
			p.workers.all.Go(func() { p.work(p.after(s, nil)) })
		}
	}()
	more := make(chan *Slot, 1) // with room: start does not wait for the worker
	for s != nil {
		p.cfg.Handle(s.ctx, s.delivery, s)
		s = p.after(s, more)
	}
}

// after removes s, which was handled, from the pump and returns the slot that its worker handles next, or nil.
func (p *Pump) after(s *Slot, more chan *Slot) *Slot {
	next, wait := p.finish(s, more)
	p.cfg.Budget.freed(p)
	if wait {
		next = <-more
	}
	return next
}

// keep reports whether the worker of more waits for another message. Called with mu held.
func (p *Pump) keep(more chan *Slot) bool {
	if more == nil || p.phase != running || len(p.workers.idle) >= p.concurrency+p.settles() {
		return false
	}
	p.workers.idle = append(p.workers.idle, more)
	return true
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
