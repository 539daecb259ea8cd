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

// releaseTimeout bounds giving buffered deliveries back.
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
// started by then is given back: a handler would only see its context cancelled.
func (p *Pump) cutLate(done context.Context, cut context.CancelCauseFunc) {
	if p.cfg.StopTimeout < 0 || backoff.Sleep(done, p.cfg.StopTimeout) != nil {
		return
	}
	p.stop(true)
	cut(ErrStopping)
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
