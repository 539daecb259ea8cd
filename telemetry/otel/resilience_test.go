package otel_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/holdfast-go/holdfast/resilience"
	"github.com/holdfast-go/holdfast/telemetry/otel"
)

var (
	errBroken   = errors.New("the service is away")
	errNoReason = errors.New("the caller has left")
)

// policies returns a plain runner of one policy, "call", that is observed.
func (tel *telemetry) policies(p resilience.Policy) resilience.Runner {
	tel.t.Helper()
	p.Name = "call"
	if p.Retry == (resilience.Retry{}) {
		p.Timeout = time.Minute
	}
	c, err := resilience.NewCatalog(p)
	if err != nil {
		tel.t.Fatal(err)
	}
	return resilience.NewRunner(c, otel.NewObserver(tel.options))
}

// events returns name and attributes of the events of a span, one line each.
func events(s sdktrace.ReadOnlySpan) (lines []string) {
	for _, e := range s.Events() {
		line := e.Name
		for _, a := range told(e.Attributes) {
			line += " " + a
		}
		lines = append(lines, line)
	}
	return lines
}

func TestAnExecutionOfAPolicyIsTracedAndMeasured(t *testing.T) {
	const timedOut = "*resilience.TimeoutError"
	for _, test := range []struct {
		name    string
		policy  resilience.Policy
		outcome string
		status  codes.Code
		text    string
		events  []string
		retries float64
		took    float64 // s
		fn      func(ctx context.Context, leave context.CancelCauseFunc) error
	}{
		{
			name: "success at once", outcome: "success", status: codes.Unset,
			fn: func(context.Context, context.CancelCauseFunc) error { return nil },
		},
		{
			name: "success after a time-out", outcome: "success", status: codes.Unset, retries: 2, took: 12,
			policy: resilience.Policy{Timeout: 2 * time.Second, Retry: resilience.Retry{Delay: 5 * time.Second}},
			events: []string{
				"resilience timeout holdfast.attempt=1 resilience.timeout_ms=2000",
				"resilience retry exception.type=" + timedOut + " resilience.retry.attempt=1 resilience.retry.delay_ms=5000",
				"resilience retry exception.type=*errors.errorString resilience.retry.attempt=2 resilience.retry.delay_ms=5000",
			},
			fn: func(ctx context.Context, _ context.CancelCauseFunc) error {
				switch n, _ := resilience.Attempt(ctx); n {
				case 1:
					<-ctx.Done()
					return ctx.Err()
				case 2:
					return errBroken
				}
				return nil
			},
		},
		{
			name: "failure", outcome: "failed", status: codes.Error, text: "the service is away", retries: 1, took: 0.5,
			policy: resilience.Policy{Retry: resilience.Retry{Max: 1, Delay: 500 * time.Millisecond}},
			events: []string{
				"resilience retry exception.type=*errors.errorString resilience.retry.attempt=1 resilience.retry.delay_ms=500",
				"exception exception.message=the service is away exception.type=*errors.errorString",
			},
			fn: func(context.Context, context.CancelCauseFunc) error { return errBroken },
		},
		{
			name: "the caller leaves", outcome: "cancelled", status: codes.Error, text: "the caller has left\nthe service is away",
			fn: func(_ context.Context, leave context.CancelCauseFunc) error {
				leave(errNoReason)
				return errBroken
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tel := newTelemetry(t)
				ctx, leave := context.WithCancelCause(t.Context())
				defer leave(nil)
				_ = tel.policies(test.policy).Run(ctx, "call", func(ctx context.Context) error { return test.fn(ctx, leave) })

				span := tel.only("resilience call")
				if got := span.Status(); got.Code != test.status || got.Description != test.text {
					t.Errorf("status %+v, want %v %q", got, test.status, test.text)
				}
				attributes := "resilience.policy.name=call,resilience.policy.outcome=" + test.outcome + "}"
				want := []string{"resilience.policy.name=call", "resilience.policy.outcome=" + test.outcome}
				if diff := cmp.Diff(want, told(span.Attributes())); diff != "" {
					t.Errorf("attributes: %s", diff)
				}
				if diff := cmp.Diff(test.events, events(span)); diff != "" {
					t.Errorf("events: %s", diff)
				}
				points := map[string]float64{
					"resilience.policy.execution.count{" + attributes:          1,
					"resilience.policy.execution.duration.count{" + attributes: 1,
					"resilience.policy.execution.duration.sum{" + attributes:   test.took,
				}
				if test.retries > 0 {
					points["resilience.policy.retry.count{resilience.policy.name=call}"] = test.retries
				}
				if diff := cmp.Diff(points, tel.metrics()); diff != "" {
					t.Errorf("metrics: %s", diff)
				}
			})
		})
	}
}

func TestASpanOfAFunctionIsBelowThatOfItsPolicy(t *testing.T) {
	tel := newTelemetry(t)
	err := tel.policies(resilience.Policy{}).Run(t.Context(), "call", func(ctx context.Context) error {
		_, span := tel.traces.Tracer("test").Start(ctx, "GET")
		span.End()
		return nil
	})
	if want := "resilience call (internal)\n  GET (internal)\n"; err != nil || tel.tree() != want {
		t.Errorf("error %v, spans:\n%s\nwant:\n%s", err, tel.tree(), want)
	}
}

func TestAPanicEndsTheSpanOfItsPolicy(t *testing.T) {
	tel := newTelemetry(t)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic did not pass")
			}
		}()
		_ = tel.policies(resilience.Policy{}).Run(t.Context(), "call", func(context.Context) error { panic("boom") })
	}()
	want := []string{"exception exception.message=the function panicked exception.type=*errors.errorString"}
	if diff := cmp.Diff(want, events(tel.only("resilience call"))); diff != "" {
		t.Error(diff)
	}
}

// panickingError panics when it is looked at.
type panickingError struct{}

func (panickingError) Error() string { panic("no text") }
func (panickingError) Unwrap() error { panic("no error") }

func TestAnErrorWithPanickingMethodsIsReported(t *testing.T) {
	tel := newTelemetry(t)
	err := tel.policies(resilience.Policy{Retry: resilience.Retry{Max: resilience.None}}).
		Run(t.Context(), "call", func(context.Context) error { return panickingError{} })
	if _, ok := err.(panickingError); !ok { //nolint:errorlint // as it is
		t.Errorf("the error is a %T", err)
	}
	want := []string{"exception exception.message=otel_test.panickingError exception.type=otel_test.panickingError"}
	if diff := cmp.Diff(want, events(tel.only("resilience call"))); diff != "" {
		t.Error(diff)
	}
}
