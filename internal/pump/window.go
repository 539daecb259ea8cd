package pump

// windowSize returns the window that the receiver is to have: by the number of messages, and by their bytes. Called with mu held.
func (p *Pump) windowSize() int { return p.share.bound(p, p.countWindow(), p.window) }

// countWindow is how many deliveries the pump lets the driver have out: those that
// are handled and those that settle, and some that wait behind them in our buffer. Where the driver
// prefetches, these are as many as are handled, and half of the window is for what is on its way: sent and not here,
// or done with and waiting for others to be acknowledged together with. Called with mu held.
func (p *Pump) countWindow() int {
	c := p.concurrency
	switch {
	case p.serial:
		return 1
	case c == 1 && p.cfg.Limits.Prefetch:
		return 3
	case c == 1:
		return 1 + buffersPerSlot
	case p.cfg.Limits.Prefetch:
		return 2 * (c + p.settles() + c)
	default:
		return c + p.settles() + buffersPerSlot*c
	}
}

// giveWindow gives the receiver its window until it has the right one. It is called by who
// set windowing: the mutex cannot be held over the call, and an older window must not
// come last.
func (p *Pump) giveWindow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n := p.windowSize(); n != p.window; n = p.windowSize() {
		p.window = n
		p.share.setWindow(n)
		p.mu.Unlock()
		p.cfg.Receiver.Window(n)
		p.mu.Lock()
	}
	p.windowing = false
	p.wake()
}
