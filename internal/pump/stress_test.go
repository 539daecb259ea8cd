package pump

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// The clock is real and everything happens at once: concurrency changes, times of rest, outages,
// lost leases, a stop at any moment. Each message ends once.
func TestStressNothingIsLostOrSettledTwice(t *testing.T) {
	for _, limits := range []transport.Limits{
		{Prefetch: true},
		{Prefetch: true, FreeRelease: true},
		{MaxReceive: 10, ParallelReceive: 4, FreeRelease: true, Lease: 20 * time.Millisecond},
		{MaxReceive: 50, ParallelReceive: 1, Lease: 20 * time.Millisecond},
	} {
		for range 6 {
			stress(t, limits)
		}
	}
}

func stress(t *testing.T, limits transport.Limits) {
	t.Helper()
	before := runtime.NumGoroutine()
	l := newLeaser()
	ds := l.put(4000)
	l.before = func(int) ([]transport.Delivery, error, bool) { return nil, errAway, rand.N(200) == 0 }
	l.renew = func(_ context.Context, ds []transport.Delivery) []error {
		errs := make([]error, len(ds))
		for i := range ds {
			switch rand.N(10) {
			case 0:
				errs[i] = transport.ErrLeaseLost
			case 1:
				errs[i] = errAway
			}
		}
		return errs
	}
	var in, settling gauge
	const most = 16
	p := New(Config{
		Receiver: l, Limits: limits, Concurrency: most, StopTimeout: time.Millisecond,
		Handle: func(ctx context.Context, d transport.Delivery, slot *Slot) {
			in.enter()
			work(ctx, rand.N(200*time.Microsecond))
			in.leave()
			settling.enter()
			slot.Free()
			work(context.Background(), rand.N(100*time.Microsecond))
			settling.leave()
			_ = d.Complete(ctx)
			slot.Free()
		},
	})
	ctx, cancel := context.WithTimeout(t.Context(), rand.N(60*time.Millisecond))
	defer cancel()
	var changing sync.WaitGroup
	changing.Go(func() {
		for ctx.Err() == nil {
			p.SetConcurrency(1 + rand.N(most))
			_ = p.Stats()
			runtime.Gosched()
		}
	})
	changing.Go(func() {
		for ctx.Err() == nil {
			if p.Quiesce(ctx) == nil && in.now.Load()+settling.now.Load() != 0 {
				t.Error("something is handled or settles while the pump rests")
			}
			p.Resume()
			work(ctx, rand.N(time.Millisecond))
		}
	})
	p.Run(ctx)
	changing.Wait()
	if s := p.Stats(); s != (Stats{}) || len(p.leases) > 0 {
		t.Errorf("%+v and %d leases held after Run", s, len(p.leases))
	}
	if in.most.Load() > most || settling.most.Load() > (1+settlesPerSlot)*most {
		t.Errorf("%d handled and %d settled at once, want at most %d and %d",
			in.most.Load(), settling.most.Load(), most, (1+settlesPerSlot)*most)
	}
	wantSettledOnce(t, ds[:len(ds)-l.left()])
	wantNoMoreGoroutines(t, before)
}

// work takes d of time, unless it is cut.
func work(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// wantNoMoreGoroutines waits until goroutines that have returned are gone.
func wantNoMoreGoroutines(t *testing.T, before int) {
	t.Helper()
	for range 1000 {
		if runtime.NumGoroutine() <= before {
			return
		}
		<-time.After(time.Millisecond)
	}
	t.Errorf("%d goroutines are left, want %d", runtime.NumGoroutine(), before)
}
