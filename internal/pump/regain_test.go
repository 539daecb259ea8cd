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
