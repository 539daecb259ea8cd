package pump

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// holder is a delivery that the driver does not count against its window while it is held.
type holder struct {
	*delivery
	held *atomic.Int32
}

func (h holder) Hold() (until time.Time) {
	h.held.Add(1)
	return time.Time{}.Add(time.Hour)
}

// holders is a receiver of such deliveries.
type holders struct {
	*receiver
	held atomic.Int32
}

func (r *holders) Receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	ds, err := r.receiver.Receive(ctx, limit)
	for i, d := range ds {
		ds[i] = holder{d.(*delivery), &r.held}
	}
	return ds, err
}

func (r *holders) lastWindow() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.windows[len(r.windows)-1]
}

// holdingUntil is a Handle that holds messages until release is closed.
func holdingUntil(release <-chan struct{}) func(context.Context, transport.Delivery, *Slot) {
	return func(ctx context.Context, d transport.Delivery, slot *Slot) {
		slot.Free()
		until := slot.Hold()
		if _, ok := d.(transport.Holder); until.IsZero() == ok {
			panic("another time than that of the driver")
		}
		slot.Hold()
		slot.Free()
		<-release
		_ = d.Complete(ctx)
	}
}

// Held messages have no slot, no place beside the slots, and no bytes of the budget. The end of Run
// waits for them.
func TestHeldMessagesDelayNoOthers(t *testing.T) {
	for _, limits := range []transport.Limits{{}, {Prefetch: true}} {
		for _, concurrency := range []int{1, 3} {
			synctest.Test(t, func(t *testing.T) {
				r := newReceiver()
				const n = 1000
				release := make(chan struct{})
				p := start(t, Config{
					Receiver: r, Concurrency: concurrency, Limits: limits, Budget: NewBudget(100), Handle: holdingUntil(release),
				})
				sizes := make([]int, n)
				for i := range sizes {
					sizes[i] = 90
				}
				ds := r.putSizes(sizes...)
				pass(time.Minute)
				p.wantStats(t, Stats{Held: n})
				p.stop()
				pass(time.Hour)
				if p.ended() {
					t.Error("Run has returned although messages are held")
				}
				close(release)
				p.end()
				wantSettledOnce(t, ds)
				p.wantStats(t, Stats{})
			})
		}
	}
}

// The window grows by the messages that the driver counts, and by no others.
func TestWindowGrowsByHeldMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		cfg := Config{Concurrency: 2, Limits: transport.Limits{Prefetch: true}, Handle: holdingUntil(release)}
		plain, own := &holders{receiver: newReceiver()}, &holders{receiver: newReceiver()}
		cfg.Receiver = plain.receiver
		one := start(t, cfg)
		cfg.Receiver = own
		two := start(t, cfg)
		before := own.lastWindow()
		plain.put(50)
		own.put(50)
		pass(time.Minute)
		if w := plain.lastWindow(); w != before+50 {
			t.Errorf("the window is %d with 50 held messages, want %d", w, before+50)
		}
		if w, n := own.lastWindow(), own.held.Load(); w != before || n != 50 {
			t.Errorf("the window is %d, and the driver knows of %d held messages; want %d, 50", w, n, before)
		}
		close(release)
		pass(time.Second)
		plain.put(1) // the smaller window is given after a Receive
		pass(time.Second)
		if w := plain.lastWindow(); w > before+1 {
			t.Errorf("the window is %d after the messages were settled, want %d", w, before)
		}
		one.end()
		two.end()
	})
}

// No held message keeps the pump from its rest, because no handler runs.
func TestHeldMessagesAllowRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		r.put(3)
		release := make(chan struct{})
		p := start(t, Config{Receiver: r, Concurrency: 3, Handle: func(ctx context.Context, d transport.Delivery, slot *Slot) {
			<-time.After(time.Second)
			holdingUntil(release)(ctx, d, slot)
		}})
		short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if err := p.Quiesce(short); err != nil {
			t.Errorf("the pump does not rest: %v", err)
		}
		p.Resume()
		close(release)
		p.end()
	})
}

// The leases of held messages are renewed. A lease that is late is known before the lease is lost.
func TestLeasesOfHeldMessagesAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeaser()
		l.put(5)
		var away atomic.Bool
		l.renew = func(_ context.Context, ds []transport.Delivery) []error {
			errs := make([]error, len(ds))
			for i := range errs {
				if away.Load() {
					errs[i] = errors.New("away")
				}
			}
			return errs
		}
		var late, lost atomic.Int32
		p := start(t, Config{Receiver: l, Concurrency: 1, Limits: leased, Handle: func(ctx context.Context, _ transport.Delivery, slot *Slot) {
			slot.Hold()
			for !slot.LeaseLate() {
				if ctx.Err() != nil {
					return
				}
				<-time.After(time.Second)
			}
			late.Add(1)
			<-ctx.Done()
			if errors.Is(context.Cause(ctx), transport.ErrLeaseLost) {
				lost.Add(1)
			}
		}})
		pass(time.Hour)
		if late.Load() != 0 || lost.Load() != 0 {
			t.Errorf("%d leases were late, %d lost", late.Load(), lost.Load())
		}
		away.Store(true)
		pass(lease/2 + lease/3 + time.Second)
		if late.Load() != 5 || lost.Load() != 0 {
			t.Errorf("%d leases are late, %d lost; want 5, 0", late.Load(), lost.Load())
		}
		pass(lease)
		if lost.Load() != 5 {
			t.Errorf("%d leases were lost, want 5", lost.Load())
		}
		p.end()
	})
}
