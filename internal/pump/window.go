package pump

// windowSize is how many deliveries the pump lets the driver have out: those that
// are handled and those that settle, and as many again as are handled waiting
// behind them: in the driver where it prefetches, else in our buffer. Called with mu held.
func (p *Pump) windowSize() int {
	if p.alone {
		return 1
	}
	c := p.concurrency
	ahead := buffersPerSlot * c
	if p.cfg.Limits.Prefetch {
		ahead = max(c, 2)
	}
	if c == 1 {
		return 1 + ahead
	}
	return c + p.settles() + ahead
}

// giveWindow gives the receiver its window until it has the right one. It is called by who
// set windowing: the mutex cannot be held over the call, and an older window must not
// come last.
func (p *Pump) giveWindow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n := p.windowSize(); n != p.window; n = p.windowSize() {
		p.window = n
		p.mu.Unlock()
		p.cfg.Receiver.Window(n)
		p.mu.Lock()
	}
	p.windowing = false
	p.wake()
}
