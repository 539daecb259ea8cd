package pump

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

func TestAsManyWorkersAreKeptAsMayBeNeededAndUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const c = 4
		const most = c + settlesPerSlot*c
		r := newReceiver()
		p := start(t, Config{Receiver: r, Concurrency: c, Handle: func(_ context.Context, _ transport.Delivery, s *Slot) {
			s.Free()
			<-time.After(time.Second) // settling: more goroutines than handlers
		}})
		waiting := func() int {
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.workers.idle)
		}
		r.put(5 * c)
		pass(10 * time.Second)
		if got := waiting(); got != most {
			t.Errorf("%d workers are kept, want %d", got, most)
		}
		r.put(1)
		synctest.Wait()
		if got := waiting(); got != most-1 {
			t.Errorf("%d workers wait while one has a message, want %d", got, most-1)
		}
		p.end()
	})
}

func TestAHandlerThatEndsItsGoroutineTakesNoSlotWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		p := start(t, Config{Receiver: r, Concurrency: 2, Handle: func(ctx context.Context, d transport.Delivery, _ *Slot) {
			if d.(*delivery).n%2 == 0 {
				runtime.Goexit()
			}
			_ = d.Complete(ctx)
		}})
		ds := r.put(20)
		synctest.Wait()
		for i := 1; i < len(ds); i += 2 {
			if ds[i].completed.Load() != 1 {
				t.Errorf("message %d was completed %d times", i, ds[i].completed.Load())
			}
		}
		if got := p.Stats(); got != (Stats{}) {
			t.Errorf("the pump still holds %+v", got)
		}
		p.end()
	})
}
