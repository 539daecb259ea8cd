package servicecontrol_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/servicecontrol"
)

// checked returns a Config with one check.
func checked(interval time.Duration, run func(context.Context) error) servicecontrol.Config {
	return servicecontrol.Config{CheckQueue: primary, Checks: []servicecontrol.Check{
		{ID: "Disk has room", Category: "Storage", Interval: interval, Run: run},
	}}
}

// results returns the time and the reason of each result; "ok" for a success.
func (l *landscape) results() (all []string) {
	for _, r := range l.reports("ReportCustomCheckResult") {
		var m struct {
			HasFailed     bool
			FailureReason *string
		}
		if err := json.Unmarshal(r.Body, &m); err != nil {
			l.t.Error(err)
		}
		text := "ok"
		switch {
		case m.HasFailed && m.FailureReason != nil:
			text = *m.FailureReason
		case m.HasFailed || m.FailureReason != nil:
			text = "neither failed nor succeeded"
		}
		all = append(all, fmt.Sprintf("%v %s", r.After, text))
	}
	return all
}

func TestAResultOfACheckIsAsSpecified(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		l.serve(primary)
		fails := false
		l.run(l.sales(), checked(time.Minute, func(context.Context) error {
			if fails {
				return errors.New("3 MB < 5 MB are left on \"Ω\"")
			}
			fails = true
			return nil
		}))
		pass(time.Minute)
		results := l.reports("ReportCustomCheckResult")
		if len(results) != 2 {
			t.Fatalf("%d results", len(results))
		}
		if diff := cmp.Diff(map[string]string{
			"NServiceBus.EnclosedMessageTypes": "ServiceControl.Plugin.CustomChecks.Messages.ReportCustomCheckResult",
			"NServiceBus.ContentType":          "application/json", "NServiceBus.MessageIntent": "Send",
			"NServiceBus.ReplyToAddress": "Sales",
		}, results[0].headers(t)); diff != "" {
			t.Error(diff)
		}
		want := map[string]any{
			"HostId": hostGUID, "CustomCheckId": "Disk has room", "Category": "Storage", "HasFailed": false, "FailureReason": nil,
			"ReportedAt": "2000-01-01T00:00:00.0000000Z", "EndpointName": "Sales", "Host": "rack 7",
		}
		sameJSON(t, results[0].Body, want)
		want["HasFailed"], want["FailureReason"] = true, "3 MB < 5 MB are left on \"Ω\""
		want["ReportedAt"] = "2000-01-01T00:01:00.0000000Z"
		sameJSON(t, results[1].Body, want)
	})
}

func TestTheIntervalOfACheckBeginsAtTheEndOfItsRun(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		l.serve(primary)
		l.run(l.sales(), checked(10*time.Second, func(context.Context) error {
			time.Sleep(3 * time.Second)
			return nil
		}))
		pass(30 * time.Second)
		if diff := cmp.Diff([]string{"3s ok", "16s ok", "29s ok"}, l.results()); diff != "" {
			t.Error(diff)
		}
	})
}

// A check without an interval runs once, and its result stays.
func TestACheckWithoutAnIntervalRunsOnce(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		l.broker.CreateQueues(primary)
		runs := 0
		l.run(l.sales(), checked(0, func(context.Context) error {
			runs++
			return nil
		}))
		pass(30 * 24 * time.Hour)
		l.serve(primary)
		synctest.Wait()
		if runs != 1 || len(l.results()) != 1 {
			t.Errorf("%d runs, %d results after a month", runs, len(l.results()))
		}
	})
}

func TestResultsExpireAfterFourIntervals(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		l.broker.CreateQueues(primary)
		l.run(l.sales(), checked(time.Minute, func(context.Context) error { return nil }))
		pass(time.Hour + time.Second)
		l.serve(primary)
		synctest.Wait()
		if n := len(l.results()); n != 4 {
			t.Errorf("%d results waited, want 4", n)
		}
	})
}

func TestAVeryLongIntervalIsNoShortLifetime(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		l.broker.CreateQueues(primary)
		l.run(l.sales(), checked(1<<62+250*time.Millisecond, func(context.Context) error { return nil }))
		pass(time.Hour) // four intervals are one second, but for the overflow
		l.serve(primary)
		synctest.Wait()
		if n := len(l.results()); n != 1 {
			t.Errorf("%d results after an hour, want 1", n)
		}
	})
}

// nothing is an error with an empty text, and broken one that cannot be read.
type (
	nothing struct{}
	broken  struct{ text string }
)

func (nothing) Error() string { return " " }
func (b *broken) Error() string {
	return b.text
}

