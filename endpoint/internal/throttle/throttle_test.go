package throttle

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/recoverability"
)

func limits(scope recoverability.RateLimitScope) Limits {
	return New(recoverability.RateLimit{After: 2, Delay: 10 * time.Second, Scope: scope}, []string{"A", "B"})
}

func TestOneMessageHasTheTurnUntilItPassesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls := limits(recoverability.ByEndpoint)
		l := ls.Of(nil)
		var first, second Turn
		if wait, _ := l.Wait(&first, time.Now()); wait != 0 {
			t.Errorf("a wait of %v before any failure", wait)
		}
		if l.Failed("m-1", time.Now()) || l.Failed("m-2", time.Now()) {
			t.Fatal("attempts were limited before the failure that begins the limit")
		}
		if wait, _ := l.Wait(&first, time.Now()); wait != 10*time.Second {
			t.Errorf("the message with the turn waits %v, want 10s", wait)
		}
		wait, changed := l.Wait(&second, time.Now())
		if wait != Blocked {
			t.Errorf("another message waits %v, want to be blocked", wait)
		}
		l.Pass(&second) // it does not have the turn
		select {
		case <-changed:
			t.Error("the turn was passed by a message that does not have it")
		default:
		}
		l.Pass(&first)
		<-changed
		if wait, _ := l.Wait(&second, time.Now()); wait == Blocked {
			t.Error("the turn is free, and a message is blocked")
		}
		if !l.Succeeded() || l.Succeeded() {
			t.Error("a success ends the limit, once")
		}
		if wait, _ := l.Wait(&first, time.Now()); wait != 0 {
			t.Errorf("a wait of %v after the limit", wait)
		}
	})
}

func TestAChangeIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls := limits(recoverability.ByType)
		l := ls.Of(func() string { return "B" })
		var got []bool
		report := func() {
			l.Report(func(_, since time.Time, _ int) { got = append(got, !since.IsZero()) })
		}
		report()
		l.Failed("m-1", time.Now())
		l.Failed("m-2", time.Now())
		report()
		report()
		ls.Each(func(l *Limit, _ time.Time, failures int) {
			if l.Type != "B" || failures != 2 {
				t.Errorf("type %q is limited after %d failures, want B after 2", l.Type, failures)
			}
		})
		l.Succeeded()
		report()
		if len(got) != 2 || !got[0] || got[1] {
			t.Errorf("reported %v, want the begin and the end", got)
		}
	})
}

func TestFailuresOfEarlierDeliveriesCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls := limits(recoverability.ByEndpoint)
		l, now := ls.Of(nil), time.Now()
		var turn Turn
		asked := 0
		for range 2 {
			l.Exhausted(&turn, now, func(time.Time) fault.Throttled {
				asked++
				return fault.Throttled{Failures: 5, Since: now}
			})
		}
		if turn.Tries != 2 || turn.Failures.Failures != 7 || asked != 1 {
			t.Errorf("%d tries, %d failures, asked %d times; want 2, 7 and 1", turn.Tries, turn.Failures.Failures, asked)
		}
	})
}
