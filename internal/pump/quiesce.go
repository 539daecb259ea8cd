package pump

import "context"

// Quiesce brings the pump to rest: no message starts any more, and it returns when none is
// handled or settles, or with the cause of ctx when that ends first. In either case the
// pump rests until [Pump.Resume]: it receives no more, but keeps what is buffered, and renews
// its leases. One that is not running yet begins at rest.
//
// A pump that stops while it rests gives back what is buffered as ever, but what it has to have
// handled waits for Resume. Calls of Quiesce and Resume take turns.
func (p *Pump) Quiesce(ctx context.Context) error {
	p.mu.Lock()
	quiet := make(chan struct{})
	p.quiet = quiet
	p.rest()
	p.mu.Unlock()
	select {
	case <-quiet:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Resume ends what [Pump.Quiesce] began.
func (p *Pump) Resume() {
	p.mu.Lock()
	p.quiet = nil
	p.wake()
	p.mu.Unlock()
	p.startReady()
}

// rest tells who waits for it that nothing is handled or settles. Called with mu held, when
// that may have come about.
func (p *Pump) rest() {
	if p.quiet == nil || p.handling+p.settling > 0 {
		return
	}
	select {
	case <-p.quiet: // told before
	default:
		close(p.quiet)
	}
}
