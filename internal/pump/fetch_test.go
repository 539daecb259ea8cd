package pump

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/transport"
)

var errAway = errors.New("the broker is away")

func TestFirstReceiveAsksForTheSlotsAndASmallBuffer(t *testing.T) {
	for _, tt := range []struct {
		name   string
		c      int
		limits transport.Limits
		want   int
	}{
		{"buffered", 32, transport.Limits{}, 48},
		{"buffered, one at a time", 1, transport.Limits{}, 2},
		{"prefetched", 32, transport.Limits{Prefetch: true}, 32},
		{"prefetched, one at a time", 1, transport.Limits{Prefetch: true}, 2},
		{"bounded by the broker", 32, transport.Limits{MaxReceive: 10}, 10},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			r := newReceiver()
			start(t, Config{Receiver: r, Concurrency: tt.c, Limits: tt.limits, Handle: complete(0)}).end()
			if diff := cmp.Diff([]int{tt.want}, r.limits); diff != "" {
				t.Errorf("limits (-want +got):\n%s", diff)
			}
		})
	}
}

func TestBufferGrowsUntilFastHandlersAreFed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const c, n = 8, 8000
		r := newReceiver()
		r.trip = 3 * time.Millisecond
		r.put(n)
		p := start(t, Config{Receiver: r, Concurrency: c, Handle: complete(time.Millisecond)})
		began := time.Now()
		for r.left() > 0 {
			pass(time.Millisecond)
		}
		ideal := n / c * time.Millisecond
		if took := time.Since(began); took > ideal*11/10 {
			t.Errorf("took %v, want at most a tenth more than %v: the handlers starved", took, ideal)
		}
		p.end()
		if got := slices.Max(r.limits); got > c+buffersPerSlot*c {
			t.Errorf("asked for %d at once, want no more than slots and buffer hold", got)
		}
	})
}

func TestBufferIsBoundedHoweverGreatTheDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const c = 8
		r := newReceiver()
		r.trip = 100 * time.Millisecond
		r.put(10000)
		p := start(t, Config{Receiver: r, Concurrency: c, Handle: complete(time.Millisecond)})
		pass(10 * time.Second)
		p.mu.Lock()
		ahead := p.ahead()
		p.mu.Unlock()
		if ahead != buffersPerSlot*c {
			t.Errorf("%d are kept ahead, want no more and no less than %d", ahead, buffersPerSlot*c)
		}
		p.end()
	})
}

func TestBufferStaysSmallWithSlowHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const c = 8
		r := newReceiver()
		r.trip = 5 * time.Millisecond
		r.put(1000)
		p := start(t, Config{Receiver: r, Concurrency: c, Handle: complete(time.Second)})
		for range 500 {
			pass(37 * time.Millisecond)
			if got := p.Stats().Buffered; got > c/2 {
				t.Errorf("%d are buffered, want at most %d", got, c/2)
				break
			}
		}
		p.end()
	})
}

func TestWaitingForMessagesIsNotTakenForDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const c = 8
		r := newReceiver()
		r.trip = 5 * time.Millisecond
		p := start(t, Config{Receiver: r, Concurrency: c, Handle: complete(time.Second / 2)})
		for range 100 { // a trickle that the handlers keep up with, and that fills no request
			r.put(c / 2)
			pass(time.Second)
		}
		r.put(1000)
		pass(100 * time.Millisecond)
		if got := p.Stats().Buffered; got > c/2 {
			t.Errorf("%d are buffered for slow handlers, want at most %d", got, c/2)
		}
		p.end()
	})
}

func TestBufferShrinksWhenHandlersBecomeSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const c = 8
		var slow atomic.Bool
		r := newReceiver()
		r.trip = 5 * time.Millisecond
		r.put(5000)
		p := start(t, Config{
			Receiver: r, Concurrency: c,
			Handle: func(context.Context, transport.Delivery, *Slot) {
				if slow.Load() {
					<-time.After(10 * time.Second)
				} else {
					<-time.After(time.Millisecond)
				}
			},
		})
		pass(200 * time.Millisecond)
		p.mu.Lock()
		fast := p.ahead()
		p.mu.Unlock()
		if fast < 4*c {
			t.Errorf("%d are kept ahead of fast handlers, want %d or more", fast, 4*c)
		}
		slow.Store(true)
		pass(5 * time.Minute)
		if got := p.Stats().Buffered; got > c/2 {
			t.Errorf("%d are buffered for slow handlers, want at most %d", got, c/2)
		}
		p.end()
	})
}

