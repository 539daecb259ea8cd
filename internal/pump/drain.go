package pump

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

// releaseTimeout bounds giving buffered deliveries back, and waiting for what is held ahead.
const releaseTimeout = 10 * time.Second

// stop ends receiving, and says what becomes of the buffer: with release it is given back.
func (p *Pump) stop(release bool) {
	p.mu.Lock()
	if p.phase != stopping {
		p.phase = stopping
		close(p.stopped)
	}
	p.releasing = release
	p.wake()
	p.mu.Unlock()
}

// cutLate cancels the handlers when StopTimeout has passed before done ends. What has not
// started after half of that is given back, so that what starts has time to finish.
func (p *Pump) cutLate(done context.Context, cut context.CancelCauseFunc) {
	half := p.cfg.StopTimeout / 2
	if p.cfg.StopTimeout < 0 || backoff.Sleep(done, half) != nil {
		return
	}
	p.stop(true)
	if backoff.Sleep(done, p.cfg.StopTimeout-half) == nil {
		cut(ErrStopping)
	}
}

// takeAhead has handled what the driver holds ahead, where it would cost an attempt to have that given back. What no
// handler is free for stays with the driver: that is who hears of a lost connection, and gives back what is not begun.
func (p *Pump) takeAhead(ctx, work context.Context) {
	d, ok := p.cfg.Receiver.(transport.Drainer)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, p.patience())
	defer cancel()
	for {
		n := p.freeAhead()
		if n == 0 {
			return
		}
		ss := p.slots(work, d.Drain(ctx, n))
		if len(ss) == 0 {
			return
		}
		p.mu.Lock()
		p.take(ss)
		p.mu.Unlock()
		p.startReady()
	}
}

// patience is how long the driver may take to hand over what it holds: no longer than that can still be begun.
func (p *Pump) patience() time.Duration {
	if p.cfg.StopTimeout < 0 {
		return releaseTimeout
	}
	return min(releaseTimeout, p.cfg.StopTimeout/2)
}

// freeAhead waits until messages that the driver holds can be begun, and says how many; 0 is none any more. What a
// Receive returns comes before them. One that handles a message at a time for the moment, for its caution, does not go through
// all of them first.
func (p *Pump) freeAhead() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch n := p.free() - p.buffer.len(); {
		case p.releasing, p.serial && !p.cfg.Serial, p.cfg.StopTimeout == 0:
			return 0
		case n > 0 && p.calls == 0 && p.quiet == nil:
			return n
		}
		p.changed.Wait()
	}
}

// drain returns when nothing is left in the pump. It gives back what is to be given back.
func (p *Pump) drain(ctx context.Context) {
	for {
		p.mu.Lock()
		for p.busy() && (!p.releasing || p.buffer.len() == 0) {
			p.changed.Wait()
		}
		left := p.takeBuffer()
		p.mu.Unlock()
		if len(left) == 0 {
			return
		}
		p.release(ctx, left)
	}
}

// busy reports whether there is anything to wait for. Called with mu held.
func (p *Pump) busy() bool {
	return p.handling+p.settling+p.calls+p.buffer.len() > 0 || p.windowing
}

// takeBuffer empties the buffer; what was in it is the caller's. Called with mu held.
func (p *Pump) takeBuffer() []*Slot {
	var left []*Slot
	for p.buffer.len() > 0 {
		s := p.buffer.pop()
		s.state = gone
		p.unhold(s)
		p.share.drop(s.size)
		left = append(left, s)
	}
	return left
}

// release gives all back at once, so that the driver can do it in few requests.
func (p *Pump) release(ctx context.Context, left []*Slot) {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	errs := make([]error, len(left))
	var all sync.WaitGroup
	for i, s := range left {
		all.Go(func() {
			errs[i] = s.delivery.Release(ctx)
			s.end(nil)
		})
	}
	all.Wait()
	// A lost lease has done what Release was for.
	errs = slices.DeleteFunc(errs, func(err error) bool {
		return err == nil || errors.Is(err, transport.ErrLeaseLost)
	})
	if len(errs) > 0 {
		p.cfg.Logger.LogAttrs(ctx, slog.LevelWarn,
			"messages not started could not be given back, the broker will do it",
			slog.Int("messages", len(errs)), slog.Any("error", errs[0]))
	}
}
