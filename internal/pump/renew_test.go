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

const lease = 30 * time.Second

var leased = transport.Limits{Lease: lease, FreeRelease: true}

func TestEverythingHeldIsRenewedOnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeaser()
		ds := l.put(10)
		began := time.Now()
		p := start(t, Config{
			Receiver: l, Concurrency: 2, Limits: leased,
			Handle: func(_ context.Context, d transport.Delivery, slot *Slot) {
				if d.(*delivery).n < 2 {
					slot.Free()
				}
				<-time.After(5 * time.Minute)
			},
		})
		p.wantStats(t, Stats{Buffered: 1, Handling: 2, Settling: 2})
		pass(4 * time.Minute)
		for _, d := range ds[:5] {
			last := began
			for i, at := range l.renewed(d) {
				if gap := at.Sub(last); gap < lease/4 || gap > lease/3 {
					t.Errorf("renewal %d of delivery %d came after %v, want between %v and %v",
						i, d.n, gap, lease/4, lease/3)
				}
				last = at
			}
			if rest := time.Since(last); rest > lease/3 {
				t.Errorf("delivery %d was not renewed for %v", d.n, rest)
			}
		}
		p.stop()
		pass(10 * time.Minute)
		if !p.ended() {
			t.Error("Run goes on")
		}
	})
}

func TestWhatFinishedIsNotRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeaser()
		l.put(100)
		p := start(t, Config{Receiver: l, Concurrency: 10, Limits: leased, Handle: complete(time.Second)})
		pass(time.Hour)
		if n := len(l.renewals); n > 0 {
			t.Errorf("%d deliveries were renewed, want none", n)
		}
		p.end()
	})
}

func TestRenewalGoesOnUntilTheLastHandlerIsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeaser()
		ds := l.put(1)
		p := start(t, Config{
			Receiver: l, Concurrency: 1, Limits: leased, StopTimeout: time.Second,
			Handle: func(context.Context, transport.Delivery, *Slot) { <-time.After(10 * time.Minute) },
		})
		p.end()
		if n := len(l.renewed(ds[0])); n < 59 {
			t.Errorf("renewed %d times in the ten minutes after the stop, want about 60", n)
		}
	})
}

func TestOneCallRenewsABoundedNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeaser()
		l.put(250)
		p := start(t, Config{Receiver: l, Concurrency: 250, Limits: leased, Handle: complete(15 * time.Second)})
		pass(12 * time.Second)
		if !slices.Equal(l.sizes, []int{100, 100, 50}) {
			t.Errorf("calls renewed %v, want 100, 100 and 50", l.sizes)
		}
		p.end()
	})
}

// losing fails renewals of some deliveries with ErrLeaseLost.
func losing(lost ...*delivery) func(context.Context, []transport.Delivery) []error {
	return func(_ context.Context, ds []transport.Delivery) []error {
		errs := make([]error, len(ds))
		for i, d := range ds {
			if slices.Contains(lost, d.(*delivery)) {
				errs[i] = transport.ErrLeaseLost
			}
		}
		return errs
	}
}

// causes handles until ctx ends and notes why.
func causes(why *list[error]) func(context.Context, transport.Delivery, *Slot) {
	return func(ctx context.Context, _ transport.Delivery, _ *Slot) {
		<-ctx.Done()
		why.add(context.Cause(ctx))
	}
}

func TestALostLeaseCancelsItsHandlerOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var why list[error]
		l := newLeaser()
		ds := l.put(5)
		l.renew = losing(ds[2])
		p := start(t, Config{
			Receiver: l, Concurrency: 5, Limits: leased, Handle: causes(&why),
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		pass(5 * time.Minute)
		if got := why.all(); len(got) != 1 || !errors.Is(got[0], transport.ErrLeaseLost) {
			t.Errorf("causes %v, want only that of the lost one, %v", got, transport.ErrLeaseLost)
		}
		p.wantStats(t, Stats{Handling: 4})
		p.end()
		if n := strings.Count(log.String(), "leases lost"); n != 1 {
			t.Errorf("%d lines about lost leases, want 1:\n%s", n, &log)
		}
	})
}

// A handler that goes on after its lease was lost keeps its slot, and the lease is not
// renewed.
func TestALostHandlerKeepsItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeaser()
		ds := l.put(1)
		l.renew = losing(ds...)
		p := start(t, Config{
			Receiver: l, Concurrency: 1, Limits: leased,
			Handle: func(context.Context, transport.Delivery, *Slot) { <-time.After(time.Hour) },
		})
		pass(30 * time.Minute)
		p.wantStats(t, Stats{Handling: 1})
		if n := len(l.renewed(ds[0])); n != 1 {
			t.Errorf("renewed %d times, want once", n)
		}
		p.end()
	})
}

