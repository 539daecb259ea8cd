package pump

import "sync"

// workers are the goroutines that handle messages. One that has nothing to do is kept for
// the next message: its stack has grown to what handlers need, and growing a new one
// for each message costs as much as the rest of the endpoint's work.
type workers struct {
	spare chan *Slot    // takes a message when a worker waits for one
	over  chan struct{} // closed when no more messages will come
	all   sync.WaitGroup

	waiting int // guarded by the pump's mutex
}

func newWorkers() workers {
	return workers{spare: make(chan *Slot), over: make(chan struct{})}
}

// start has s handled by a worker that waits, or by a new one. Never called with mu held.
func (p *Pump) start(s *Slot) {
	select {
	case p.workers.spare <- s:
	default:
		p.workers.all.Go(func() { p.work(s) })
	}
}

// work handles s, whatever is ready in its place, and whatever comes while it waits.
func (p *Pump) work(s *Slot) {
	defer func() {
		if s != nil { // Handle ended the goroutine, by runtime.Goexit: its place goes to another
			p.workers.all.Go(func() { p.work(p.after(s)) })
		}
	}()
	for s != nil {
		p.cfg.Handle(s.ctx, s.delivery, s)
		s = p.after(s)
	}
}

// after takes s, which was handled, out of the pump and returns what its worker handles
// next, if anything.
func (p *Pump) after(s *Slot) *Slot {
	next, wait := p.finish(s)
	if wait {
		next = p.await()
	}
	return next
}

// mayWait tells whether one more worker is worth keeping. Called with mu held.
func (p *Pump) mayWait() bool {
	if p.phase != running || p.workers.waiting >= p.concurrency {
		return false
	}
	p.workers.waiting++
	return true
}

func (p *Pump) await() (s *Slot) {
	select {
	case s = <-p.workers.spare:
	case <-p.workers.over:
	}
	p.mu.Lock()
	p.workers.waiting--
	p.mu.Unlock()
	return s
}

// end sends the workers home and waits for them. Nothing may be left to handle.
func (w *workers) end() {
	close(w.over)
	w.all.Wait()
}
