package pump

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

func TestStopWhileIdleIsImmediate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		p := start(t, Config{
			Receiver: r, Concurrency: 4, StopTimeout: time.Hour, Handle: complete(0),
			Limits: transport.Limits{ParallelReceive: 3},
		})
		began := time.Now()
		p.end()
		if took := time.Since(began); took != 0 {
			t.Errorf("took %v, want nothing", took)
		}
	})
}

func TestStopDuringAnOutageIsImmediate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		r.before = func(int) ([]transport.Delivery, error, bool) { return nil, errAway, true }
		p := start(t, Config{Receiver: r, Concurrency: 4, StopTimeout: time.Hour, Handle: complete(0)})
		pass(time.Minute)
		began := time.Now()
		p.end()
		if took := time.Since(began); took != 0 {
			t.Errorf("took %v, want nothing", took)
		}
	})
}

func TestStopEndsReceivingAndWaitsForHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		ds := r.put(10)
		p := start(t, Config{
			Receiver: r, Concurrency: 4, StopTimeout: time.Hour,
			Limits: transport.Limits{Prefetch: true}, Handle: complete(time.Minute),
		})
		p.stop()
		p.wantStats(t, Stats{Handling: 4})
		pass(59 * time.Second)
		if p.ended() {
			t.Fatal("Run returned before its handlers")
		}
		pass(time.Second)
		if !p.ended() {
			t.Error("Run goes on after its handlers")
		}
		wantSettledOnce(t, ds[:4])
		if got := r.left(); got != 6 {
			t.Errorf("%d messages left in the queue, want 6", got)
		}
	})
}

func TestStopWaitsForAReceiveAndKeepsWhatItReturns(t *testing.T) {
	for _, free := range []bool{true, false} {
		bubble(t, fmt.Sprintf("free=%v", free), func(t *testing.T) {
			d := new(delivery)
			r := newReceiver()
			p := start(t, Config{
				Receiver: r, Concurrency: 4, StopTimeout: time.Hour, Handle: complete(0),
				Limits: transport.Limits{FreeRelease: free},
			})
			r.onEnd = func() []transport.Delivery {
				<-time.After(time.Second)
				return []transport.Delivery{d}
			}
			p.stop()
			if p.ended() {
				t.Fatal("Run returned before its Receive")
			}
			<-p.over
			wantSettledOnce(t, []*delivery{d})
			if released := d.released.Load() == 1; released != free {
				t.Errorf("released: %v, want %v", released, free)
			}
		})
	}
}

func TestStopGivesBackTheBufferWhereThatIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		ds := r.put(6)
		p := start(t, Config{
			Receiver: r, Concurrency: 4, StopTimeout: time.Hour,
			Limits: transport.Limits{FreeRelease: true}, Handle: complete(time.Minute),
		})
		p.wantStats(t, Stats{Handling: 4, Buffered: 2})
		p.stop()
		p.wantStats(t, Stats{Handling: 4})
		for _, d := range ds[4:] {
			if d.released.Load() != 1 {
				t.Errorf("buffered delivery %d was not released at once", d.n)
			}
		}
		<-p.over
		wantSettledOnce(t, ds)
	})
}

func TestStopHandlesTheBufferWhereReleaseCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		ds := r.put(6)
		p := start(t, Config{Receiver: r, Concurrency: 4, StopTimeout: time.Hour, Handle: complete(time.Minute)})
		p.stop()
		pass(time.Minute)
		p.wantStats(t, Stats{Handling: 2})
		<-p.over
		for _, d := range ds {
			if d.completed.Load() != 1 {
				t.Errorf("delivery %d was not handled", d.n)
			}
		}
	})
}

