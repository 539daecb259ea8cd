package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// shipping is a handler that sends one message.
func shipping() endpoint.Handler {
	return endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m harness.PlaceOrder) error {
		return s.Send(ctx, harness.ShipOrder(m))
	})
}

// onDispatch is a Dispatch stage with one behavior, for what belongs to a received message.
func onDispatch(f func(next func() error) error) (s pipeline.Stage[*pipeline.Dispatch]) {
	s.Use("test", func(next pipeline.Func[*pipeline.Dispatch]) pipeline.Func[*pipeline.Dispatch] {
		return func(ctx context.Context, d *pipeline.Dispatch) error {
			if d.Incoming == nil {
				return next(ctx, d)
			}
			return f(func() error { return next(ctx, d) })
		}
	})
	return s
}

func TestAMessageThatHasLeftIsNeverDealtWithAgain(t *testing.T) {
	for name, f := range map[string]func(next func() error) error{
		"next twice":       func(next func() error) error { return errors.Join(next(), next()) },
		"an error after":   func(next func() error) error { return errors.Join(next(), errNo) },
		"a panic after":    func(next func() error) error { panic(next()) },
		"next, then error": func(next func() error) error { return errors.Join(next(), next(), errNo) },
	} {
		for _, without := range []inmemory.Capability{0, inmemory.Completer} {
			t.Run(fmt.Sprint(name, without), func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
					broker.Without = without
					cfg := harness.Sales(broker, shipping())
					cfg.Recoverability = once
					cfg.Pipeline.Dispatch = onDispatch(f)
					harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
					synctest.Wait()
					shipped, failed, left := len(broker.Messages("shipping")), len(broker.Messages("error")), len(broker.Messages("sales"))
					if shipped != 1 || failed != 0 || left != 0 {
						t.Errorf("shipping has %d messages, error %d, sales %d, want one at shipping", shipped, failed, left)
					}
				})
			})
		}
	}
}

func TestADispatchThatFailedMayBeRepeatedByABehavior(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var tries harness.Tally
		broker.Fail = func(verb, object string) error {
			if verb == "Dispatch" && object == "shipping" && tries.Add(verb) == 1 {
				return errNo
			}
			return nil
		}
		cfg := harness.Sales(broker, shipping())
		cfg.Recoverability = once
		cfg.Pipeline.Dispatch = onDispatch(func(next func() error) error {
			if next() == nil {
				return errors.New("the first time went well")
			}
			return next()
		})
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
		synctest.Wait()
		if shipped, failed := len(broker.Messages("shipping")), len(broker.Messages("error")); shipped != 1 || failed != 0 {
			t.Errorf("shipping has %d messages, error %d, want one at shipping", shipped, failed)
		}
	})
}

// A Recover behavior that calls next twice moves the message once.
func TestNextCalledTwiceMovesTheMessageOnce(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Without = inmemory.Completer
		cfg := harness.Sales(broker, failing(&harness.Tally{}))
		cfg.Recoverability = once
		cfg.Pipeline.Recover.Use("twice", func(next pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
			return func(ctx context.Context, rec *pipeline.Recover) error {
				return errors.Join(next(ctx, rec), next(ctx, rec))
			}
		})
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
		synctest.Wait()
		if got := len(broker.Messages("error")); got != 1 {
			t.Errorf("the error queue has %d messages, want 1", got)
		}
	})
}

// Messages and writes of the Recover stage cannot keep the message in its queue.
func TestSendsOfTheRecoverStageKeepNoMessage(t *testing.T) {
	for name, behave := range map[string]func(ctx context.Context, s *endpoint.Session) error{
		"a send to nowhere": func(ctx context.Context, s *endpoint.Session) error {
			return s.Send(ctx, harness.ShipOrder{}, endpoint.To("nowhere"))
		},
		"a commit that fails": func(ctx context.Context, s *endpoint.Session) error {
			return inmemory.OnCommit(ctx, s, func() { panic(errNo) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				cfg := harness.Sales(broker, failing(&harness.Tally{}))
				cfg.Recoverability, cfg.Transactions = once, endpoint.SendsAtomicWithReceive
				cfg.Pipeline.Recover.Use("mine", func(next pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
					return func(ctx context.Context, rec *pipeline.Recover) error {
						if err := behave(ctx, rec.Sender().(*endpoint.Session)); err != nil {
							return err
						}
						return next(ctx, rec)
					}
				})
				harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
				synctest.Wait()
				if got := len(broker.Messages("error")); got != 1 {
					t.Errorf("the error queue has %d messages, want 1", got)
				}
			})
		})
	}
}

// A panic of the driver during a move counts as an error of the move.
func TestADriverPanicDuringAMoveIsAnError(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var moves harness.Tally
		broker.Fail = func(verb, object string) error {
			if verb == "Dispatch" && object == "error" && moves.Add(verb) == 1 {
				panic("oh")
			}
			return nil
		}
		cfg := harness.Sales(broker, failing(&harness.Tally{}))
		cfg.Recoverability = once
		cfg.Pipeline.Recover.Use("end", func(pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
			return func(context.Context, *pipeline.Recover) error { return nil }
		})
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
		time.Sleep(time.Minute)
		if got := len(broker.Messages("error")); got != 1 || len(moves.List()) != 2 {
			t.Errorf("the error queue has %d messages after %d moves", got, len(moves.List()))
		}
	})
}

