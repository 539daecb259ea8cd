package pump

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// Each message has arrived once before it is handled, and what was attached is there.
func TestEachMessageArrivesBeforeItIsHandled(t *testing.T) {
	for _, tt := range []struct {
		name   string
		c      int
		limits transport.Limits
	}{
		{"buffered", 4, transport.Limits{}},
		{"one at a time", 1, transport.Limits{}},
		{"prefetched", 4, transport.Limits{Prefetch: true}},
		{"with leases", 4, transport.Limits{Lease: time.Minute}},
		{"several Receives at once", 4, transport.Limits{ParallelReceive: 3}},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			var mu sync.Mutex
			arrived := map[transport.Delivery]int{}
			handled := 0
			r := newReceiver()
			r.put(100)
			p := start(t, Config{
				Receiver: r, Concurrency: tt.c, Limits: tt.limits,
				Arrived: func(_ context.Context, ss []Slot) {
					time.Sleep(time.Millisecond)
					mu.Lock()
					defer mu.Unlock()
					for i := range ss {
						arrived[ss[i].Delivery()]++
						ss[i].Attach(ss[i].Delivery())
					}
				},
				Handle: func(_ context.Context, d transport.Delivery, slot *Slot) {
					mu.Lock()
					defer mu.Unlock()
					handled++
					if arrived[d] != 1 || slot.Attached() != d {
						t.Errorf("a message arrived %d times, and %v is attached", arrived[d], slot.Attached())
					}
				},
			})
			pass(time.Minute)
			p.end()
			if handled != 100 {
				t.Errorf("%d handled, want 100", handled)
			}
		})
	}
}

// Where the driver prefetches, fast handlers get several messages from one Receive, and slow ones
// none ahead.
func TestMessagesOfADriverThatPrefetchesArriveInBatches(t *testing.T) {
	for _, tt := range []struct {
		name     string
		takes    time.Duration
		most     int // Receives for 1,000 messages
		buffered int
	}{
		{"fast", time.Millisecond, 500, 8},
		{"slow", time.Minute, 1000, 0},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			calls, buffered := 0, 0
			r := newReceiver()
			r.put(1000)
			p := start(t, Config{
				Receiver: r, Concurrency: 8, Limits: transport.Limits{Prefetch: true}, Handle: complete(tt.takes),
				Arrived: func(context.Context, []Slot) { calls++ },
			})
			for r.left() > 0 {
				time.Sleep(tt.takes / 2)
				synctest.Wait()
				buffered = max(buffered, p.Stats().Buffered)
			}
			p.end()
			if calls > tt.most || buffered > tt.buffered {
				t.Errorf("%d Receives, %d buffered; want at most %d and %d", calls, buffered, tt.most, tt.buffered)
			}
		})
	}
}
