package endpoint_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

type (
	orderPaid struct{ ID string }
	orderSeen interface{ seen() string }
)

func (e *orderPaid) seen() string { return e.ID }

// raising is sales with functions for events, and a handler that raises one.
func raising(
	broker *inmemory.Transport, handle func(ctx context.Context, s *endpoint.Session, id string) error, raised ...endpoint.Raised,
) endpoint.Config {
	cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m harness.PlaceOrder) error {
		return handle(ctx, s, m.ID)
	}))
	cfg.Raised = raised
	cfg.Recoverability = recoverability.Config{Immediate: recoverability.None, Delayed: recoverability.None}
	return cfg
}

func raisePaid(ctx context.Context, s *endpoint.Session, id string) error {
	return s.Raise(ctx, orderPaid{id})
}

func TestRaisedEventsArePartOfTheHandler(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls []string
		note := func(name, id string) { calls = append(calls, name+" "+id) }
		r := harness.Start(t, raising(
			broker, func(ctx context.Context, s *endpoint.Session, id string) error {
				defer note("returned", id)
				return s.Raise(ctx, &orderPaid{id})
			},
			endpoint.OnRaised(func(ctx context.Context, s *endpoint.Session, e orderPaid) error {
				note("struct", e.ID)
				return s.Send(ctx, harness.ShipOrder(e))
			}),
			endpoint.OnRaised(func(_ context.Context, _ *endpoint.Session, e harness.ShipOrder) error {
				note("another", e.ID)
				return nil
			}),
			endpoint.OnRaised(func(_ context.Context, _ *endpoint.Session, e orderSeen) error {
				note("interface", e.seen())
				return nil
			}),
			endpoint.OnRaised(func(_ context.Context, _ *endpoint.Session, e *orderPaid) error {
				note("pointer", e.ID)
				return nil
			}),
		))
		r.MustSend(harness.PlaceOrder{ID: "7"})
		synctest.Wait()
		if diff := cmp.Diff([]string{"struct 7", "interface 7", "pointer 7", "returned 7"}, calls); diff != "" {
			t.Error(diff)
		}
		if n := len(broker.Messages("shipping")); n != 1 {
			t.Errorf("%d messages", n)
		}
	})
}

func TestAnErrorOfARaisedEventFailsTheMessage(t *testing.T) {
	for name, handle := range map[string]func(context.Context, *endpoint.Session, string) error{
		"returned": raisePaid,
		"dropped": func(ctx context.Context, s *endpoint.Session, id string) error {
			_ = s.Raise(ctx, orderPaid{id})
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				last := false
				r := harness.Start(t, raising(
					broker, handle,
					endpoint.OnRaised(func(ctx context.Context, s *endpoint.Session, e orderPaid) error {
						return errors.Join(s.Send(ctx, harness.ShipOrder(e)), errors.New("no ledger"))
					}),
					endpoint.OnRaised(func(context.Context, *endpoint.Session, orderPaid) error { panic("no statistics") }),
					endpoint.OnRaised(func(context.Context, *endpoint.Session, orderPaid) error {
						last = true
						return nil
					}),
				))
				r.MustSend(harness.PlaceOrder{ID: "7"})
				synctest.Wait()
				failed := broker.Messages("error")
				if len(failed) != 1 || !last || len(broker.Messages("shipping")) != 0 {
					t.Fatalf("%d failed, last called: %v, %d sent", len(failed), last, len(broker.Messages("shipping")))
				}
				text := failed[0].Headers.Get("NServiceBus.ExceptionInfo.Message")
				if !strings.Contains(text, "no ledger") || !strings.Contains(text, "no statistics") {
					t.Errorf("error %q", text)
				}
			})
		})
	}
}

func TestEventsInACircleAreAnError(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		calls := 0
		r := harness.Start(t, raising(broker, raisePaid,
			endpoint.OnRaised(func(ctx context.Context, s *endpoint.Session, e orderPaid) error {
				calls++
				return s.Raise(ctx, e)
			})))
		r.MustSend(harness.PlaceOrder{ID: "7"})
		synctest.Wait()
		failed := broker.Messages("error")
		if len(failed) != 1 || calls != 32 {
			t.Fatalf("%d failed, %d calls", len(failed), calls)
		}
		if text := failed[0].Headers.Get("NServiceBus.ExceptionInfo.Message"); !strings.Contains(text, "in a circle") {
			t.Errorf("error %q", text)
		}
	})
}

