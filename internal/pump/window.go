package pump

// windowSize returns the receiver's window: the bound of the number and of the bytes of messages,
// and a place for each held message that the driver counts. Called with mu held.
func (p *Pump) windowSize() int {
	return p.share.bound(p, p.countWindow(), p.share.window) + p.widening
}

// countWindow returns how many deliveries may be in flight: those that are handled, those that
// settle, and the buffer. Where the driver prefetches, the last part is as large as the
// concurrency, and the sum is doubled for deliveries on their way and for acknowledgements that
// wait to be sent together. Called with mu held.
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

// beginWindow reports whether the caller must call giveWindow, without mu. Called with mu held.
func (p *Pump) beginWindow() bool {
	begins := p.phase == running && !p.windowing
	p.windowing = p.windowing || begins
	return begins
}

// giveWindow sets the receiver's window until it is the right one. It is called by the goroutine
// that set windowing: mu cannot be held during the call, and an older window must not be set last.
func (p *Pump) giveWindow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n := p.windowSize(); n != p.window; n = p.windowSize() {
		p.window = n
		p.share.window = n - p.widening
		p.share.claim()
		p.mu.Unlock()
		p.cfg.Receiver.Window(n)
		p.mu.Lock()
	}
	p.windowing = false
	p.wake()
}
