package pump

import "context"

// Quiesce brings the pump to rest: no message starts any more. It returns nil when no message is
// handled or settles, and the cause of ctx when that ends first. In either case the pump rests
// until [Pump.Resume]: it does not receive, keeps its buffer and renews the leases. A pump that
// does not run yet begins at rest.
//
// A pump that stops while it rests releases its buffer where that does not count as an attempt, and
// otherwise handles it after Resume. Calls of Quiesce and Resume alternate.
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

// Resume ends the rest that [Pump.Quiesce] began.
func (p *Pump) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.quiet = nil
	p.startReady()
	p.wake()
}

// rest ends the wait of Quiesce if no message is handled or settles. Called with mu held.
func (p *Pump) rest() {
	if p.quiet == nil || p.handling+p.settling > 0 {
		return
	}
	select {
	case <-p.quiet: // closed before
	default:
		close(p.quiet)
	}
}
