package tablequeue

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

// sweepEvery is the time between two sweeps of a Conn that receives.
const sweepEvery = time.Minute

const (
	// MaxSwept is the largest number of rows that one call of a Sweeper removes.
	MaxSwept = 1000
	// SweepPause is the least time between two sweeps of a queue by all processes together.
	SweepPause = 45 * time.Second
)

// Sweeper is the part of a [Store] that removes expired rows from queues without a receiver.
type Sweeper interface {
	// DueForSweep returns the queues that no process has swept for [SweepPause], each to one
	// process, which sweeps it.
	DueForSweep(ctx context.Context) ([]string, error)
	// SweepSome removes up to [MaxSwept] expired rows of queue that are not leased, and returns
	// their number.
	SweepSome(ctx context.Context, queue string) (int64, error)
}

// Sweep sweeps the queues that are due: also the others where one cannot be swept.
func Sweep(ctx context.Context, store Sweeper) error {
	queues, err := store.DueForSweep(ctx)
	errs := []error{err}
	for _, q := range queues {
		var err error
		for n := int64(MaxSwept); n == MaxSwept && err == nil; {
			n, err = store.SweepSome(ctx, q)
		}
		if !errors.Is(err, transport.ErrNoQueue) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Warner is the part of a [Store] that foresees failures.
type Warner interface {
	// Warnings returns texts about the tables of queues that will fail in time.
	Warnings(ctx context.Context, queues []string) ([]string, error)
}

// sweeps are the periodic looks at the tables of a Conn that receives.
type sweeps struct {
	*core

	unusable *unusable
	inboxes  *inboxes
	warnings atomic.Pointer[[]string]
}

// sweep sweeps, if the store has a Sweeper, and looks for failures until the Conn is closed. It
// repeats a sweep that fails after the usual pause.
func (s *sweeps) sweep() {
	for backoff.Sleep(s.life, sweepEvery) == nil {
		ctx, cancel := context.WithTimeout(s.life, sweepEvery)
		if s.store.Sweeper != nil {
			if err := Sweep(ctx, s.store.Sweeper); err != nil && s.life.Err() == nil {
				s.cfg.Env.Log().WarnContext(ctx, "expired messages cannot be removed: it is tried again in a minute", slog.Any("error", err))
			}
		}
		if err := errors.Join(s.warn(ctx), s.compareClocks(ctx)); err != nil && s.life.Err() == nil {
			s.cfg.Env.Log().DebugContext(ctx, "tables cannot be examined: it is tried again in a minute", slog.Any("error", err))
		}
		cancel()
	}
}

// Warnings implements [transport.Warner]: the warnings are those of the last sweep, and about
// queues that take no messages.
func (s *sweeps) Warnings() []string {
	all := s.unusable.warnings()
	if swept := s.warnings.Load(); swept != nil {
		all = append(all, *swept...)
	}
	return all
}

// warn looks for failures of the queues that the Conn receives from.
func (s *sweeps) warn(ctx context.Context) error {
	all, err := s.inboxes.warnings(ctx)
	if s.store.Warner == nil {
		s.warnings.Store(&all)
		return err
	}
	var queues []string
	s.received.Range(func(queue, _ any) bool {
		queues = append(queues, queue.(string)) //nolint:errcheck // its keys are names
		return true
	})
	slices.Sort(queues)
	more, werr := s.store.Warner.Warnings(ctx, queues)
	if err = errors.Join(err, werr); err == nil {
		all = append(all, more...)
		s.warnings.Store(&all)
	}
	return err
}
