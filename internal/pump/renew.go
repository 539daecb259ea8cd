package pump

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

// renewBatch bounds the leases of a call.
const renewBatch = 100

// errNoAnswer stands for an entry that is missing in the result of a driver's Renew.
var errNoAnswer = errors.New("the driver gave no result")

// keeper renews the leases of all deliveries in the pump. A single goroutine uses a keeper.
type keeper struct {
	*Pump
	lease   time.Duration
	pace    backoff.Backoff // of renewals whose result is unknown
	failing bool
}

func newKeeper(p *Pump) *keeper {
	lease := p.cfg.Limits.Lease
	return &keeper{Pump: p, lease: lease, pace: backoff.Backoff{Min: lease / 60, Max: lease / 6}}
}

// run renews leases until ctx ends.
func (k *keeper) run(ctx context.Context) {
	for backoff.Sleep(ctx, k.untilDue()) == nil {
		k.round(ctx)
	}
}

// untilDue returns the time until the next renewal. A message that arrives meanwhile is not due
// before a third of its lease is over, so the keeper need not be woken.
func (k *keeper) untilDue() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.now()
	wait := k.lease / 3
	for _, s := range k.leases {
		wait = min(wait, s.due-now, s.leased+k.lease-now)
	}
	return max(wait, 0)
}

// round renews the leases that are due now or soon: fewer calls. A lease without a renewal for the
// whole duration is lost: the broker may be unreachable, so the answer is not needed.
func (k *keeper) round(ctx context.Context) {
	k.mu.Lock()
	now := k.now()
	var expired, due []*Slot
	for _, s := range k.leases {
		switch {
		case s.leased+k.lease <= now:
			expired = append(expired, s)
		case s.due <= now+k.lease/12:
			due = append(due, s)
		}
	}
	k.mu.Unlock()
	k.lose(ctx, expired, "not renewed in time")
	for batch := range slices.Chunk(due, renewBatch) {
		if ctx.Err() == nil {
			k.renew(ctx, batch)
		}
	}
}

// renew renews the leases of the held slots of batch.
func (k *keeper) renew(ctx context.Context, batch []*Slot) {
	batch, ds, timeout := k.stillHeld(batch)
	if len(ds) == 0 {
		return
	}
	call, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	began := k.now()
	errs := k.renewer.Renew(call, ds)
	if ctx.Err() != nil {
		return // every message is settled, and no lease is needed any more
	}
	lost, unknown := k.renewed(batch, errs, began)
	k.lose(ctx, lost, "the broker says so")
	switch {
	case unknown != nil && !k.failing:
		k.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "renewing leases fails, trying again", slog.Any("error", unknown))
	case unknown == nil && k.failing:
		k.cfg.Logger.LogAttrs(ctx, slog.LevelInfo, "renewing leases works again")
	}
	k.failing = unknown != nil
}

// stillHeld returns the slots of batch that are still held, their deliveries, and the timeout of
// the call: the time until the first lease can expire.
func (k *keeper) stillHeld(batch []*Slot) (held []*Slot, ds []transport.Delivery, timeout time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	held = slices.DeleteFunc(batch, func(s *Slot) bool { return s.at < 0 })
	for _, s := range held {
		ds = append(ds, s.delivery)
	}
	now := k.now()
	timeout = k.lease / 3
	for _, s := range k.leases {
		timeout = min(timeout, s.leased+k.lease-now)
	}
	return held, ds, timeout
}

// renewed records the results of a call. It returns the slots whose leases are lost, and the first
// other error.
func (k *keeper) renewed(batch []*Slot, errs []error, began time.Duration) (lost []*Slot, unknown error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var again time.Duration
	for i, s := range batch {
		err := errNoAnswer
		if i < len(errs) {
			err = errs[i]
		}
		switch {
		case err == nil:
			s.leased, s.due = began, began+k.lease/3
		case errors.Is(err, transport.ErrLeaseLost):
			lost = append(lost, s)
		default:
			if unknown == nil {
				unknown, again = err, k.now()+k.pace.Next()
			}
			s.due = again
		}
	}
	if unknown == nil {
		k.pace.Reset()
	}
	return lost, unknown
}

// lose ends the held slots of ss: the messages are, or soon will be, delivered to another instance.
// The contexts of handlers are cancelled; deliveries that have not started are dropped and
// released.
func (k *keeper) lose(ctx context.Context, ss []*Slot, reason string) {
	var lost []*Slot
	var waiting []transport.Delivery
	var started int
	k.mu.Lock()
	for _, s := range ss {
		if s.at < 0 {
			continue // settled in the meantime, perhaps the reason
		}
		lost = append(lost, s)
		switch k.unhold(s); s.state {
		case buffered:
			waiting = append(waiting, s.delivery)
			k.forget(s)
		case handling:
			started++
		default: // the call that settles returns the error
		}
	}
	k.buffer.drop()
	k.wake()
	k.mu.Unlock()
	for _, s := range lost {
		s.end(transport.ErrLeaseLost)
	}
	k.abandon(ctx, waiting)
	if started+len(waiting) > 0 {
		k.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "leases lost: other instances handle the messages",
			slog.String("reason", reason), slog.Int("handling", started), slog.Int("waiting", len(waiting)))
	}
}

// abandon releases ds in the background. Only the end of Run waits for the release.
func (k *keeper) abandon(ctx context.Context, ds []transport.Delivery) {
	for _, d := range ds {
		k.abandoning.Go(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
			defer cancel()
			_ = d.Release(ctx)
		})
	}
}
