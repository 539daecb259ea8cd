package pump

import "sync"

// workers are the goroutines that handle messages. One that has nothing to do is kept for
// the next message: its stack has grown to what handlers need, and growing a new one
// for each message costs as much as the rest of the endpoint's work.
type workers struct {
	all sync.WaitGroup

	// idle are the workers that wait, each for what comes through its channel. The last to come is the
	// first to go: collecting garbage halves the stack of one that waits. Guarded by the pump's mutex.
	idle []chan *Slot
}

// start has s handled by a worker that waits, or by a new one. Never called with mu held.
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

// work handles s, whatever is ready in its place, and whatever comes while it waits.
func (p *Pump) work(s *Slot) {
	defer func() {
		if s != nil { // Handle ended the goroutine, by runtime.Goexit: its place goes to another
			p.workers.all.Go(func() { p.work(p.after(s, nil)) })
		}
	}()
	more := make(chan *Slot, 1) // with room: who starts the next does not wait for us
	for s != nil {
		p.cfg.Handle(s.ctx, s.delivery, s)
		s = p.after(s, more)
	}
}

// after takes s, which was handled, out of the pump and returns what its worker handles
// next, if anything: what is ready, or what comes through more.
func (p *Pump) after(s *Slot, more chan *Slot) *Slot {
	next, wait := p.finish(s, more)
	p.cfg.Budget.freed(p)
	if wait {
		next = <-more
	}
	return next
}

// keep has the worker that listens to more wait for a message, if one more is worth it. Called with mu held.
func (p *Pump) keep(more chan *Slot) bool {
	if more == nil || p.phase != running || len(p.workers.idle) >= p.concurrency+p.settles() {
		return false
	}
	p.workers.idle = append(p.workers.idle, more)
	return true
}

// endWorkers sends the workers home and waits for them. Nothing may be left to handle.
func (p *Pump) endWorkers() {
	p.mu.Lock()
	for _, worker := range p.workers.idle {
		close(worker)
	}
	p.workers.idle = nil
	p.mu.Unlock()
	p.workers.all.Wait()
}