func TestDemandFollowsLittlesLaw(t *testing.T) {
	const ms = time.Millisecond
	type trip struct {
		idle, took time.Duration // before it, and of it
		finished   int           // in both
		full       bool
	}
	for _, tt := range []struct {
		name  string
		trips []trip
		want  int
	}{
		{"four times what finished in a trip", []trip{{15 * ms, 5 * ms, 80, true}}, 80},
		{"nothing finished", []trip{{15 * ms, 5 * ms, 0, true}}, 0},
		{"a call that waited counts for its rate", []trip{{15 * ms, 5 * ms, 0, true}, {0, 500 * ms, 200, false}}, 8},
		{"a longer one is believed by a quarter", []trip{{0, 80 * ms, 0, true}, {220 * ms, 200 * ms, 100, true}}, 80},
		{"a shorter one is believed at once", []trip{{0, time.Second, 0, true}, {97 * ms, 3 * ms, 1100, true}}, 12},
		{"of short trips what finished in 10 ms", []trip{{0, time.Second, 0, true}, {99 * ms, ms, 1100, true}}, 10},
		{"a short time tells no rate", []trip{{15 * ms, 5 * ms, 80, true}, {14 * ms, 5 * ms, 1000, true}}, 80},
		{"all of 8 slow handlers end together", []trip{{15 * ms, 5 * ms, 8, true}}, 8},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var d demand
			var now time.Duration
			finished := 0
			for _, trip := range tt.trips {
				now += trip.idle + trip.took
				finished += trip.finished
				d.measure(now, trip.took, finished, trip.full)
			}
			if d.size != tt.want {
				t.Errorf("size %d, want %d", d.size, tt.want)
			}
		})
	}
}

func TestQueueIsFirstInFirstOut(t *testing.T) {
	var q queue
	ss := make([]Slot, 100)
	next := 0
	check := func() {
		if s := q.pop(); s != &ss[next] {
			t.Fatalf("popped another slot than number %d", next)
		}
		next++
	}
	for i := range ss {
		q.push(&ss[i])
		if i%3 == 2 {
			check()
			check()
		}
	}
	ss[next+1].state = gone
	ss[99].state = gone
	left := q.len()
	q.drop()
	if q.len() != left-2 {
		t.Errorf("%d left after dropping two of %d", q.len(), left)
	}
	check()
	next++
	for q.len() > 0 {
		check()
	}
	if next != 99 {
		t.Errorf("the last popped was %d, want 98", next-1)
	}
}

func TestFurtherReceivesRunOnlyWhileTheLastReturnedFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		r.trip = 20 * time.Millisecond
		p := start(t, Config{
			Receiver: r, Concurrency: 100, Handle: complete(50 * time.Millisecond),
			Limits: transport.Limits{ParallelReceive: 4, MaxReceive: 10},
		})
		if got := r.running(); got != 1 {
			t.Errorf("%d calls while idle, want 1", got)
		}
		r.put(3000)
		pass(300 * time.Millisecond)
		if got := r.mostCalls(); got != 4 {
			t.Errorf("at most %d calls at once under load, want 4", got)
		}
		pass(time.Minute)
		if got := r.left(); got != 0 {
			t.Errorf("%d messages left", got)
		}
		// Calls that found the end of the queue wait there until the next messages come.
		for range 4 {
			r.put(1)
			pass(time.Second)
		}
		if got := r.running(); got != 1 {
			t.Errorf("%d calls when idle again, want 1", got)
		}
		p.end()
		for _, n := range r.limits {
			if n > 10 || n < 1 {
				t.Errorf("asked for %d, want 1 to 10", n)
			}
		}
	})
}

