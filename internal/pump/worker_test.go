package pump

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

func TestWorkersAreKeptUpToTheConcurrencyAndUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const c = 4
		r := newReceiver()
		p := start(t, Config{Receiver: r, Concurrency: c, Handle: func(_ context.Context, _ transport.Delivery, s *Slot) {
			s.Free()
			<-time.After(time.Second) // settling: more goroutines than handlers
		}})
		waiting := func() int {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.workers.waiting
		}
		r.put(5 * c)
		pass(10 * time.Second)
		if got := waiting(); got != c {
			t.Errorf("%d workers are kept, want %d", got, c)
		}
		r.put(1)
		synctest.Wait()
		if got := waiting(); got != c-1 {
			t.Errorf("%d workers wait while one has a message, want %d", got, c-1)
		}
		p.end()
	})
}
