package resilience_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/resilience"
)

func TestDelaysGrowByTheBackoff(t *testing.T) {
	for _, test := range []struct {
		retry resilience.Retry
		want  []time.Duration // in seconds
	}{
		{resilience.Retry{}, []time.Duration{0, 0, 0}},
		{resilience.Retry{Max: 3}, []time.Duration{2, 2, 2}},
		{resilience.Retry{Delay: resilience.None}, []time.Duration{0, 0, 0}},
		{resilience.Retry{Delay: 10 * time.Second, Backoff: resilience.Linear}, []time.Duration{10, 20, 30, 40}},
		{resilience.Retry{Delay: 10 * time.Second, Backoff: resilience.Exponential}, []time.Duration{10, 20, 40, 80}},
		{
			resilience.Retry{Delay: 10 * time.Second, Backoff: resilience.Exponential, MaxDelay: 30 * time.Second},
			[]time.Duration{10, 20, 30, 30},
		},
	} {
		for i, want := range test.want {
			if got := (resilience.Policy{Retry: test.retry}).DelayFor(i+1, nil); got != want*time.Second {
				t.Errorf("%+v: delay %d is %v, want %v", test.retry, i+1, got, want*time.Second)
			}
		}
	}
}

func TestRandomPoliciesKeepTheirBounds(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		p := resilience.Policy{Name: "p", Retry: resilience.Retry{
			Delay: 1 + time.Duration(random.Int64N(int64(24*time.Hour))), Backoff: resilience.Backoff(1 + random.IntN(3)), Jitter: 0.5,
		}}
		if random.IntN(2) == 0 {
			d := p.WithDefaults().Retry.Delay
			p.Retry.MaxDelay = d + time.Duration(random.Int64N(int64(24*time.Hour-d)+1))
		}
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		failures := 1 + random.IntN(200)
		if random.IntN(10) == 0 {
			failures = math.MaxInt
		}
		whole := p
		whole.Retry.Jitter = resilience.None
		d := whole.DelayFor(failures, nil)
		if most := p.Retry.MaxDelay; d < 0 || most > 0 && d > most {
			t.Fatalf("%+v: delay %d is %v", whole, failures, d)
		}
		if got := p.DelayFor(failures, random.Float64); got < d/2 || got > d {
			t.Fatalf("%+v: delay %d is %v, want one from %v to %v", p, failures, got, d/2, d)
		}
	}
}

func TestMistakesInAPolicyAreNamed(t *testing.T) {
	day := 24 * time.Hour
	for _, test := range []struct {
		policy resilience.Policy
		want   string
	}{
		{resilience.Policy{}, "the name is empty"},
		{resilience.Policy{Name: " \t"}, "the name is empty"},
		{resilience.Policy{Name: strings.Repeat("x", 201)}, "201 bytes"},
		{resilience.Policy{Name: "a\nb"}, "control character"},
		{resilience.Policy{Name: "p"}, "Retry and Timeout are both zero"},
		{resilience.Policy{Name: "p", Timeout: -1}, "Timeout is negative"},
		{resilience.Policy{Name: "p", Timeout: day + 1}, "Timeout is 24h"},
		{resilience.Policy{Name: "p", Retry: resilience.Retry{Max: -2}}, "Retry.Max is -2"},
		{resilience.Policy{Name: "p", Retry: resilience.Retry{Max: math.MaxInt}}, "at most 1000000"},
		{resilience.Policy{Name: "p", Retry: resilience.Retry{Delay: -2}}, "Retry.Delay is negative"},
		{resilience.Policy{Name: "p", Retry: resilience.Retry{Delay: day + 1}}, "Retry.Delay is 24h"},
		{resilience.Policy{Name: "p", Retry: resilience.Retry{Backoff: 4}}, "Backoff(4)"},
		{resilience.Policy{Name: "p", Retry: resilience.Retry{MaxDelay: -2}}, "Retry.MaxDelay is negative"},
		{resilience.Policy{Name: "p", Retry: resilience.Retry{MaxDelay: time.Second}}, "shorter than the first delay"},
		{resilience.Policy{Name: "p", Retry: resilience.Retry{Jitter: math.NaN()}}, "Retry.Jitter is NaN"},
		{resilience.Policy{Name: "p", Retry: resilience.Retry{Jitter: 1.1}}, "Retry.Jitter is 1.1"},
	} {
		if err := test.policy.Validate(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v, want %q in it", test.policy, err, test.want)
		}
	}
}

// Only a field of Retry enables retries. A policy with a Timeout alone limits the attempt.
func TestATimeoutAloneIsOneAttempt(t *testing.T) {
	timed := resilience.Policy{Name: "p", Timeout: time.Second}
	if again := timed.WithDefaults().WithDefaults(); again != timed || timed.Retries() != 0 || timed.Validate() != nil {
		t.Errorf("the policy is %+v with %d retries, %v", again, timed.Retries(), timed.Validate())
	}
	for name, retry := range map[string]resilience.Retry{
		"Delay": {Delay: time.Second}, "no Delay": {Delay: resilience.None}, "Backoff": {Backoff: resilience.Linear},
		"MaxDelay": {MaxDelay: time.Minute}, "Jitter": {Jitter: 0.5}, "Max": {Max: resilience.DefaultMax},
	} {
		if n := (resilience.Policy{Name: "p", Timeout: time.Second, Retry: retry}).Retries(); n != resilience.DefaultMax {
			t.Errorf("with %s there are %d retries, want %d", name, n, resilience.DefaultMax)
		}
	}
	n, most := 0, 0
	err := runner(timed).Run(t.Context(), "p", func(ctx context.Context) error {
		n++
		_, most = resilience.Attempt(ctx)
		return errAway
	})
	if n != 1 || most != 1 || !errors.Is(err, errAway) {
		t.Errorf("%d attempts of at most %d, and %v: want one", n, most, err)
	}
}
