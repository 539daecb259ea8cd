package pump

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// A free slot is regained before a buffered message gets the slot.
func TestRegainComesBeforeBufferedMessages(t *testing.T) {
	for _, concurrency := range []int{1, 2, 3} {
		synctest.Test(t, func(t *testing.T) {
			r := newReceiver()
			ds := r.put(12)
			var mu sync.Mutex
			now, most := 0, 0
			change := func(by int) {
				mu.Lock()
				defer mu.Unlock()
				now += by
				most = max(most, now)
			}
			p := start(t, Config{
				Receiver: r, Concurrency: concurrency,
				Handle: func(ctx context.Context, d transport.Delivery, slot *Slot) {
					change(1)
					<-time.After(time.Second)
					change(-1)
					slot.Free()
					<-time.After(1500 * time.Millisecond)
					if err := slot.Regain(ctx); err != nil {
						t.Error(err)
					}
					change(1)
					<-time.After(time.Second)
					change(-1)
					_ = d.Complete(ctx)
				},
			})
			pass(time.Hour)
			p.end()
			wantSettledOnce(t, ds)
			p.wantStats(t, Stats{})
			if most != concurrency {
				t.Errorf("%d at once, want %d", most, concurrency)
			}
		})
	}
}

// The wait for a slot ends with the stop and with the context.
func TestAWaitForASlotEndsWithTheStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		r.put(2)
		late := errors.New("late")
		var errs []error
		var turn sync.Mutex // the first to be handled waits, the second keeps its slot
		first := true
		p := start(t, Config{
			Receiver: r, Concurrency: 2, StopTimeout: time.Hour,
			Handle: func(ctx context.Context, _ transport.Delivery, slot *Slot) {
				turn.Lock()
				waits := first
				first = false
				turn.Unlock()
				if !waits {
					<-time.After(time.Minute)
					return
				}
				<-time.After(time.Millisecond) // the second has begun
				slot.pump.SetConcurrency(1)
				slot.Free()
				short, cancel := context.WithTimeoutCause(ctx, time.Second, late)
				defer cancel()
				errs = append(errs, slot.Regain(short))
				errs = append(errs, slot.Regain(ctx))
				<-slot.Stopping()
			},
		})
		pass(10 * time.Second)
		p.stop()
		pass(time.Hour)
		p.wantStats(t, Stats{})
		if len(errs) != 2 || !errors.Is(errs[0], late) || !errors.Is(errs[1], ErrStopping) {
			t.Errorf("waiting ended with %v", errs)
		}
	})
}

// A context that ends when a slot is free may not lose it: the message has the slot, and its
// handler runs.
func TestASlotThatCameAtTheLastMomentIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		ds := r.put(200)
		p := start(t, Config{
			Receiver: r, Concurrency: 1,
			Handle: func(ctx context.Context, d transport.Delivery, slot *Slot) {
				slot.Free()
				ended, cancel := context.WithCancel(ctx)
				cancel()
				if err := slot.Regain(ended); err != nil {
					t.Errorf("a slot was free, and waiting for it ended with %v", err)
				}
				if slot.state != handling {
					t.Error("the message has no slot")
				}
				_ = d.Complete(ctx)
			},
		})
		pass(time.Hour)
		p.end()
		wantSettledOnce(t, ds)
		p.wantStats(t, Stats{})
	})
}

func TestTheAgeOfAMessageCountsFromWhenItWasReceived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		r.put(2)
		var ages []time.Duration
		p := start(t, Config{
			Receiver: r, Concurrency: 1,
			Handle: func(ctx context.Context, d transport.Delivery, slot *Slot) {
				ages = append(ages, slot.Age())
				<-time.After(time.Minute)
				_ = d.Complete(ctx)
			},
		})
		pass(time.Hour)
		p.end()
		if len(ages) != 2 || ages[0] != 0 || ages[1] != time.Minute {
			t.Errorf("ages %v, want 0 and a minute", ages)
		}
	})
}

// Messages take all places of a pump when they have its slots, or are all that may settle or wait.
func TestMessagesThatTakeAllPlaces(t *testing.T) {
	for name, tt := range map[string]struct {
		concurrency                         int
		handled, settled, waiting, finished int
		want                                bool
	}{
		"none":                 {concurrency: 1},
		"one of two slots":     {concurrency: 2, handled: 1, finished: 9},
		"all slots":            {concurrency: 2, handled: 2, want: true},
		"the one settles":      {concurrency: 1, settled: 1, want: true},
		"nine settle":          {concurrency: 2, settled: 9},
		"ten settle":           {concurrency: 2, settled: 10, want: true},
		"a slot, nine settle":  {concurrency: 2, handled: 1, settled: 9, want: true},
		"a slot, eight settle": {concurrency: 2, handled: 1, settled: 8},
		"a slot, seven wait":   {concurrency: 2, handled: 1, waiting: 7, want: true},
		"a slot, six wait":     {concurrency: 2, handled: 1, waiting: 6},
	} {
		t.Run(name, func(t *testing.T) {
			p, other := New(Config{Concurrency: tt.concurrency}), New(Config{Concurrency: 1})
			var slots []*Slot
			add := func(n int, of *Pump, state state, waits bool) {
				for range n {
					slots = append(slots, &Slot{pump: of, state: state, waits: waits})
				}
			}
			add(tt.handled, p, handling, false)
			add(tt.settled, p, settling, false)
			add(tt.waiting, p, settling, true)
			add(tt.finished, p, gone, false)
			if len(slots) > 0 {
				add(10, other, handling, false)
			}
			if got := AllTaken(slots); got != tt.want {
				t.Errorf("AllTaken: %v", got)
			}
		})
	}
}
