package throttle

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/failurelog"
	"github.com/holdfast-go/holdfast/endpoint/internal/notify"
	"github.com/holdfast-go/holdfast/endpoint/internal/overdue"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

var errBroken = errors.New("broken")

// config is the configuration of a limit that begins with the second failure.
func config(scope recoverability.RateLimitScope) recoverability.RateLimit {
	return recoverability.RateLimit{After: 2, Delay: 10 * time.Second, Scope: scope}
}

// limits returns limits whose changes are recorded in kinds, and in serial for the sources.
func limits(
	c recoverability.RateLimit, kinds *[]recoverability.NotificationKind, serial *[]bool,
) (Limits, *Shared) {
	record := func(_ context.Context, n recoverability.Notification) { *kinds = append(*kinds, n.Kind) }
	log := slog.New(slog.DiscardHandler)
	shared := &Shared{
		SetSerial: func(on bool) { *serial = append(*serial, on) },
		Notifier:  notify.New([]func(context.Context, recoverability.Notification){record}, log, overdue.New(log)),
		MaxDelay:  time.Hour,
	}
	return New(c, slices.Values([]string{"A", "B"}), shared), shared
}

// received is a delivery of a number.
type received struct {
	transport.Delivery
	attempt transport.Attempt
}

func (d *received) Attempt() transport.Attempt { return d.attempt }

// delivery returns a delivery of a message with headers.
func delivery(id string, h header.Map, attempt transport.Attempt) *settle.Delivery {
	d := &settle.Delivery{
		Settler:  &settle.Settler{Log: slog.New(slog.DiscardHandler), Failures: failurelog.New(10, 1000)},
		Received: &received{attempt: attempt},
	}
	d.ID, d.Queue, d.Original = id, "orders", &transport.Message{ID: id, Headers: h}
	return d
}

func TestOneMessageHasTheTurnUntilItPassesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls := New(config(recoverability.ByEndpoint), nil, nil)
		l := ls.Of(nil)
		var first, second Turn
		if wait, _ := l.wait(&first, time.Now()); wait != 0 {
			t.Errorf("a wait of %v before any failure", wait)
		}
		if l.failed("m-1", time.Now()) || l.failed("m-2", time.Now()) {
			t.Fatal("attempts were limited before the failure that begins the limit")
		}
		if wait, _ := l.wait(&first, time.Now()); wait != 10*time.Second {
			t.Errorf("the message with the turn waits %v, want 10s", wait)
		}
		wait, changed := l.wait(&second, time.Now())
		if wait != blocked {
			t.Errorf("another message waits %v, want to be blocked", wait)
		}
		l.pass(&second) // it does not have the turn
		select {
		case <-changed:
			t.Error("the turn was passed by a message that does not have it")
		default:
		}
		l.pass(&first)
		<-changed
		if wait, _ := l.wait(&second, time.Now()); wait == blocked {
			t.Error("the turn is free, and a message is blocked")
		}
		if !l.succeeded() || l.succeeded() {
			t.Error("a success ends the limit, once")
		}
		if wait, _ := l.wait(&first, time.Now()); wait != 0 {
			t.Errorf("a wait of %v after the limit", wait)
		}
	})
}

func TestAChangeIsReportedOnce(t *testing.T) {
	for _, tt := range []struct {
		scope  recoverability.RateLimitScope
		of     string
		serial []bool
	}{
		{recoverability.ByType, "B", nil},
		{recoverability.ByEndpoint, "", []bool{true, false}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var kinds []recoverability.NotificationKind
			var serial []bool
			ls, shared := limits(config(tt.scope), &kinds, &serial)
			turn := Turn{Limit: ls.Of(func() string { return "B" })}
			turn.Succeeded(t.Context(), delivery("m-0", header.Map{}, transport.Attempt{N: 1}))
			for _, id := range []string{"m-1", "m-2", "m-3"} {
				turn.Failed(t.Context(), delivery(id, header.Map{}, transport.Attempt{N: 1}), errBroken, time.Now())
			}
			states := ls.States()
			if len(states) != 1 || states[0].Type != tt.of || states[0].Failures != 3 {
				t.Errorf("limited: %v, want %q after 3 failures", states, tt.of)
			}
			turn.Succeeded(t.Context(), delivery("m-4", header.Map{}, transport.Attempt{N: 1}))
			shared.WaitForReports()
			want := []recoverability.NotificationKind{recoverability.RateLimitStarted, recoverability.RateLimitEnded}
			if !slices.Equal(kinds, want) || !slices.Equal(serial, tt.serial) {
				t.Errorf("reported %v, serial %v; want %v, %v", kinds, serial, want, tt.serial)
			}
		})
	}
}

func TestAThrottledFailureUsesUpNoRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := config(recoverability.ByEndpoint)
		c.MaxFailures = 6
		ls, shared := limits(c, new([]recoverability.NotificationKind), new([]bool))
		other := Turn{Limit: ls.Of(nil)}
		other.Failed(t.Context(), delivery("m-0", header.Map{}, transport.Attempt{N: 1}), errBroken, time.Now())
		turn, d := Turn{Limit: ls.Of(nil)}, delivery("m-1", header.Map{}, transport.Attempt{N: 1})
		var got []Verdict
		for range 7 { // the first begins the limit
			got = append(got, turn.Failed(t.Context(), d, errBroken, time.Now()))
		}
		if want := []Verdict{Counted, Again, Again, Again, Later, Later, Counted}; !slices.Equal(got, want) {
			t.Errorf("verdicts %v, want %v", got, want)
		}
		shared.WaitForReports()
	})
}

func TestAMessageYieldsToOtherTypes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			name     string
			scope    recoverability.RateLimitScope
			maxDelay time.Duration
			yields   bool
		}{
			{"a limit of the type", recoverability.ByType, time.Hour, true},
			{"a transport without delays", recoverability.ByType, 0, false},
			{"a limit of the endpoint", recoverability.ByEndpoint, time.Hour, false},
		} {
			ls := New(config(tt.scope), slices.Values([]string{"A"}), &Shared{MaxDelay: tt.maxDelay})
			l := ls.Of(func() string { return "A" })
			l.failed("m-1", time.Now())
			l.failed("m-2", time.Now())
			first, second := Turn{Limit: l}, Turn{Limit: l}
			if _, _, yields := first.Wait(time.Now()); yields {
				t.Errorf("%s: the message with the turn yields", tt.name)
			}
			if _, _, yields := second.Wait(time.Now()); yields != tt.yields {
				t.Errorf("%s: yields %t, want %t", tt.name, yields, tt.yields)
			}
		}
	})
}

func TestFailuresOfEarlierDeliveriesCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		five := fault.Throttled{Failures: 5, Since: now}
		h := fault.DeferHeaders(header.Map{}, 0, five)
		for _, tt := range []struct {
			name     string
			maxDelay time.Duration
			attempt  int
			want     int // with two failures of this delivery
		}{
			{"in the headers of the copy", time.Hour, 1, 7},
			{"the policy has decided", time.Hour, 2, 2},
			{"in memory", 0, 2, 5},
		} {
			ls := New(config(recoverability.ByEndpoint), nil, &Shared{MaxDelay: tt.maxDelay})
			turn, d := Turn{Limit: ls.Of(nil)}, delivery("m-1", h, transport.Attempt{N: tt.attempt})
			d.Failures.SetThrottled(d.FailureKey(), fault.Throttled{Failures: 3, Since: now})
			turn.add(d, now)
			turn.add(d, now)
			if got := turn.all(d); turn.Tries != 2 || got.Failures != tt.want {
				t.Errorf("%s: %d tries, %d failures; want 2, %d", tt.name, turn.Tries, got.Failures, tt.want)
			}
		}
	})
}

func TestAPostponedCopyKeepsItsCounts(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	h := fault.DeferHeaders(header.Map{}, 2, fault.Throttled{Failures: 4, Since: now})
	for _, tt := range []struct {
		name    string
		attempt transport.Attempt
		used    int
	}{
		{"counted by the broker", transport.Attempt{N: 4, Exact: true}, 5},
		{"counted by this process", transport.Attempt{N: 1}, 3},
	} {
		d := delivery("m-1", h, tt.attempt)
		d.Failures.Count(d.FailureKey(), now, true)
		copied := new(Turn).Headers(d)
		throttled := 0 // the policy has decided after the first delivery
		if tt.attempt.N == 1 {
			throttled = 4
		}
		if got := fault.ThrottledFailures(copied, now).Failures; fault.UsedRetries(copied) != tt.used || got != throttled {
			t.Errorf("%s: %d retries, %d failures; want %d, %d", tt.name, fault.UsedRetries(copied), got, tt.used, throttled)
		}
	}
}

// Where the transport has no delays, this process remembers the failures of a throttled message
// until the message is handled.
func TestASuccessForgetsRememberedFailures(t *testing.T) {
	for _, delays := range []time.Duration{0, time.Hour} {
		ls := New(config(recoverability.ByEndpoint), nil, &Shared{MaxDelay: delays})
		turn, d := Turn{Limit: ls.Of(nil)}, delivery("m-1", header.Map{}, transport.Attempt{N: 1})
		d.Failures.SetThrottled(d.FailureKey(), fault.Throttled{Failures: 3, Since: time.Now()})
		turn.Succeeded(t.Context(), d)
		if _, known := d.Failures.Known(d.FailureKey()); known != (delays > 0) {
			t.Errorf("delays of up to %v: the failures are remembered: %t", delays, known)
		}
	}
}
