package resiliencetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/resilience"
)

func panics(s *suite) {
	r := s.runner(resilience.Policy{Name: "p", Retry: resilience.Retry{Max: 3}})
	calls := 0
	func() {
		defer func() {
			if v := recover(); v != "here" {
				s.Errorf("the panic is %v", v)
			}
		}()
		_ = r.Run(s.Context(), "p", func(context.Context) error { // it does not return
			calls++
			panic("here")
		})
		s.Error("Run returned after a panic")
	}()
	if calls != 1 {
		s.Errorf("%d calls", calls)
	}
}

// circular is an error that wraps itself.
type circular struct{}

func (c circular) Error() string { return "circular" }
func (c circular) Unwrap() error { return c }

// explosive is an error whose methods panic, and that cannot be compared.
type explosive []int

func (explosive) Error() string   { return "explosive" }
func (explosive) Unwrap() error   { panic("unwrap") }
func (explosive) Retryable() bool { panic("retryable") }

func oddErrors(s *suite) {
	for name, err := range map[string]error{"circular": circular{}, "explosive": explosive{}} {
		r := s.runner(resilience.Policy{Name: "p", Retry: resilience.Retry{Max: 1, Delay: time.Second}})
		if got := r.Run(s.Context(), "p", s.failing(never, err)); got == nil || got.Error() != name {
			s.Errorf("%s: %v", name, got)
		}
		s.at(0, 1)
	}
}

func unknown(s *suite) {
	r := s.runner(resilience.Policy{Name: "known", Timeout: time.Hour})
	err := r.Run(s.Context(), "other", s.failing(0, nil))
	if err == nil || !strings.Contains(err.Error(), "other") || !strings.Contains(err.Error(), "known") {
		s.Errorf("the error is %v", err)
	}
	s.at()
	if err := r.Run(s.Context(), "known", nil); err == nil {
		s.Error("a nil function is no error")
	}
}

func value(s *suite) {
	r := s.runner(resilience.Policy{Name: "p", Retry: resilience.Retry{Max: 3}})
	n := 0
	got, err := resilience.Do(s.Context(), r, "p", func(context.Context) (string, error) {
		if n++; n == 1 {
			return "wrong", errOrdinary
		}
		return "rejected", nil // a failure as a value is a success
	})
	if got != "rejected" || err != nil || n != 2 {
		s.Errorf("%d calls, %q, %v", n, got, err)
	}
}

func attemptNumber(s *suite) {
	r := s.runner(resilience.Policy{Name: "p", Retry: resilience.Retry{Max: 2}})
	var got []string
	_ = r.Run(s.Context(), "p", func(ctx context.Context) error {
		n, most := resilience.Attempt(ctx)
		got = append(got, fmt.Sprintf("%d of %d", n, most))
		return errOrdinary
	})
	if want := []string{"1 of 3", "2 of 3", "3 of 3"}; !slices.Equal(got, want) {
		s.Errorf("attempts %v, want %v", got, want)
	}
}

func concurrent(s *suite) {
	r := s.runner(resilience.Policy{Name: "p", Timeout: time.Second, Retry: resilience.Retry{Max: 2, Jitter: 0.5}})
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			left := 2
			err := r.Run(s.Context(), "p", func(context.Context) error {
				if left--; left >= 0 {
					return errOrdinary
				}
				return nil
			})
			if err != nil {
				s.Errorf("the error is %v", err)
			}
		})
	}
	wg.Wait()
}

// observation records what an observer is told.
type observation struct{ lines []string }

type observedKey struct{}

func (o *observation) Begin(ctx context.Context, p resilience.Policy) (context.Context, resilience.Observation) {
	o.lines = append(o.lines, "begin "+p.Name)
	return context.WithValue(ctx, observedKey{}, o), o
}

func (o *observation) Retry(n int, delay time.Duration, err error) {
	o.lines = append(o.lines, fmt.Sprintf("retry %d after %v: %v", n, delay, err))
}

func (o *observation) Timeout(n int, limit time.Duration) {
	o.lines = append(o.lines, fmt.Sprintf("attempt %d timed out after %v", n, limit))
}

func (o *observation) End(outcome resilience.Outcome, err error) {
	o.lines = append(o.lines, fmt.Sprintf("end %s: %v", outcome, err))
}

func observed(s *suite) {
	policy := resilience.Policy{Name: "p", Timeout: time.Second, Retry: resilience.Retry{Max: 2, Delay: 5 * time.Second}}
	o := &observation{}
	r := s.observedRunner(o, policy)
	n := 0
	err := r.Run(s.Context(), "p", func(ctx context.Context) error {
		if ctx.Value(observedKey{}) != o {
			s.Error("the context is not the observer's")
		}
		switch n++; n {
		case 1:
			return errOrdinary
		case 2:
			<-ctx.Done()
			return errors.New("late")
		}
		return nil
	})
	want := []string{
		"begin p", "retry 1 after 5s: ordinary", "attempt 2 timed out after 1s",
		"retry 2 after 5s: the attempt has timed out after 1s: late", "end success: <nil>",
	}
	if err != nil || !slices.Equal(o.lines, want) {
		s.Errorf("%v\n%s\nwant\n%s", err, strings.Join(o.lines, "\n"), strings.Join(want, "\n"))
	}
	o.lines = nil
	_ = r.Run(s.Context(), "p", s.failing(never, resilience.NonRetryable(errOrdinary)))
	ctx, cancel := context.WithCancelCause(s.Context())
	_ = r.Run(ctx, "p", func(context.Context) error {
		cancel(errStopped)
		return errStopped
	})
	want = []string{"begin p", "end failed: ordinary", "begin p", "end cancelled: stopped by its caller"}
	if !slices.Equal(o.lines, want) {
		s.Errorf("%s\nwant\n%s", strings.Join(o.lines, "\n"), strings.Join(want, "\n"))
	}
}
