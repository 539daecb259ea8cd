package pump

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/transport"
)

// gauge counts the messages that are inside, and their maximum.
type gauge struct{ now, most atomic.Int64 }

func (g *gauge) enter() {
	n := g.now.Add(1)
	for m := g.most.Load(); n > m && !g.most.CompareAndSwap(m, n); m = g.most.Load() {
	}
}

func (g *gauge) leave() { g.now.Add(-1) }

// complete is a handler that takes d and completes.
func complete(d time.Duration) func(context.Context, transport.Delivery, *Slot) {
	return func(ctx context.Context, m transport.Delivery, slot *Slot) {
		if d > 0 {
			<-time.After(d)
		}
		slot.Free()
		_ = m.Complete(ctx)
	}
}

func TestConcurrencyIsReachedAndNeverExceeded(t *testing.T) {
	for _, prefetch := range []bool{true, false} {
		for _, c := range []int{1, 5, 10, 64} {
			bubble(t, fmt.Sprintf("prefetch=%v/%d", prefetch, c), func(t *testing.T) {
				r := newReceiver()
				ds := r.put(20 * c)
				var in gauge
				p := start(t, Config{
					Receiver: r, Concurrency: c, Limits: transport.Limits{Prefetch: prefetch},
					Handle: func(ctx context.Context, d transport.Delivery, slot *Slot) {
						in.enter()
						<-time.After(time.Second)
						in.leave()
						slot.Free()
						_ = d.Complete(ctx)
					},
				})
				pass(time.Minute)
				p.end()
				if got := in.most.Load(); got != int64(c) {
					t.Errorf("at most %d handlers ran at once, want %d", got, c)
				}
				wantSettledOnce(t, ds)
			})
		}
	}
}

// wantSettledOnce fails the test unless each was either completed or released, once.
func wantSettledOnce(t *testing.T, ds []*delivery) {
	t.Helper()
	for _, d := range ds {
		if n := d.completed.Load() + d.released.Load(); n != 1 {
			t.Errorf("delivery %d was completed %d and released %d times, want one of them once",
				d.n, d.completed.Load(), d.released.Load())
		}
	}
}

func TestHandlersKeepAllSlotsBusy(t *testing.T) {
	for _, prefetch := range []bool{true, false} {
		bubble(t, fmt.Sprintf("prefetch=%v", prefetch), func(t *testing.T) {
			r := newReceiver()
			r.put(100)
			p := start(t, Config{
				Receiver: r, Concurrency: 10, Limits: transport.Limits{Prefetch: prefetch},
				Handle: complete(time.Second),
			})
			pass(10 * time.Second)
			if left := r.left() + p.Stats().Buffered + p.Stats().Handling; left > 0 {
				t.Errorf("%d of 100 messages are left after the time that ten slots need", left)
			}
			p.end()
		})
	}
}

func TestRaisedConcurrencyStartsMoreAtOnce(t *testing.T) {
	for _, prefetch := range []bool{true, false} {
		bubble(t, fmt.Sprintf("prefetch=%v", prefetch), func(t *testing.T) {
			r := newReceiver()
			r.put(100)
			p := start(t, Config{
				Receiver: r, Concurrency: 2, Limits: transport.Limits{Prefetch: prefetch},
				Handle: complete(time.Minute),
			})
			p.SetConcurrency(20)
			synctest.Wait()
			if got := p.Stats().Handling; got != 20 {
				t.Errorf("%d handlers run, want 20", got)
			}
			p.end()
		})
	}
}

func TestLoweredConcurrencyLetsRunningHandlersFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		r.put(100)
		p := start(t, Config{
			Receiver: r, Concurrency: 10, Limits: transport.Limits{Prefetch: true},
			Handle: complete(time.Minute),
		})
		p.SetConcurrency(3)
		p.wantStats(t, Stats{Handling: 10})
		pass(time.Minute)
		p.wantStats(t, Stats{Handling: 3})
		p.SetConcurrency(0)
		pass(time.Minute)
		p.wantStats(t, Stats{Handling: 1, Buffered: 1})
		p.end()
	})
}

func TestSettlesHaveTheirOwnBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		r.put(100)
		settle := make(chan struct{})
		p := start(t, Config{
			Receiver: r, Concurrency: 5, Limits: transport.Limits{Prefetch: true},
			Handle: func(_ context.Context, _ transport.Delivery, slot *Slot) {
				slot.Free()
				slot.Free() // the second does nothing
				<-settle
			},
		})
		p.wantStats(t, Stats{Settling: 25})
		if got := 100 - r.left(); got != 25 {
			t.Errorf("%d messages taken while none settles, want 25", got)
		}
		settle <- struct{}{}
		synctest.Wait()
		if got := 100 - r.left(); got != 26 {
			t.Errorf("%d messages taken after one settled, want 26", got)
		}
		close(settle)
		p.end()
	})
}

func TestSlowSettlesLeaveTheSlotsToHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		r.put(100)
		p := start(t, Config{
			Receiver: r, Concurrency: 5, Limits: transport.Limits{Prefetch: true},
			Handle: func(_ context.Context, _ transport.Delivery, slot *Slot) {
				<-time.After(time.Second)
				slot.Free()
				<-time.After(3 * time.Second)
			},
		})
		pass(3*time.Second + time.Millisecond)
		p.wantStats(t, Stats{Handling: 5, Settling: 15})
		p.end()
	})
}

// With concurrency one, a message is settled before the next message starts.
func TestWithConcurrencyOneASettlementComesFirst(t *testing.T) {
	for _, prefetch := range []bool{true, false} {
		bubble(t, fmt.Sprintf("prefetch=%v", prefetch), func(t *testing.T) {
			r := newReceiver()
			r.put(50)
			var got []int
			var in gauge
			p := start(t, Config{
				Receiver: r, Concurrency: 1, Limits: transport.Limits{Prefetch: prefetch},
				Handle: func(_ context.Context, d transport.Delivery, slot *Slot) {
					in.enter()
					defer in.leave()
					slot.Free()
					<-time.After(time.Second)
					got = append(got, d.(*delivery).n)
				},
			})
			pass(time.Minute)
			p.end()
			if in.most.Load() != 1 {
				t.Errorf("%d messages at once, want 1", in.most.Load())
			}
			want := make([]int, 50)
			for i := range want {
				want[i] = i
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("order of settling (-want +got):\n%s", diff)
			}
		})
	}
}

// A handler that does not free its slot frees the slot by returning.
func TestAReturnFreesTheSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		ds := r.put(30)
		p := start(t, Config{
			Receiver: r, Concurrency: 3,
			Handle: func(ctx context.Context, d transport.Delivery, _ *Slot) { _ = d.Complete(ctx) },
		})
		p.wantStats(t, Stats{})
		p.end()
		wantSettledOnce(t, ds)
	})
}

func TestFreeAfterTheEndDoesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		r.put(1)
		var kept *Slot
		p := start(t, Config{
			Receiver: r, Concurrency: 3,
			Handle: func(_ context.Context, _ transport.Delivery, slot *Slot) { kept = slot },
		})
		kept.Free()
		if kept.delivery != nil || kept.ctx != nil {
			t.Error("a slot that is kept keeps its message in memory")
		}
		p.wantStats(t, Stats{})
		p.end()
		kept.StopRenewing()
	})
}

func TestASlotIsGrantedInTheOrderOfRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		ds := r.put(8)
		request, end := make(chan struct{}), make(chan struct{})
		var granted list[int64]
		p := start(t, Config{
			Receiver: r, Concurrency: 2,
			Handle: func(ctx context.Context, d transport.Delivery, slot *Slot) {
				slot.Wait()
				<-request
				own, again := make(chan struct{}), make(chan struct{})
				slot.Request(own)
				<-own
				slot.Request(again) // it has a slot
				<-again
				granted.add(slot.Order())
				<-end
				_ = d.Complete(ctx)
			},
		})
		p.wantStats(t, Stats{Settling: 8})
		for i := range 8 {
			request <- struct{}{}
			p.wantStats(t, Stats{Handling: min(i+1, 2), Settling: 8 - min(i+1, 2)})
		}
		r.put(1)
		p.wantStats(t, Stats{Buffered: 1, Handling: 2, Settling: 6})
		for i := range 8 {
			if i < 6 {
				end <- struct{}{}
			}
			synctest.Wait()
		}
		close(request)
		close(end)
		p.wantStats(t, Stats{})
		p.end()
		wantSettledOnce(t, ds)
		if n := len(granted.all()); n != 9 {
			t.Errorf("%d slots were granted, want 9", n)
		}
	})
}

func TestMessagesThatWaitAreBounded(t *testing.T) {
	for _, prefetch := range []bool{false, true} {
		bubble(t, fmt.Sprintf("prefetch=%v", prefetch), func(t *testing.T) {
			r := newReceiver()
			r.put(100)
			end := make(chan struct{})
			p := start(t, Config{
				Receiver: r, Concurrency: 3, Limits: transport.Limits{Prefetch: prefetch},
				Handle: func(_ context.Context, _ transport.Delivery, slot *Slot) {
					slot.Wait()
					<-end
				},
			})
			if s := p.Stats(); s.Settling != 12 || s.Handling != 0 {
				t.Errorf("%d wait and %d are handled, want 12 and 0", s.Settling, s.Handling)
			}
			close(end)
			pass(0)
			p.wantStats(t, Stats{})
			p.end()
			if p.waiting != 0 {
				t.Errorf("%d wait after the end", p.waiting)
			}
		})
	}
}

