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

// releaseTimeout bounds the release of buffered deliveries, and the wait for prefetched ones.
const releaseTimeout = 10 * time.Second

// stop ends receiving. With release, buffered messages are released; otherwise they are handled.
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

// cutLate cancels the handlers when StopTimeout has passed before done ends. Messages that have not
// started after half of that time are released, so that handlers that start have time to finish.
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

// takeAhead handles the messages that the driver has prefetched, where their release would count as
// an attempt. Messages without a free handler stay with the driver, which learns of a lost
// connection and releases them.
func (p *Pump) takeAhead(ctx, work context.Context) {
	d, ok := p.cfg.Receiver.(transport.Drainer)
	if !ok {
		return
	}
	timeout := releaseTimeout
	if p.cfg.StopTimeout >= 0 { // later they could not be begun
		timeout = min(timeout, p.cfg.StopTimeout/2)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for n := p.freeAhead(); n > 0; n = p.freeAhead() {
		ss := p.slots(work, d.Drain(ctx, n))
		if len(ss) == 0 {
			return
		}
		p.mu.Lock()
		p.take(ss)
		p.startReady()
		p.mu.Unlock()
	}
}

// freeAhead waits until prefetched messages can be begun, and returns how many; 0 ends the drain.
// Messages of a running Receive come first. A pump that is serial for the moment only does not
// drain: that would take too long.
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

// drain returns when the pump holds no message. It releases the buffer if the pump is releasing.
func (p *Pump) drain(ctx context.Context) {
	for {
		p.mu.Lock()
		for p.windowing || p.handling+p.settling+p.held+p.calls+p.buffer.len() > 0 {
			if p.releasing && p.buffer.len() > 0 {
				break
			}
			p.changed.Wait()
		}
		var left []*Slot
		for p.buffer.len() > 0 {
			s := p.buffer.pop()
			s.state = gone
			p.unhold(s)
			p.share.drop(s.size)
			left = append(left, s)
		}
		p.mu.Unlock()
		if len(left) == 0 {
			return
		}
		p.release(ctx, left)
	}
}

// release releases all slots at once, so that the driver can use few requests.
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
	// After a lost lease the message is released already.
	errs = slices.DeleteFunc(errs, func(err error) bool {
		return err == nil || errors.Is(err, transport.ErrLeaseLost)
	})
	if len(errs) > 0 {
		p.cfg.Logger.LogAttrs(ctx, slog.LevelWarn,
			"releasing messages that were not started failed: the broker redelivers them",
			slog.Int("messages", len(errs)), slog.Any("error", errs[0]))
	}
}