func TestHandlersAreCutWhenStopTimeoutIsOver(t *testing.T) {
	for _, l := range []bool{true, false} {
		for _, timeout := range []time.Duration{0, time.Minute} {
			bubble(t, fmt.Sprintf("leases=%v/%v", l, timeout), func(t *testing.T) {
				var why list[error]
				cfg := Config{Concurrency: 3, StopTimeout: timeout, Handle: causes(&why)}
				if l {
					r := newLeaser()
					r.put(3)
					cfg.Receiver, cfg.Limits = r, leased
				} else {
					r := newReceiver()
					r.put(3)
					cfg.Receiver = r
				}
				p := start(t, cfg)
				pass(time.Second)
				began := time.Now()
				p.end()
				if took := time.Since(began); took != timeout {
					t.Errorf("stopping took %v, want %v", took, timeout)
				}
				for _, err := range why.all() {
					if !errors.Is(err, ErrStopping) {
						t.Errorf("cause %v, want %v", err, ErrStopping)
					}
				}
				if n := len(why.all()); n != 3 {
					t.Errorf("%d handlers were cut, want 3", n)
				}
			})
		}
	}
}

func TestANegativeStopTimeoutIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cut atomic.Bool
		r := newReceiver()
		r.put(1)
		p := start(t, Config{
			Receiver: r, Concurrency: 3, StopTimeout: -1,
			Handle: func(ctx context.Context, _ transport.Delivery, _ *Slot) {
				<-time.After(24 * time.Hour)
				cut.Store(ctx.Err() != nil)
			},
		})
		p.end()
		if cut.Load() {
			t.Error("a handler was cut")
		}
	})
}

func TestRunWaitsForHandlersThatIgnoreTheCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		ds := r.put(3)
		p := start(t, Config{Receiver: r, Concurrency: 3, StopTimeout: time.Second, Handle: complete(time.Hour)})
		began := time.Now()
		p.end()
		if took := time.Since(began); took != time.Hour {
			t.Errorf("Run returned after %v, want an hour", took)
		}
		wantSettledOnce(t, ds)
	})
}

func TestRunWaitsForSettles(t *testing.T) {
	for _, c := range []int{1, 3} {
		bubble(t, fmt.Sprint(c), func(t *testing.T) {
			r := newReceiver()
			r.put(1)
			p := start(t, Config{
				Receiver: r, Concurrency: c, StopTimeout: 0,
				Handle: func(_ context.Context, _ transport.Delivery, slot *Slot) {
					slot.Free()
					<-time.After(time.Minute)
				},
			})
			began := time.Now()
			p.end()
			if took := time.Since(began); took != time.Minute {
				t.Errorf("Run returned after %v, want a minute", took)
			}
		})
	}
}

func TestWhatHasNotStartedByTheCutIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var why list[error]
		r := newReceiver()
		ds := r.put(6)
		p := start(t, Config{Receiver: r, Concurrency: 4, StopTimeout: time.Minute, Handle: causes(&why)})
		p.stop()
		p.wantStats(t, Stats{Handling: 4, Buffered: 2})
		<-p.over
		if n := len(why.all()); n != 4 {
			t.Errorf("%d handlers saw the cut, want the 4 that had started", n)
		}
		for _, d := range ds[4:] {
			if d.released.Load() != 1 {
				t.Errorf("delivery %d was not released", d.n)
			}
		}
	})
}

func TestNothingStartsInTheSecondHalfOfStopTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		ds := r.put(6)
		p := start(t, Config{Receiver: r, Concurrency: 4, StopTimeout: time.Minute, Handle: complete(31 * time.Second)})
		p.stop()
		<-p.over
		wantSettledOnce(t, ds)
		for i, d := range ds {
			if handled := d.completed.Load() == 1; handled != (i < 4) {
				t.Errorf("delivery %d was handled: %v", i, handled)
			}
		}
	})
}

// prefetcher is a receiver that has prefetched the rest of its queue.
type prefetcher struct{ *receiver }

func (r prefetcher) Drain(_ context.Context, limit int) []transport.Delivery {
	ds, _ := r.take(limit)
	return ds
}