// Parallel calls of Receive never take more messages than there is room for.
func TestParallelReceivesStayWithinTheRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		r.trip = 20 * time.Millisecond
		r.put(1000)
		p := start(t, Config{
			Receiver: r, Concurrency: 20, Handle: complete(time.Hour),
			Limits: transport.Limits{ParallelReceive: 8, MaxReceive: 7},
		})
		pass(time.Second)
		if s := p.Stats(); s.Handling != 20 || s.Buffered > 10 || s.Buffered < 5 {
			t.Errorf("stats %+v, want 20 handled and 5 to 10 buffered", s)
		}
		p.end()
	})
}

func TestWithConcurrencyOneReceivesRunOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		r.trip = 20 * time.Millisecond
		r.put(200)
		p := start(t, Config{
			Receiver: r, Concurrency: 1, Handle: complete(time.Millisecond),
			Limits: transport.Limits{ParallelReceive: 8, MaxReceive: 1},
		})
		pass(time.Minute)
		p.end()
		if got := r.mostCalls(); got != 1 || r.left() > 0 {
			t.Errorf("%d calls at once and %d messages left, want 1 and none", got, r.left())
		}
	})
}

func TestFailingReceiveBacksOffAndRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var away atomic.Bool
		var calls list[time.Time]
		var told list[error]
		away.Store(true)
		r := newReceiver()
		r.before = func(int) ([]transport.Delivery, error, bool) {
			calls.add(time.Now())
			return nil, errAway, away.Load()
		}
		ds := r.put(5)
		p := start(t, Config{
			Receiver: r, Queue: "orders", Concurrency: 3, Handle: complete(0),
			Logger:    slog.New(slog.NewTextHandler(&log, nil)),
			OnReceive: told.add,
		})
		pass(10 * time.Minute)
		at := calls.all()
		if n := len(at); n < 60 || n > 140 {
			t.Errorf("%d calls in ten minutes, want between 60 and 140", n)
		}
		for i := range 7 {
			top := min(100*time.Millisecond<<i, 10*time.Second)
			if d := at[i+1].Sub(at[i]); d < top/2 || d > top {
				t.Errorf("pause %d lasted %v, want between %v and %v", i, d, top/2, top)
			}
		}
		failures := len(at)
		away.Store(false)
		pass(10 * time.Second)
		wantSettledOnce(t, ds)
		away.Store(true)
		again := len(calls.all())
		r.put(1) // lets the waiting call return
		pass(time.Second)
		p.end()
		if at := calls.all(); at[again+1].Sub(at[again]) > 100*time.Millisecond {
			t.Errorf("the second outage began with a pause of %v, want at most 100ms", at[again+1].Sub(at[again]))
		}

		news := told.all()
		if n := len(news); n < failures+2 || !errors.Is(news[0], errAway) || news[failures] != nil || !errors.Is(news[failures+1], errAway) {
			t.Errorf("told %d times, want each of %d failures, the recovery and the new failure", n, failures)
		}
		if n := strings.Count(log.String(), "receiving fails"); n != 2 {
			t.Errorf("%d lines about failing, want one for each of 2 outages:\n%s", n, &log)
		}
		if n := strings.Count(log.String(), "receiving works again"); n != 1 {
			t.Errorf("%d lines about recovery, want 1:\n%s", n, &log)
		}
		if !strings.Contains(log.String(), "queue=orders") {
			t.Errorf("the log does not name the queue:\n%s", &log)
		}
	})
}

func TestParallelReceivesThatFailArePacedAsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		var away atomic.Bool
		r := newReceiver()
		r.trip = 20 * time.Millisecond
		r.before = func(int) ([]transport.Delivery, error, bool) {
			if !away.Load() {
				return nil, nil, false
			}
			calls.Add(1)
			return nil, errAway, true
		}
		r.put(10000)
		p := start(t, Config{
			Receiver: r, Concurrency: 100, Handle: complete(10 * time.Millisecond),
			Limits: transport.Limits{ParallelReceive: 10, MaxReceive: 10},
		})
		pass(time.Second)
		if got := r.mostCalls(); got < 5 {
			t.Errorf("only %d calls ran at once", got)
		}
		away.Store(true)
		pass(10 * time.Minute)
		if n := calls.Load(); n > 150 {
			t.Errorf("%d calls in ten minutes of outage, want no more than one loop would make", n)
		}
		away.Store(false)
		pass(20 * time.Second)
		if r.left() > 0 {
			t.Errorf("%d messages left after the outage", r.left())
		}
		p.end()
	})
}