// A check that does not return in the ordinary way is reported as failed.
func TestAnAbnormalEndOfACheckIsAFailure(t *testing.T) {
	for name, c := range map[string]struct {
		run  func(context.Context) error
		want string
	}{
		"panic":         {func(context.Context) error { panic("no disk") }, "0s the check panicked: no disk"},
		"nil panic":     {func(context.Context) error { panic(map[int]any{}[0]) }, "0s the check panicked: panic called with nil argument"},
		"Goexit":        {func(context.Context) error { runtime.Goexit(); return nil }, "0s the check ended its goroutine instead of returning"},
		"empty text":    {func(context.Context) error { return nothing{} }, "0s an error without a text, of type servicecontrol_test.nothing"},
		"broken error":  {func(context.Context) error { var b *broken; return b }, "0s the check panicked: runtime error: invalid memory address or nil pointer dereference"},
		"too slow":      {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, "30s the check did not return within 30s"},
		"hangs":         {func(context.Context) error { time.Sleep(time.Hour); return nil }, "30s the check did not return within 30s"},
		"invalid UTF-8": {func(context.Context) error { return errors.New("a\xffb") }, "0s ab"},
	} {
		t.Run(name, func(t *testing.T) {
			inLandscape(t, func(t *testing.T, l *landscape) {
				l.serve(primary)
				l.run(l.sales(), checked(0, c.run))
				pass(2 * time.Hour)
				if r := l.results(); len(r) != 1 || !strings.HasPrefix(r[0], c.want) {
					t.Errorf("results %q, want %q", r, c.want)
				}
				if panics := l.log.Lines("the check panicked"); strings.Contains(c.want, "panicked") != (len(panics) == 1) {
					t.Errorf("logged %q", panics)
				} else if len(panics) == 1 && !strings.Contains(panics[0], "check_test.go") {
					t.Errorf("%q does not have the place", panics[0])
				}
			})
		})
	}
}

func TestALongReasonIsCut(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		l.serve(primary)
		l.run(l.sales(), checked(0, func(context.Context) error { return errors.New(strings.Repeat("ü", 1<<20)) }))
		pass(time.Second)
		if r := l.results(); len(r) != 1 || len(r[0]) > 5000 || strings.ContainsRune(r[0], '\ufffd') {
			t.Errorf("%d results, the first of %d bytes", len(r), len(r[0]))
		}
	})
}

func TestACheckThatHangsIsNotStartedAgainUntilItReturns(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		l.serve(primary)
		var running, most atomic.Int32
		l.run(l.sales(), checked(10*time.Second, func(context.Context) error {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			if l.results() == nil {
				time.Sleep(65 * time.Second) // the first run ignores its context
			}
			return nil
		}))
		pass(75 * time.Second)
		still := " the run that began at 2000-01-01T00:00:00Z has not returned, although its context has ended"
		want := []string{"30s the check did not return within 30s", "40s" + still, "50s" + still, "1m0s" + still, "1m10s ok"}
		if diff := cmp.Diff(want, l.results()); diff != "" || most.Load() != 1 {
			t.Errorf("%d runs at once: %s", most.Load(), diff)
		}
	})
}

// A result that cannot be sent is sent again until the next run is due.
func TestAnUnsentResultIsRepeatedUntilTheNextRun(t *testing.T) {
	for _, c := range []struct {
		interval time.Duration
		runs     int32 // in five and a half minutes
		want     []string
	}{
		{0, 1, []string{"6m0s ok"}},
		{time.Hour, 1, []string{"6m0s ok"}},
		{90 * time.Second, 4, []string{"6m0s ok"}}, // of the run at 6 minutes
	} {
		inLandscape(t, func(t *testing.T, l *landscape) {
			var runs atomic.Int32
			l.run(l.sales(), checked(c.interval, func(context.Context) error {
				runs.Add(1)
				return nil
			}))
			pass(5*time.Minute + 30*time.Second)
			if runs.Load() != c.runs {
				t.Errorf("an interval of %v: %d runs, want %d", c.interval, runs.Load(), c.runs)
			}
			l.serve(primary)
			pass(time.Minute)
			if diff := cmp.Diff(c.want, l.results()); diff != "" {
				t.Errorf("an interval of %v: %s", c.interval, diff)
			}
		})
	}
}

func TestAStopNeitherWaitsForAHangingCheckNorReportsIt(t *testing.T) {
	inLandscape(t, func(t *testing.T, l *landscape) {
		l.serve(primary)
		e := l.run(l.sales(), checked(0, func(context.Context) error {
			time.Sleep(20 * time.Second)
			return nil
		}))
		pass(5 * time.Second)
		began := time.Now()
		e.end()
		if took := time.Since(began); took > 0 {
			t.Errorf("the stop took %v", took)
		}
		if pass(time.Minute); len(l.results()) != 0 {
			t.Errorf("results %q", l.results())
		}
	})
}
