package endpoint_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

var errImpatient = errors.New("impatient")

// impatient waits a second for the first call of next, and leaves it behind.
func impatient[T any](calls *atomic.Int64) pipeline.Behavior[T] {
	return func(next pipeline.Func[T]) pipeline.Func[T] {
		return func(ctx context.Context, in T) error {
			if calls.Add(1) > 1 {
				return next(ctx, in)
			}
			done := make(chan error, 1)
			go func() { done <- next(ctx, in) }()
			select {
			case err := <-done:
				return err
			case <-time.After(time.Second):
				return errImpatient
			}
		}
	}
}

func inline(cfg *endpoint.Config) {
	cfg.Recoverability.Policy = func(f recoverability.Failure) recoverability.Action {
		return recoverability.RetryInline{}
	}
}

// A call that a behavior has left behind has no effect on the limit of the next attempt.
func TestEachAttemptHasALimitOfItsOwn(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var log harness.Log
		var calls, handled atomic.Int64
		release := make(chan struct{})
		cfg := harness.Sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error {
			if handled.Add(1) == 1 {
				time.Sleep(2500 * time.Millisecond)
			} else {
				<-release
			}
			return nil
		}))
		cfg.HandlerTimeout = 3 * time.Second
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		inline(&cfg)
		cfg.Pipeline.Invoke.Use("impatient", impatient[*pipeline.Invoke](&calls))
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{})
		after(20 * time.Second)
		if handled.Load() != 2 {
			t.Fatalf("%d attempts", handled.Load())
		}
		if lines := log.Lines("a handler has not returned within its time limit"); len(lines) != 1 {
			t.Errorf("the log has %q", lines)
		}
		close(release)
	})
}