func TestAFailedReceiveDoesNotDropWhatItReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := new(delivery)
		first := true
		r := newReceiver()
		r.before = func(int) ([]transport.Delivery, error, bool) {
			defer func() { first = false }()
			return []transport.Delivery{d}, errAway, first
		}
		p := start(t, Config{Receiver: r, Concurrency: 3, Handle: complete(0)})
		pass(time.Second)
		p.end()
		wantSettledOnce(t, []*delivery{d})
	})
}

func TestReceiveThatReturnsNothingDoesNotSpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls, told atomic.Int64
		r := newReceiver()
		r.before = func(int) ([]transport.Delivery, error, bool) {
			return nil, nil, calls.Add(1) <= 50
		}
		ds := r.put(10)
		p := start(t, Config{
			Receiver: r, Concurrency: 3, Handle: complete(0),
			OnReceive: func(error) { told.Add(1) },
		})
		pass(time.Second)
		if n := calls.Load(); n > 11 {
			t.Errorf("%d calls in a second, want at most 11", n)
		}
		pass(10 * time.Second)
		p.end()
		wantSettledOnce(t, ds)
		if told.Load() != 0 {
			t.Error("an empty Receive was taken for a failure")
		}
	})
}

func TestAnEmptyReceiveThatWaitedIsNotPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		r.before = func(int) ([]transport.Delivery, error, bool) {
			<-time.After(time.Second)
			return nil, nil, true
		}
		p := start(t, Config{Receiver: r, Concurrency: 3, Handle: complete(0)})
		pass(10 * time.Second)
		p.end()
		if n := len(r.limits); n != 11 {
			t.Errorf("%d calls, want 11: one a second and the one that was running", n)
		}
	})
}

func TestSlowHandlersAreFedByFewRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		r.put(1000)
		p := start(t, Config{
			Receiver: r, Concurrency: 32,
			Handle: func(_ context.Context, d transport.Delivery, _ *Slot) {
				<-time.After(time.Second + time.Duration(d.(*delivery).n)*time.Millisecond)
			},
		})
		pass(10 * time.Second)
		p.end()
		for _, n := range r.limits {
			if n < 8 {
				t.Errorf("asked for %d, want no less than half the buffer, 8", n)
			}
		}
	})
}

func TestRaisedConcurrencyIsUsedByAllReceivesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		r.trip = time.Second
		r.put(1000)
		p := start(t, Config{
			Receiver: r, Concurrency: 10, Handle: complete(time.Hour),
			Limits: transport.Limits{ParallelReceive: 4, MaxReceive: 5},
		})
		pass(time.Minute)
		p.SetConcurrency(100)
		synctest.Wait()
		if got := r.running(); got != 4 {
			t.Errorf("%d calls run, want 4", got)
		}
		p.end()
	})
}

func TestNewsOfOutagesStayInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told list[error]
		o := newOutage(slog.New(slog.DiscardHandler), func(err error) {
			<-time.After(time.Second)
			told.add(err)
		})
		for i := range 20 {
			err := errAway
			if i%2 == 1 {
				err = nil
			}
			go o.note(t.Context(), err, 0)
			synctest.Wait()
		}
		pass(time.Minute)
		for i, err := range told.all() {
			if (err == nil) != (i%2 == 1) {
				t.Fatalf("news %d is %v: out of order", i, err)
			}
		}
		if n := len(told.all()); n != 20 {
			t.Errorf("%d news, want 20", n)
		}
	})
}

func TestUnbufferedPumpsReceiveOnlyForFreeHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		r.trip = 20 * time.Millisecond
		r.put(1000)
		p := start(t, Config{
			Receiver: r, Concurrency: 25, Handle: complete(time.Hour),
			Limits: transport.Limits{ParallelReceive: 8, MaxReceive: 10, Unbuffered: true},
		})
		pass(time.Second)
		if s := p.Stats(); s.Handling != 25 || s.Buffered > 0 {
			t.Errorf("stats %+v, want 25 handled and none buffered", s)
		}
		p.end()
	})
}