func TestABufferedDeliveryThatIsLostNeverStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var handled list[int]
		l := newLeaser()
		ds := l.put(6)
		l.renew = losing(ds[4])
		p := start(t, Config{
			Receiver: l, Concurrency: 4, Limits: leased,
			Handle: func(_ context.Context, d transport.Delivery, _ *Slot) {
				handled.add(d.(*delivery).n)
				<-time.After(time.Minute)
			},
		})
		p.wantStats(t, Stats{Handling: 4, Buffered: 2})
		pass(15 * time.Second)
		p.wantStats(t, Stats{Handling: 4, Buffered: 1})
		pass(5 * time.Minute)
		p.end()
		got := handled.all()
		slices.Sort(got)
		if !slices.Equal(got, []int{0, 1, 2, 3, 5}) {
			t.Errorf("handled %v, want all but 4", got)
		}
		if n := ds[4].released.Load(); n != 1 {
			t.Errorf("the driver was told %d times that the message is given up, want once", n)
		}
	})
}

func TestARenewalThatCouldNotBeToldIsTriedAgainSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var away atomic.Bool
		away.Store(true)
		l := newLeaser()
		ds := l.put(1)
		l.renew = func(_ context.Context, ds []transport.Delivery) []error {
			if away.Load() {
				return []error{errAway}
			}
			return make([]error, len(ds))
		}
		p := start(t, Config{
			Receiver: l, Concurrency: 1, Limits: leased, Handle: complete(2 * time.Minute),
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		pass(20 * time.Second)
		away.Store(false)
		tries := len(l.renewed(ds[0]))
		if tries < 4 || tries > 12 {
			t.Errorf("tried %d times within ten seconds, want between 4 and 12", tries)
		}
		pass(10 * time.Second)
		away.Store(true)
		pass(time.Until(l.renewed(ds[0])[len(l.renewed(ds[0]))-1].Add(lease / 3)))
		again := len(l.renewed(ds[0]))
		pass(lease / 60)
		if n := len(l.renewed(ds[0])); n <= again {
			t.Errorf("the second outage was not met with quick attempts")
		}
		away.Store(false)
		pass(3 * time.Minute)
		p.end()
		wantSettledOnce(t, ds)
		for _, line := range []string{"renewing leases fails", "renewing leases works again"} {
			if n := strings.Count(log.String(), line); n != 2 {
				t.Errorf("%d lines %q, want one for each of 2 outages:\n%s", n, line, &log)
			}
		}
	})
}

func TestALeaseNotRenewedForItsWholeLengthIsLost(t *testing.T) {
	hang := func(ctx context.Context, ds []transport.Delivery) []error {
		<-ctx.Done()
		return slices.Repeat([]error{ctx.Err()}, len(ds))
	}
	fail := func(_ context.Context, ds []transport.Delivery) []error {
		return slices.Repeat([]error{errAway}, len(ds))
	}
	for _, tt := range []struct {
		name  string
		renew func(context.Context, []transport.Delivery) []error
	}{
		{"renewals fail", fail},
		{"renewals hang", hang},
		{"the driver gives no results", func(context.Context, []transport.Delivery) []error { return nil }},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			var why list[error]
			l := newLeaser()
			l.put(300)
			l.renew = tt.renew
			began := time.Now()
			var ended list[time.Duration]
			p := start(t, Config{
				Receiver: l, Concurrency: 250, Limits: leased,
				Handle: func(ctx context.Context, d transport.Delivery, slot *Slot) {
					causes(&why)(ctx, d, slot)
					ended.add(time.Since(began))
				},
			})
			pass(lease)
			for i, err := range why.all() {
				if at := ended.all()[i]; !errors.Is(err, transport.ErrLeaseLost) || at != lease {
					t.Fatalf("handler ended by %v after %v, want %v after %v", err, at, transport.ErrLeaseLost, lease)
				}
			}
			if n := len(why.all()); n != 250 {
				t.Errorf("%d handlers ended, want 250", n)
			}
			p.wantStats(t, Stats{})
			p.end()
		})
	}
}

func TestSuccessfulRenewalCountsFromWhenItWasAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var why list[error]
		first := true
		l := newLeaser()
		l.put(1)
		l.renew = func(_ context.Context, ds []transport.Delivery) []error {
			if !first {
				return []error{errAway}
			}
			first = false
			<-time.After(5 * time.Second)
			return make([]error, len(ds))
		}
		began := time.Now()
		ended := make(chan time.Duration, 1)
		p := start(t, Config{
			Receiver: l, Concurrency: 1, Limits: leased,
			Handle: func(ctx context.Context, d transport.Delivery, slot *Slot) {
				causes(&why)(ctx, d, slot)
				ended <- time.Since(began)
			},
		})
		if got, want := <-ended, lease/3+lease; got != want {
			t.Errorf("lost after %v, want %v", got, want)
		}
		p.end()
	})
}

func TestADeliverySettledDuringItsRenewalIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		l := newLeaser()
		ds := l.put(1)
		l.renew = func(_ context.Context, ds []transport.Delivery) []error {
			<-time.After(2 * time.Second)
			return slices.Repeat([]error{transport.ErrLeaseLost}, len(ds))
		}
		p := start(t, Config{
			Receiver: l, Concurrency: 1, Limits: leased, Handle: complete(11 * time.Second),
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		pass(time.Minute)
		p.end()
		wantSettledOnce(t, ds)
		if len(l.renewed(ds[0])) != 1 {
			t.Error("the delivery was not being renewed when it settled")
		}
		if log.Len() > 0 {
			t.Errorf("logged something:\n%s", &log)
		}
	})
}