func TestRaiseStopsWhenItsContextEnds(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		calls := 0
		var got error
		r := harness.Start(t, raising(
			broker, func(ctx context.Context, s *endpoint.Session, id string) error {
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				got = s.Raise(context.WithValue(ctx, cancelKey{}, cancel), orderPaid{id})
				return got
			},
			endpoint.OnRaised(func(ctx context.Context, _ *endpoint.Session, _ orderPaid) error {
				calls++
				ctx.Value(cancelKey{}).(context.CancelFunc)()
				return nil
			}),
			endpoint.OnRaised(func(context.Context, *endpoint.Session, orderPaid) error {
				calls++
				return nil
			}),
		))
		r.MustSend(harness.PlaceOrder{ID: "7"})
		synctest.Wait()
		if calls != 1 || !errors.Is(got, context.Canceled) {
			t.Errorf("%d calls, %v", calls, got)
		}
	})
}

type cancelKey struct{}

func TestWhatIsNoEventIsRefused(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var session *endpoint.Session
		var errs []error
		r := harness.Start(t, raising(broker, func(ctx context.Context, s *endpoint.Session, _ string) error {
			session = s
			for _, e := range []any{nil, (*orderPaid)(nil), "text", new(int)} {
				errs = append(errs, s.Raise(ctx, e))
			}
			return nil
		}))
		r.MustSend(harness.PlaceOrder{ID: "7"})
		synctest.Wait()
		for i, err := range errs {
			if err == nil {
				t.Errorf("event %d is no error", i)
			}
		}
		if err := session.Raise(t.Context(), orderPaid{}); !errors.Is(err, endpoint.ErrSessionOver) {
			t.Errorf("after the end of the handler: %v", err)
		}
		if n := len(broker.Messages("error")); n != 1 {
			t.Errorf("%d failed", n)
		}
	})
}

func TestARecoveryRaisesNoEvents(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var errs []error
		called := false
		cfg := raising(
			broker, func(context.Context, *endpoint.Session, string) error { return errNo },
			endpoint.OnRaised(func(context.Context, *endpoint.Session, orderPaid) error {
				called = true
				return nil
			}))
		cfg.OnFinalFailure = func(ctx context.Context, s *endpoint.Session, _ recoverability.Failure) error {
			errs = append(errs, s.Raise(ctx, orderPaid{}))
			return nil
		}
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{ID: "7"})
		synctest.Wait()
		if len(errs) != 1 || errs[0] == nil || !strings.Contains(errs[0].Error(), "raise no events") || called {
			t.Errorf("errors %v, called: %v", errs, called)
		}
		if n := len(broker.Messages("error")); n != 1 {
			t.Errorf("%d failed", n)
		}
	})
}

// A behavior that calls the handlers again has a new chance.
func TestARepeatForgetsTheErrorOfARaisedEvent(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		calls := 0
		cfg := raising(
			broker, func(ctx context.Context, s *endpoint.Session, id string) error {
				_ = s.Raise(ctx, orderPaid{id})
				return nil
			},
			endpoint.OnRaised(func(ctx context.Context, s *endpoint.Session, e orderPaid) error {
				if calls++; calls == 1 {
					return errNo
				}
				return s.Send(ctx, harness.ShipOrder(e))
			}))
		cfg.Pipeline.Invoke.Use("again", again)
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{ID: "7"})
		synctest.Wait()
		if failed, sent := len(broker.Messages("error")), len(broker.Messages("shipping")); calls != 2 || failed != 0 || sent != 1 {
			t.Errorf("%d calls, %d failed, %d sent", calls, failed, sent)
		}
	})
}

func TestAnEventWithoutAFunctionIsNoError(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		r := harness.Start(t, raising(broker, raisePaid))
		r.MustSend(harness.PlaceOrder{ID: "7"})
		synctest.Wait()
		if n := len(broker.Messages("error")); n != 0 {
			t.Errorf("%d failed", n)
		}
	})
}

func TestMistakesInRaisedAreErrorsOfNew(t *testing.T) {
	for name, raised := range map[string]endpoint.Raised{
		"nil":           endpoint.OnRaised[orderPaid](nil),
		"no struct":     endpoint.OnRaised(func(context.Context, *endpoint.Session, int) error { return nil }),
		"zero Raised":   {},
		"pointer twice": endpoint.OnRaised(func(context.Context, *endpoint.Session, **orderPaid) error { return nil }),
	} {
		if _, err := endpoint.New(raising(&inmemory.Transport{}, raisePaid, raised)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