// If each call is paid for, parallel calls each ask for the most that a call can return.
func TestPaidReceivesAskForTheMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver()
		r.trip = 20 * time.Millisecond
		r.put(5000)
		p := start(t, Config{
			Receiver: r, Concurrency: 32, Handle: complete(time.Millisecond),
			Limits: transport.Limits{ParallelReceive: 8, MaxReceive: 10, Unbuffered: true},
		})
		pass(time.Minute)
		p.end()
		if calls := len(r.limits); calls > 5000/10*11/10 {
			t.Errorf("%d calls for 5000 messages, 10 of which one may return", calls)
		}
		if most := r.mostCalls(); most < 2 {
			t.Errorf("at most %d calls at once, want some", most)
		}
	})
}

// listening is a receiver that knows whether its broker answers.
type listening struct {
	*receiver
	answers atomic.Bool
}

func (l *listening) Listening() bool { return l.answers.Load() }

// An outage of an idle queue is over when the broker answers, and not only with the next message.
func TestAnIdleReceiveEndsAnOutage(t *testing.T) {
	for name, test := range map[string]struct {
		knows    bool          // the driver implements transport.Listener
		first    time.Duration // how long the first failed Receive takes
		failing  time.Duration // how long the others take
		from, to time.Duration // when the outage ends, after the first Receive that waits
	}{
		"a driver that knows":       {true, 0, time.Millisecond, 0, 2 * time.Second},
		"a driver that cannot tell": {false, 0, time.Millisecond, silence, silence + 2*time.Second},
		"after slow failures":       {false, 0, 20 * time.Second, 40 * time.Second, 42 * time.Second},
		"after an idle day":         {false, 24 * time.Hour, time.Millisecond, 2 * longFailure, 2*longFailure + 2*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var away atomic.Bool
				var told, waits, over list[time.Time]
				first := test.first
				r := newReceiver()
				l := &listening{receiver: r}
				r.before = func(int) ([]transport.Delivery, error, bool) {
					if !away.Load() {
						waits.add(time.Now())
						l.answers.Store(true)
						return nil, nil, false
					}
					pass(max(first, test.failing))
					first = 0
					return nil, errAway, true
				}
				cfg := Config{Receiver: r, Queue: "orders", Concurrency: 3, Handle: complete(0), OnReceive: func(err error) {
					told.add(time.Now())
					if err == nil {
						over.add(time.Now())
					}
				}}
				if test.knows {
					cfg.Receiver = l
				}
				away.Store(true)
				p := start(t, cfg)
				pass(5*time.Minute + test.first)
				away.Store(false)
				pass(5 * time.Minute)
				if n := len(over.all()); n != 1 || len(waits.all()) == 0 {
					t.Fatalf("the end of the outage was told %d times, after %d calls", n, len(waits.all()))
				}
				if d := over.all()[0].Sub(waits.all()[0]); d < test.from || d > test.to {
					t.Errorf("the outage ended %v after Receive waited, want %v to %v", d, test.from, test.to)
				}
				if at := told.all(); !at[len(at)-1].Equal(over.all()[0]) {
					t.Error("more is told of an outage that is over")
				}
				p.end()
			})
		})
	}
}

// While the network swallows packets, a driver that does not hear the broker keeps the outage,
// however long Receive waits.
func TestASilentBrokerEndsNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failed atomic.Bool
		var told list[error]
		r := newReceiver()
		r.before = func(int) ([]transport.Delivery, error, bool) { return nil, errAway, !failed.Swap(true) }
		l := &listening{receiver: r}
		p := start(t, Config{Receiver: l, Queue: "orders", Concurrency: 3, Handle: complete(0), OnReceive: told.add})
		pass(time.Hour)
		if all := told.all(); len(all) != 1 || all[0] == nil {
			t.Errorf("told %v, want the failure alone", all)
		}
		l.answers.Store(true)
		pass(2 * time.Second)
		if all := told.all(); len(all) != 2 || all[1] != nil {
			t.Errorf("told %v, want the failure and its end", all)
		}
		p.end()
	})
}
