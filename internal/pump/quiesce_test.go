package pump

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/transport"
)

// Quiesce waits for handlers and settlements, and starts no handler.
func TestQuiesceWaitsAndStartsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		ds := r.put(6)
		p := start(t, Config{
			Receiver: r, Concurrency: 2, Limits: transport.Limits{FreeRelease: true},
			Handle: func(ctx context.Context, d transport.Delivery, slot *Slot) {
				<-time.After(time.Second)
				slot.Free()
				<-time.After(time.Second)
				_ = d.Complete(ctx)
			},
		})
		began := time.Now()
		if err := p.Quiesce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("Quiesce returned after %v, want the 2 s until the first two are settled", took)
		}
		held := p.Stats()
		r.put(10)
		pass(time.Hour)
		p.wantStats(t, held)
		if got := r.left(); got < 10 {
			t.Errorf("%d are left in the queue: something was received meanwhile", got)
		}
		p.Resume()
		pass(time.Minute)
		p.end()
		wantSettledOnce(t, ds)
		p.wantStats(t, Stats{})
	})
}

func TestResumeStartsWhatIsBuffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		r.put(2)
		p := start(t, Config{Receiver: r, Concurrency: 1, Handle: complete(time.Minute)})
		if err := p.Quiesce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := r.left(); n > 0 {
			t.Fatalf("%d messages are not received, and would start the others", n)
		}
		p.wantStats(t, Stats{Buffered: 1})
		p.Resume()
		synctest.Wait()
		p.wantStats(t, Stats{Handling: 1})
		p.end()
	})
}

func TestAPumpMayBeginAtRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		ds := r.put(3)
		p := New(Config{Receiver: r, Concurrency: 2, Handle: complete(0)})
		if err := p.Quiesce(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		go p.Run(ctx)
		pass(time.Minute)
		if got := r.left(); got != 3 {
			t.Errorf("%d of 3 are left before Resume", got)
		}
		p.Resume()
		pass(time.Minute)
		stop()
		synctest.Wait()
		wantSettledOnce(t, ds)
	})
}

func TestQuiesceGivesUpWaitingWithItsContextAndRestsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		r.put(4)
		p := start(t, Config{Receiver: r, Concurrency: 1, Handle: complete(time.Minute)})
		late := errors.New("late")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, late)
		defer cancel()
		if err := p.Quiesce(ctx); !errors.Is(err, late) {
			t.Errorf("Quiesce returned %v, want %v", err, late)
		}
		pass(time.Hour)
		if s := p.Stats(); s.Handling > 0 || s.Buffered == 0 {
			t.Errorf("stats %+v: something has started", s)
		}
		p.Resume()
		pass(time.Hour)
		p.end()
		p.wantStats(t, Stats{})
	})
}

func TestLeasesAreRenewedWhileThePumpRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeaser()
		ds := l.put(3)
		p := start(t, Config{
			Receiver: l, Concurrency: 1, Limits: transport.Limits{Lease: 3 * time.Second, FreeRelease: true},
			Handle: complete(time.Second),
		})
		if err := p.Quiesce(t.Context()); err != nil {
			t.Fatal(err)
		}
		waiting := ds[1]
		before := len(l.renewed(waiting))
		pass(time.Minute)
		if got := len(l.renewed(waiting)) - before; got < 50 {
			t.Errorf("a buffered lease of 3 s was renewed %d times in a minute", got)
		}
		p.Resume()
		pass(time.Minute)
		p.end()
		wantSettledOnce(t, ds)
	})
}

func TestAStopWhileThePumpRests(t *testing.T) {
	for _, free := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			r := newReceiver()
			ds := r.put(2)
			p := start(t, Config{
				Receiver: r, Concurrency: 1, Limits: transport.Limits{FreeRelease: free},
				Handle: complete(time.Second), StopTimeout: time.Minute,
			})
			if err := p.Quiesce(t.Context()); err != nil {
				t.Fatal(err)
			}
			p.stop()
			if got := p.ended(); got != free {
				t.Errorf("with free releases %v, the stop is over before Resume: %v", free, got)
			}
			p.Resume()
			<-p.over
			wantSettledOnce(t, ds)
		})
	}
}

func TestSerialTakesOneMessageOnlyWhenTheLastIsSettled(t *testing.T) {
	for _, prefetch := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			r := newReceiver()
			ds := r.put(5)
			p := start(t, Config{
				Receiver: r, Serial: true, Concurrency: 16, Limits: transport.Limits{Prefetch: prefetch, ParallelReceive: 4},
				Handle: func(ctx context.Context, d transport.Delivery, slot *Slot) {
					slot.Free()
					<-time.After(time.Second)
					_ = d.Complete(ctx)
				},
			})
			for n := range ds {
				p.wantStats(t, Stats{Settling: 1})
				if got := r.left(); got != len(ds)-1-n {
					t.Errorf("%d are left while message %d settles", got, n)
				}
				pass(time.Second)
			}
			p.end()
			wantSettledOnce(t, ds)
			if diff := cmp.Diff([]int{1}, r.windows); diff != "" {
				t.Errorf("windows (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSerialForATimeReceivesNothingAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		ds := r.put(12)
		p := start(t, Config{Receiver: r, Concurrency: 2, Limits: transport.Limits{Prefetch: true}, Handle: complete(time.Second)})
		p.wantStats(t, Stats{Handling: 2})
		p.set(1, true)
		for range 4 {
			pass(time.Second)
			p.wantStats(t, Stats{Handling: 1})
		}
		p.SetConcurrency(2)
		synctest.Wait()
		p.wantStats(t, Stats{Handling: 2})
		pass(time.Minute)
		p.end()
		wantSettledOnce(t, ds)
		if diff := cmp.Diff([]int{24, 1, 24}, r.windows); diff != "" {
			t.Errorf("windows (-want +got):\n%s", diff)
		}
	})
}
