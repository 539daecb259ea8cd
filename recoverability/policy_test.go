package recoverability

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var (
	errBroken = errors.New("broken")
	first     = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
)

// failed is a failure of the message's first cycle, at its first failure.
func failed(immediate, delayed int) Failure {
	return Failure{Err: errBroken, Immediate: immediate, Delayed: delayed, FirstFailure: first, Now: first}
}

func TestDecide(t *testing.T) {
	toError := MoveToError{Queue: "error"}
	tests := []struct {
		name    string
		config  Config
		failure Failure
		want    Action
	}{
		{"first failure of a zero Config", Config{}, failed(1, 0), Retry{}},
		{"fifth failure of a zero Config", Config{}, failed(5, 0), Retry{}},
		{"sixth failure of a zero Config", Config{}, failed(6, 0), Delay{For: 10 * time.Second}},
		{"first failure of the second cycle", Config{}, failed(1, 1), Retry{}},
		{"second cycle is over", Config{}, failed(6, 1), Delay{For: 20 * time.Second}},
		{"third cycle is over", Config{}, failed(6, 2), Delay{For: 30 * time.Second}},
		{"fourth cycle is over", Config{}, failed(6, 3), toError},

		{"failures below Immediate", Config{Immediate: 2}, failed(1, 0), Retry{}},
		{"failures equal to Immediate", Config{Immediate: 2}, failed(2, 0), Retry{}},
		{"failures over Immediate", Config{Immediate: 2}, failed(3, 0), Delay{For: 10 * time.Second}},
		{"far more deliveries than Immediate", Config{Immediate: 2}, failed(1000, 0), Delay{For: 10 * time.Second}},
		{"no immediate retries", Config{Immediate: None}, failed(1, 0), Delay{For: 10 * time.Second}},
		{"no delayed retries, before Immediate is used up", Config{Immediate: 1, Delayed: None}, failed(1, 0), Retry{}},
		{"no delayed retries", Config{Immediate: 1, Delayed: None}, failed(2, 0), toError},
		{"no retries", Config{Immediate: None, Delayed: None}, failed(1, 0), toError},
		{"delays below Delayed", Config{Immediate: None, Delayed: 2}, failed(1, 1), Delay{For: 20 * time.Second}},
		{"delays equal to Delayed", Config{Immediate: None, Delayed: 2}, failed(1, 2), toError},
		{"delays over Delayed", Config{Immediate: None, Delayed: 2}, failed(1, 3), toError},
		{"delays that make no sense", Config{Immediate: None}, failed(1, -1), Delay{For: 10 * time.Second}},
		{"another error queue", Config{Immediate: None, Delayed: None, ErrorQueue: "poison"}, failed(1, 0), MoveToError{Queue: "poison"}},

		{"unrecoverable", Config{ErrorQueue: "poison"}, with(failed(1, 0), Unrecoverable(errBroken)), MoveToError{Queue: "poison"}},
		{"retry after", Config{}, with(failed(1, 0), RetryAfter(errBroken, time.Minute)), Delay{For: time.Minute}},
		{"retry after in a later cycle", Config{}, with(failed(3, 2), RetryAfter(errBroken, time.Minute)), Delay{For: time.Minute}},
		{"retry after, no time", Config{}, with(failed(1, 0), RetryAfter(errBroken, 0)), Delay{}},
		{"retry after, no delay left", Config{}, with(failed(1, 3), RetryAfter(errBroken, time.Minute)), Retry{}},
		{"retry after, nothing left", Config{}, with(failed(6, 3), RetryAfter(errBroken, time.Minute)), toError},
		{"retry after, no delayed retries", Config{Delayed: None}, with(failed(6, 0), RetryAfter(errBroken, time.Minute)), toError},
		{"retry after, too late", Config{}, after(with(failed(6, 1), RetryAfter(errBroken, time.Minute)), 25*time.Hour), toError},
		{"unrecoverable wins over retry after", Config{}, with(failed(1, 0), RetryAfter(Unrecoverable(errBroken), time.Minute)), toError},
		{"unrecoverable beside retry after", Config{}, with(failed(1, 0), errors.Join(RetryAfter(errBroken, time.Minute), Unrecoverable(errBroken))), toError},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, test.config.Decide(test.failure)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func with(f Failure, err error) Failure {
	f.Err = err
	return f
}

func after(f Failure, d time.Duration) Failure {
	f.Now = f.FirstFailure.Add(d)
	return f
}

func TestDelayedRetriesEndADayAfterTheFirstFailure(t *testing.T) {
	c := Config{Immediate: None, Delayed: 100, Delays: Delays{Delay: time.Minute}}
	tests := []struct {
		after time.Duration
		want  Action
	}{
		{-time.Hour, Delay{For: 2 * time.Minute}}, // a clock was set back
		{0, Delay{For: 2 * time.Minute}},
		{24*time.Hour - 1, Delay{For: 2 * time.Minute}},
		{24 * time.Hour, Delay{For: 2 * time.Minute}},
		{24*time.Hour + 1, MoveToError{Queue: "error"}},
		{math.MaxInt64, MoveToError{Queue: "error"}},
	}
	for _, test := range tests {
		if got := c.Decide(after(failed(1, 1), test.after)); got != test.want {
			t.Errorf("%v after the first failure: %v, want %v", test.after, got, test.want)
		}
	}
	unset := failed(1, 1)
	unset.FirstFailure = time.Time{} // further back than a Duration reaches
	if got := c.Decide(unset); got != (MoveToError{Queue: "error"}) {
		t.Errorf("first failed in the year 1: %v, want the error queue", got)
	}
}

func TestImmediateRetriesGoOnAfterADay(t *testing.T) {
	if got := (Config{}).Decide(after(failed(1, 0), 48*time.Hour)); got != (Retry{}) {
		t.Errorf("got %v, want a retry: the cap is on delayed ones", got)
	}
}

func TestADelayThatOverflowsIsTheLongest(t *testing.T) {
	const longest = time.Duration(math.MaxInt64)
	tests := []struct {
		increase time.Duration
		delayed  int
		want     time.Duration
	}{
		{time.Hour, 0, time.Hour},
		{longest, 0, longest},
		{longest, 1, longest},
		{longest / 2, 1, longest - 1},
		{longest/2 + 1, 1, longest},
		{longest / 3, 2, longest / 3 * 3},
		{1, math.MaxInt - 1, longest},
		{2, math.MaxInt - 1, longest},
		{longest, math.MinInt, longest},
	}
	for _, test := range tests {
		c := Config{Immediate: None, Delayed: math.MaxInt, Delays: Delays{Delay: test.increase}}
		if got := c.Decide(failed(1, test.delayed)); got != (Delay{For: test.want}) {
			t.Errorf("increase %v after %d delays: %v, want %v", test.increase, test.delayed, got, test.want)
		}
	}
}

func TestDecideLeavesTheConfiguredPolicyAlone(t *testing.T) {
	c := Config{Policy: func(Failure) Action { panic("called") }}
	if got := c.Decide(failed(1, 0)); got != (Retry{}) {
		t.Errorf("got %v", got)
	}
}

func TestWithDefaultsFillsZeroFieldsOnly(t *testing.T) {
	memory := Memory{Messages: 1000, Bytes: 1 << 20}
	tests := []struct {
		name      string
		got, want Config
	}{
		{
			"zero", Config{}.WithDefaults(),
			Config{Immediate: 5, Delayed: 3, Delays: Delays{Delay: 10 * time.Second}, ErrorQueue: "error", Quarantine: Quarantine{6, 3, DefaultIdle}, Memory: memory},
		},
		{
			"off", Config{Immediate: None, Delayed: None}.WithDefaults(),
			Config{Immediate: None, Delayed: None, Delays: Delays{Delay: 10 * time.Second}, ErrorQueue: "error", Quarantine: Quarantine{3, 3, DefaultIdle}, Memory: memory},
		},
		{
			"set", Config{Immediate: 1, Delayed: 2, Delays: Delays{Delay: 3}, ErrorQueue: "4", Quarantine: Quarantine{None, 5, time.Hour}, Memory: Memory{Messages: 5}}.WithDefaults(),
			Config{Immediate: 1, Delayed: 2, Delays: Delays{Delay: 3}, ErrorQueue: "4", Quarantine: Quarantine{None, 5, time.Hour}, Memory: Memory{Messages: 5, Bytes: 1 << 20}},
		},
		{"twice", Config{Immediate: None}.WithDefaults().WithDefaults(), Config{Immediate: None}.WithDefaults()},
	}
	for _, test := range tests {
		if diff := cmp.Diff(test.want, test.got); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
}

func TestValidateTellsAllThatIsWrong(t *testing.T) {
	for _, c := range []Config{{}, {Immediate: None, Delayed: None}, Config{}.WithDefaults()} {
		if err := c.Validate(); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
	err := Config{Immediate: -2, Delayed: -3, Delays: Delays{Delay: -time.Second}}.Validate()
	want := "recoverability: Immediate is -2: use None for none\n" +
		"recoverability: Delayed is -3: use None for none\n" +
		"recoverability: Delays.Delay is negative: -1s; 0 is the default"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestActionsSayWhatTheyDo(t *testing.T) {
	tests := []struct {
		action Action
		want   string
	}{
		{Retry{}, "retry"},
		{Delay{For: 90 * time.Second}, "delay for 1m30s"},
		{MoveToError{}, "move to the error queue"},
		{MoveToError{Queue: "poison"}, `move to error queue "poison"`},
		{DeadLetter{Reason: "too old"}, "dead-letter: too old"},
		{Discard{Reason: "duplicate"}, "discard: duplicate"},
	}
	for _, test := range tests {
		if got := fmt.Sprint(test.action); got != test.want {
			t.Errorf("%T: %q, want %q", test.action, got, test.want)
		}
	}
}