func TestMessagesAreNumberedAsTheyWereReceived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		ds := r.put(100)
		var mu sync.Mutex
		got := map[transport.Delivery]int64{}
		p := start(t, Config{
			Receiver: r, Concurrency: 7,
			Handle: func(_ context.Context, d transport.Delivery, slot *Slot) {
				mu.Lock()
				got[d] = slot.Order()
				mu.Unlock()
				slot.Free()
			},
		})
		pass(0)
		p.end()
		for i, d := range ds {
			if n := got[d]; n != int64(i+1) {
				t.Errorf("message %d is number %d", i+1, n)
			}
		}
	})
}

func TestWindowCoversHandlersSettlesAndAMargin(t *testing.T) {
	for _, tt := range []struct {
		prefetch bool
		want     []int // for a concurrency of 32, then 1, then 10
	}{
		{true, []int{384, 3, 120}},
		{false, []int{416, 9, 130}},
	} {
		bubble(t, fmt.Sprintf("prefetch=%v", tt.prefetch), func(t *testing.T) {
			r := newReceiver()
			p := start(t, Config{
				Receiver: r, Concurrency: 32, Limits: transport.Limits{Prefetch: tt.prefetch},
				Handle: complete(0),
			})
			p.SetConcurrency(1)
			p.SetConcurrency(1)
			p.SetConcurrency(10)
			p.end()
			p.SetConcurrency(99)
			if diff := cmp.Diff(tt.want, r.windows); diff != "" {
				t.Errorf("windows (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWindowIsGivenBeforeTheFirstReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		r.before = func(int) ([]transport.Delivery, error, bool) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if len(r.windows) == 0 {
				t.Error("Receive was called before Window")
			}
			return nil, nil, false
		}
		start(t, Config{Receiver: r, Concurrency: 3, Handle: complete(0)}).end()
	})
}

// slowWindow is a receiver whose Window takes its time.
type slowWindow struct{ *receiver }

func (s slowWindow) Window(n int) {
	<-time.After(time.Second)
	s.receiver.Window(n)
}

func TestOfWindowsChangedAtOnceTheLastOneWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		p := start(t, Config{
			Receiver: slowWindow{r}, Concurrency: 1, Limits: transport.Limits{Prefetch: true},
			Handle: complete(0),
		})
		pass(2 * time.Second)
		var all sync.WaitGroup
		for n := range 8 {
			all.Go(func() { p.SetConcurrency(10 + n) })
			synctest.Wait()
		}
		all.Wait()
		p.end()
		if got := r.windows[len(r.windows)-1]; got != 17*12 {
			t.Errorf("the last window is %d, want that of the last concurrency, %d", got, 17*12)
		}
	})
}

func TestASlowWindowHoldsUpNothingButTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		r.put(100)
		p := start(t, Config{
			Receiver: slowWindow{r}, Concurrency: 1, Limits: transport.Limits{Prefetch: true},
			StopTimeout: -1, Handle: complete(time.Minute),
		})
		pass(time.Second)
		go p.SetConcurrency(20)
		p.wantStats(t, Stats{Handling: 20})
		p.end()

		p = start(t, Config{Receiver: slowWindow{r}, Concurrency: 1, Handle: complete(0)})
		pass(time.Minute)
		go p.SetConcurrency(20)
		synctest.Wait()
		p.stop()
		if p.ended() {
			t.Error("Run returned while the receiver is given a window")
		}
		<-p.over
	})
}

func TestConcurrencySetBeforeRunCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		r.put(100)
		p := New(Config{Receiver: r, Limits: transport.Limits{Prefetch: true}, Handle: complete(time.Second)})
		p.SetConcurrency(7)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { p.Run(ctx) })
		synctest.Wait()
		if got := p.Stats().Handling; got != 7 {
			t.Errorf("%d handlers, want 7", got)
		}
		if !slices.Equal(r.windows, []int{84}) {
			t.Errorf("windows %v, want only that of Run, 84", r.windows)
		}
		cancel()
		running.Wait()
	})
}

// If the driver prefetches, fewer goroutines settle for many slots.
func TestPrefetchNeedsFewerSettlers(t *testing.T) {
	for _, tt := range []struct {
		concurrency, want int
		prefetch          bool
	}{
		{100, 400, false},
		{8, 32, true},
		{48, 192, true},
		{100, 192, true},
		{200, 200, true},
	} {
		p := New(Config{Concurrency: tt.concurrency, Limits: transport.Limits{Prefetch: tt.prefetch}})
		if got := p.settles(); got != tt.want {
			t.Errorf("%+v: %d may settle", tt, got)
		}
	}
}