// If a release counts as an attempt, a stop handles the messages that the driver has
// prefetched.
func TestStopHandlesPrefetchedMessages(t *testing.T) {
	for _, tt := range []struct {
		name    string
		limits  transport.Limits
		limited bool
		serial  bool
		timeout time.Duration
		handled int
	}{
		{"counts", transport.Limits{Prefetch: true}, false, false, time.Hour, 10},
		{"is free", transport.Limits{Prefetch: true, FreeRelease: true}, false, false, time.Hour, 4},
		{"one at a time for the moment", transport.Limits{Prefetch: true}, true, false, time.Hour, 4},
		{"one at a time for ever", transport.Limits{Prefetch: true}, false, true, time.Hour, 10},
		{"time for a second round", transport.Limits{Prefetch: true}, false, false, 3 * time.Minute, 8},
		{"no time", transport.Limits{Prefetch: true}, false, false, time.Minute, 4},
		{"none at all", transport.Limits{Prefetch: true}, false, false, 0, 4},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			r := prefetcher{newReceiver()}
			ds := r.put(10)
			p := start(t, Config{
				Receiver: r, Concurrency: 4, Serial: tt.serial, Limits: tt.limits,
				StopTimeout: tt.timeout, Handle: complete(time.Minute),
			})
			pass(time.Second)
			if tt.limited {
				p.set(1, true)
			}
			p.stop()
			<-p.over
			handled, back := 0, r.left()
			for _, d := range ds {
				handled += int(d.completed.Load())
				back += int(d.released.Load())
			}
			if handled != tt.handled || handled+back != len(ds) {
				t.Errorf("%d handled and %d released, want %d and the others", handled, back, tt.handled)
			}
		})
	}
}

// Prefetched messages are handled after the messages that Receive returned.
func TestPrefetchedMessagesComeAfterReceivedOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order list[int]
		r := prefetcher{newReceiver()}
		p := start(t, Config{
			Receiver: r, Concurrency: 1, StopTimeout: time.Hour, Limits: transport.Limits{Prefetch: true},
			Handle: func(_ context.Context, d transport.Delivery, _ *Slot) { order.add(d.(*delivery).n) },
		})
		r.onEnd = func() []transport.Delivery {
			r.put(3)
			ds, _ := r.take(1)
			<-time.After(time.Second)
			return ds
		}
		p.end()
		if got := order.all(); !slices.Equal(got, []int{0, 1, 2}) {
			t.Errorf("handled in the order %v", got)
		}
	})
}

// silent is a prefetcher whose broker does not answer.
type silent struct{ prefetcher }

func (r silent) Drain(ctx context.Context, limit int) []transport.Delivery {
	<-ctx.Done()
	return r.prefetcher.Drain(ctx, limit)
}

// The pump waits for a driver no longer than prefetched messages can be begun.
func TestADrainEndsWhenNothingCanBegin(t *testing.T) {
	for timeout, most := range map[time.Duration]time.Duration{0: 0, 2 * time.Second: time.Second, time.Hour: releaseTimeout, -1: releaseTimeout} {
		bubble(t, fmt.Sprint(timeout), func(t *testing.T) {
			p := start(t, Config{
				Receiver: silent{prefetcher{newReceiver()}}, Concurrency: 4, StopTimeout: timeout,
				Limits: transport.Limits{Prefetch: true}, Handle: complete(0),
			})
			began := time.Now()
			p.end()
			if took := time.Since(began); took != most {
				t.Errorf("the stop took %v, want %v", took, most)
			}
		})
	}
}

func TestNothingIsBegunOfWhatADriverHasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := prefetcher{newReceiver()}
		ds := r.put(10)
		p := start(t, Config{
			Receiver: r, Concurrency: 2, StopTimeout: time.Hour,
			Limits: transport.Limits{Prefetch: true}, Handle: complete(time.Minute),
		})
		p.stop()
		pass(90 * time.Second) // the second two are handled
		r.take(r.left())       // by the loss of the connection
		<-p.over
		for i, d := range ds {
			if handled := d.completed.Load() == 1; handled != (i < 4) {
				t.Errorf("delivery %d was handled: %v", i, handled)
			}
		}
	})
}