func TestADeliverySettledBeforeItIsHandledIsNotRenewed(t *testing.T) {
	for _, inFlight := range []bool{false, true} {
		bubble(t, fmt.Sprintf("in flight=%v", inFlight), func(t *testing.T) {
			var cut atomic.Bool
			l := newLeaser()
			ds := l.put(1)
			l.renew = func(_ context.Context, ds []transport.Delivery) []error {
				<-time.After(2 * time.Second)
				return slices.Repeat([]error{transport.ErrLeaseLost}, len(ds))
			}
			p := start(t, Config{
				Receiver: l, Concurrency: 1, Limits: leased, StopTimeout: -1,
				Handle: func(ctx context.Context, d transport.Delivery, slot *Slot) {
					if inFlight {
						<-time.After(lease/3 + time.Second)
					}
					slot.StopRenewing()
					_ = d.Complete(ctx)
					<-time.After(time.Hour)
					cut.Store(ctx.Err() != nil)
					slot.StopRenewing()
				},
			})
			pass(time.Minute)
			p.end()
			if renewed := len(l.renewed(ds[0])) > 0; cut.Load() || renewed != inFlight {
				t.Errorf("renewed: %v, want %v; context cancelled: %v, want false", renewed, inFlight, cut.Load())
			}
		})
	}
}

func TestALeaseLostWhileSettlingCancelsQuietly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var why list[error]
		l := newLeaser()
		l.renew = losing(l.put(1)...)
		p := start(t, Config{
			Receiver: l, Concurrency: 2, Limits: leased,
			Handle: func(ctx context.Context, d transport.Delivery, slot *Slot) {
				slot.Free()
				causes(&why)(ctx, d, slot)
			},
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		pass(time.Minute)
		p.end()
		if got := why.all(); len(got) != 1 || !errors.Is(got[0], transport.ErrLeaseLost) {
			t.Errorf("causes %v, want %v", got, transport.ErrLeaseLost)
		}
		if log.Len() > 0 {
			t.Errorf("logged something, but the settle will tell:\n%s", &log)
		}
	})
}

func TestWithoutLeasesThereIsNoContextPerMessage(t *testing.T) {
	for _, tt := range []struct {
		name string
		r    transport.Receiver
		own  bool
	}{
		{"no renewer", newReceiver(), false},
		{"leases", newLeaser(), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := New(Config{Receiver: tt.r, Limits: leased})
			ss := p.slots(t.Context(), []transport.Delivery{&delivery{}})
			if own := ss[0].cancel != nil; own != tt.own {
				t.Errorf("a context of its own: %v, want %v", own, tt.own)
			}
			ss[0].end(nil)
		})
	}
}

func TestRunEndsARenewalThatHangsWhenNobodyNeedsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		l := newLeaser()
		ds := l.put(1)
		l.renew = func(ctx context.Context, ds []transport.Delivery) []error {
			<-ctx.Done()
			return slices.Repeat([]error{ctx.Err()}, len(ds))
		}
		p := start(t, Config{
			Receiver: l, Concurrency: 1, Limits: leased, Handle: complete(11 * time.Second),
			Logger: slog.New(slog.NewTextHandler(&log, nil)), StopTimeout: time.Minute,
		})
		pass(10500 * time.Millisecond)
		p.stop()
		pass(500 * time.Millisecond)
		if !p.ended() {
			t.Error("Run waits for a renewal that is not needed")
		}
		wantSettledOnce(t, ds)
		if log.Len() > 0 {
			t.Errorf("logged something:\n%s", &log)
		}
	})
}

func TestRunWaitsForARenewalThatIgnoresItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var returned atomic.Bool
		l := newLeaser()
		l.put(1)
		l.renew = func(_ context.Context, ds []transport.Delivery) []error {
			<-time.After(5 * time.Second)
			returned.Store(true)
			return make([]error, len(ds))
		}
		p := start(t, Config{
			Receiver: l, Concurrency: 1, Limits: leased, Handle: complete(11 * time.Second),
			StopTimeout: time.Minute,
		})
		pass(10500 * time.Millisecond)
		p.end()
		if !returned.Load() {
			t.Error("Run returned before its renewal")
		}
	})
}

func TestLeasesThatAreDueSoonShareACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLeaser()
		p := start(t, Config{Receiver: l, Concurrency: 10, Limits: leased, Handle: complete(time.Hour), StopTimeout: -1})
		for range 3 {
			l.put(1)
			pass(time.Second)
		}
		pass(9 * time.Second)
		if !slices.Equal(l.sizes, []int{3}) {
			t.Errorf("calls renewed %v, want one that renewed 3", l.sizes)
		}
		p.end()
	})
}

func TestErrNoAnswerIsNoLostLease(t *testing.T) {
	if errors.Is(errNoAnswer, transport.ErrLeaseLost) {
		t.Error("a missing answer counts as a lost lease")
	}
}