func TestASessionOfAFailedHandlerSendsNothingLate(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		late := make(chan error, 1)
		var kept *endpoint.Session
		cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
			kept = s
			return errNo
		}))
		cfg.Recoverability = once
		cfg.Pipeline.Recover.Use("late", func(next pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
			return func(ctx context.Context, rec *pipeline.Recover) error {
				late <- kept.Send(ctx, harness.ShipOrder{}) // as a goroutine left behind by the handler would
				return next(ctx, rec)
			}
		})
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
		if err := <-late; !errors.Is(err, endpoint.ErrSessionOver) {
			t.Errorf("got %v, want ErrSessionOver", err)
		}
		synctest.Wait()
		if shipped, failed := len(broker.Messages("shipping")), len(broker.Messages("error")); shipped != 0 || failed != 1 {
			t.Errorf("shipping has %d messages, error %d", shipped, failed)
		}
	})
}

// A handler that ends its goroutine fails its message, and no other.
func TestGoexitFailsOnlyItsMessage(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var handled harness.Tally
		cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m harness.PlaceOrder) error {
			if m.ID == "bad" {
				runtime.Goexit() // as FailNow does in a test
			}
			handled.Add(m.ID)
			return nil
		}))
		cfg.Recoverability, cfg.Concurrency = once, 1
		r := harness.Start(t, cfg)
		for _, id := range []string{"bad", "good", "bad", "good"} {
			r.MustSend(harness.PlaceOrder{ID: id})
		}
		synctest.Wait()
		if diff := cmp.Diff([]string{"good", "good"}, handled.List()); diff != "" {
			t.Error(diff)
		}
		if got := len(broker.Messages("error")); got != 2 {
			t.Errorf("the error queue has %d messages, want 2", got)
		}
	})
}

func TestAHandlerThatFinishesAfterTheCutCommits(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var written harness.Tally
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m harness.PlaceOrder) error {
			err := inmemory.OnCommit(ctx, s, func() { written.Add(m.ID) })
			<-ctx.Done()
			return err
		}))
		cfg.Transactions, cfg.StopTimeout = endpoint.SendsAtomicWithReceive, time.Second
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{ID: "7"})
		synctest.Wait()
		r.End()
		if len(written.List()) != 1 || len(broker.Messages("sales")) != 0 {
			t.Errorf("written %q, %d messages left", written.List(), len(broker.Messages("sales")))
		}
	})
}

func TestAStopDoesNotWaitForAMessageThatIsHeld(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Without = inmemory.DeadLetterer
		broker.Fail = func(verb, object string) error {
			if verb == "Dispatch" && object == "error" {
				return transport.ErrNoQueue
			}
			return nil
		}
		cfg := harness.Sales(broker, failing(&harness.Tally{}))
		cfg.Recoverability, cfg.StopTimeout = once, endpoint.None
		r := harness.Start(t, cfg)
		for range 20 {
			r.MustSend(harness.PlaceOrder{})
		}
		synctest.Wait()
		begin := time.Now()
		r.End()
		if took := time.Since(begin); took > 0 {
			t.Errorf("the stop took %v", took)
		}
		time.Sleep(31 * time.Second)
		if got := len(broker.Messages("sales")); got != 20 {
			t.Errorf("%d messages are back in their queue, want 20", got)
		}
	})
}

func TestWithoutABrokersCountFailuresAreThoseOfOneCycle(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Without = inmemory.Exact
		var calls harness.Tally
		cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m harness.PlaceOrder) error {
			if calls.Add(m.ID)%3 != 0 {
				return errNo
			}
			return nil
		}))
		cfg.Recoverability = recoverability.Config{Immediate: 2, Delayed: recoverability.None}
		r := harness.Start(t, cfg)
		for range 3 { // each succeeds at its third attempt
			r.MustSend(harness.PlaceOrder{}, endpoint.MessageID("the same"))
			synctest.Wait()
		}
		if n, failed := len(calls.List()), len(broker.Messages("error")); n != 9 || failed != 0 {
			t.Errorf("%d attempts, %d messages in the error queue, want 9 and 0", n, failed)
		}
	})
}

// A move that fails does not restore the retries of the message.
func TestAFailedMoveRestoresNoRetries(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Without = inmemory.Exact
		broker.Fail = func(verb, object string) error {
			if verb == "Dispatch" && object == "error" {
				return transport.ErrNoQueue
			}
			return nil
		}
		var calls harness.Tally
		cfg := harness.Sales(broker, failing(&calls))
		cfg.Recoverability = recoverability.Config{Immediate: 5, Delayed: recoverability.None}
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
		time.Sleep(10 * time.Minute)
		if n := len(calls.List()); n > 60 {
			t.Errorf("%d attempts in ten minutes", n)
		}
	})
}