func TestADriverKeepsWhatItHoldsWhereNothingMayBegin(t *testing.T) {
	for _, tt := range []struct {
		name    string
		timeout time.Duration
		resumes bool
		left    int
	}{
		{"no time", 0, false, 3},
		{"at rest, until it is over", time.Hour, true, 0},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			r := prefetcher{newReceiver()}
			r.onEnd = func() []transport.Delivery {
				r.put(3)
				return nil
			}
			p := start(t, Config{
				Receiver: r, Concurrency: 4, StopTimeout: tt.timeout, Limits: transport.Limits{Prefetch: true}, Handle: complete(0),
			})
			if tt.resumes {
				if err := p.Quiesce(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			p.stop()
			synctest.Wait()
			if got := r.left(); got != 3 {
				t.Errorf("the driver holds %d messages, want 3", got)
			}
			if tt.resumes {
				p.Resume()
			}
			<-p.over
			if got := r.left(); got != tt.left {
				t.Errorf("the driver holds %d messages at the end, want %d", got, tt.left)
			}
		})
	}
}

func TestReleaseIsBoundedAndItsFailureLogged(t *testing.T) {
	for _, tt := range []struct {
		name    string
		release func(context.Context) error
		takes   time.Duration
		lines   int
	}{
		{"hangs", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, releaseTimeout, 1},
		{"fails", func(context.Context) error { return errAway }, 0, 1},
		{"is too late", func(context.Context) error { return fmt.Errorf("release: %w", transport.ErrLeaseLost) }, 0, 0},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			var log bytes.Buffer
			r := newReceiver()
			for _, d := range r.put(6) {
				d.release = tt.release
			}
			p := start(t, Config{
				Receiver: r, Concurrency: 4, Handle: causes(new(list[error])),
				Limits: transport.Limits{FreeRelease: true},
				Logger: slog.New(slog.NewTextHandler(&log, nil)),
			})
			began := time.Now()
			p.end()
			if took := time.Since(began); took != tt.takes {
				t.Errorf("Run returned after %v, want %v", took, tt.takes)
			}
			if n := strings.Count(log.String(), "not started"); n != tt.lines {
				t.Errorf("%d lines about it, want %d:\n%s", n, tt.lines, &log)
			}
		})
	}
}

func TestConcurrencyRaisedDuringStopSpeedsUpTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		ds := r.put(15)
		p := start(t, Config{Receiver: r, Concurrency: 10, StopTimeout: -1, Handle: complete(time.Minute)})
		p.wantStats(t, Stats{Handling: 10, Buffered: 5})
		p.stop()
		synctest.Wait()
		windows := len(r.windows)
		p.SetConcurrency(15)
		p.wantStats(t, Stats{Handling: 15})
		p.end()
		wantSettledOnce(t, ds)
		if len(r.windows) != windows {
			t.Error("a stopping receiver was given a window")
		}
	})
}

func TestConcurrencyLoweredDuringStopLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		ds := r.put(15)
		p := start(t, Config{Receiver: r, Concurrency: 10, StopTimeout: -1, Handle: complete(time.Minute)})
		p.stop()
		p.SetConcurrency(1)
		p.end()
		wantSettledOnce(t, ds)
		p.SetConcurrency(5)
		p.wantStats(t, Stats{})
	})
}

func TestRunOnAnEndedContextReturnsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		ds := r.put(5)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		p := New(Config{
			Receiver: r, Concurrency: 2, Handle: complete(0), StopTimeout: -1,
			Limits: transport.Limits{FreeRelease: true},
		})
		p.Run(ctx)
		if r.left() != len(ds) || len(r.windows) > 0 {
			t.Errorf("%d messages are left, and windows given: %v", r.left(), r.windows)
		}
	})
}

func TestWorkKeepsTheValuesOfRunsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		r := newReceiver()
		r.put(1)
		got := make(chan any, 1)
		p := New(Config{Receiver: r, Handle: func(ctx context.Context, _ transport.Delivery, _ *Slot) {
			got <- ctx.Value(key{})
		}})
		ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, "trace"))
		defer cancel(nil)
		go func() {
			if v := <-got; v != "trace" {
				t.Errorf("value %v, want that of Run's context", v)
			}
			cancel(errors.New("enough"))
		}()
		p.Run(ctx)
	})
}
