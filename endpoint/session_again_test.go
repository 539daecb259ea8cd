package endpoint_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// around is a stage with one behavior, which gets the session of the message, and a next that
// recovers from panics.
func around[T any](receive func(T) *pipeline.Receive, f func(ctx context.Context, s *endpoint.Session, next func() error) error) (s pipeline.Stage[T]) {
	s.Use("again", func(next pipeline.Func[T]) pipeline.Func[T] {
		return func(ctx context.Context, in T) error {
			return f(ctx, receive(in).Sender().(*endpoint.Session), func() (err error) {
				defer func() {
					if v := recover(); v != nil {
						err = fmt.Errorf("recovered: %v", v)
					}
				}()
				return next(ctx, in)
			})
		}
	})
	return s
}

func ofLogical(l *pipeline.Logical) *pipeline.Receive { return l.Receive }
func ofInvoke(i *pipeline.Invoke) *pipeline.Receive   { return i.Receive }

// A failed call of handlers leaves no writes, whatever a behavior does after it.
func TestAFailedCallOfHandlersLeavesNoWrites(t *testing.T) {
	twice := func(_ context.Context, _ *endpoint.Session, next func() error) error {
		if next() == nil {
			return nil
		}
		return next()
	}
	begun := func(ctx context.Context, s *endpoint.Session, next func() error) error {
		if _, err := s.Tx(ctx); err != nil {
			return err
		}
		return twice(ctx, s, next)
	}
	dropping := func(_ context.Context, _ *endpoint.Session, next func() error) error {
		_ = next()
		return nil
	}
	noted := false
	type test struct {
		name    string
		change  func(*endpoint.Config, endpoint.Handler)
		written []string // nil: the message fails
	}
	logical := func(f func(context.Context, *endpoint.Session, func() error) error) func(*endpoint.Config, endpoint.Handler) {
		return func(cfg *endpoint.Config, _ endpoint.Handler) { cfg.Pipeline.Logical = around(ofLogical, f) }
	}
	invoke := func(f func(context.Context, *endpoint.Session, func() error) error) func(*endpoint.Config, endpoint.Handler) {
		return func(cfg *endpoint.Config, _ endpoint.Handler) { cfg.Pipeline.Invoke = around(ofInvoke, f) }
	}
	for _, test := range []test{
		{"all handlers again", logical(twice), []string{"call 2"}},
		{"one handler again", invoke(twice), []string{"call 2"}},
		{"all handlers again in an open transaction", logical(begun), nil},
		{"one handler again in an open transaction", invoke(begun), nil},
		{"the error is dropped", logical(dropping), []string{}},
		{"a write of the behavior after the error", logical(func(ctx context.Context, s *endpoint.Session, next func() error) error {
			if next() == nil {
				return nil
			}
			return inmemory.OnCommit(ctx, s, func() { noted = true })
		}), []string{}},
		{"the second handler again, in the transaction of the first", func(cfg *endpoint.Config, first endpoint.Handler) {
			cfg.Handlers = slices.Insert(cfg.Handlers, 0, first)
			cfg.Pipeline.Invoke = around(ofInvoke, twice)
		}, nil},
		{"both handlers again", func(cfg *endpoint.Config, first endpoint.Handler) {
			cfg.Handlers = slices.Insert(cfg.Handlers, 0, first)
			cfg.Pipeline.Logical = around(ofLogical, twice)
		}, []string{"first", "call 2"}},
	} {
		for _, panics := range []bool{false, true} {
			t.Run(fmt.Sprint(test.name, " panics ", panics), func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
					var calls, written harness.Tally
					write := func(ctx context.Context, s *endpoint.Session, text string) {
						if err := inmemory.OnCommit(ctx, s, func() { written.Add(text) }); err != nil {
							t.Error(err)
						}
					}
					cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
						n := calls.Add(o.ID)
						write(ctx, s, "call "+string(rune('0'+n)))
						if n == 1 && panics {
							panic(errNo)
						}
						if n == 1 {
							return errNo
						}
						return nil
					}))
					cfg.Transactions, cfg.Recoverability = endpoint.SendsAtomicWithReceive, once
					test.change(&cfg, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
						write(ctx, s, "first")
						return nil
					}))
					harness.Start(t, cfg).MustSend(harness.PlaceOrder{ID: "m"})
					time.Sleep(time.Minute)
					synctest.Wait()
					if wants := strings.HasPrefix(test.name, "a write of the behavior"); noted != wants {
						t.Errorf("the behavior has written: %v", noted)
					}
					noted = false
					if got := written.List(); !slices.Equal(got, test.written) {
						t.Errorf("written: %q, want %q", got, test.written)
					}
					failed := broker.Messages("error")
					if test.written != nil && len(failed) > 0 {
						t.Errorf("the message has failed: %s", failed[0].Headers.Get(header.ExceptionMessage))
					}
					if test.written == nil && (len(failed) != 1 || !strings.Contains(failed[0].Headers.Get(header.ExceptionMessage), "calls next again")) {
						t.Errorf("%d messages are in the error queue, want one with the reason", len(failed))
					}
				})
			})
		}
	}
}
