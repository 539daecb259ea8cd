package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
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

func TestAFinalFailureSendsInOneUnitWithTheMove(t *testing.T) {
	for name, test := range map[string]struct {
		action recoverability.Action
		at     string
		sent   int
	}{
		"error queue": {recoverability.MoveToError{}, "error", 1},
		"dead letter": {recoverability.DeadLetter{Reason: "x"}, "sales.dead", 1},
		"discard":     {recoverability.Discard{Reason: "x"}, "", 1},
		"retry":       {recoverability.Retry{}, "", 0},
		"delay":       {recoverability.Delay{For: time.Minute}, "", 0},
	} {
		for _, without := range []inmemory.Capability{0, inmemory.Completer} {
			t.Run(fmt.Sprint(name, without), func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
					broker.Without = without
					var calls harness.Tally
					cfg := harness.Sales(broker, failing(&harness.Tally{}))
					cfg.Recoverability.Policy = func(f recoverability.Failure) recoverability.Action {
						if f.Immediate > 3 {
							return recoverability.Delay{For: time.Hour}
						}
						return test.action
					}
					cfg.OnFinalFailure = func(ctx context.Context, s *endpoint.Session, f recoverability.Failure) error {
						calls.Add(f.MessageID + " " + s.MessageID())
						return s.Send(ctx, harness.ShipOrder{ID: "sorry"})
					}
					harness.Start(t, cfg).MustSend(harness.PlaceOrder{}, endpoint.MessageID("m-1"))
					time.Sleep(time.Second)
					synctest.Wait()
					var want []string
					if test.sent > 0 {
						want = []string{"m-1 m-1"}
					}
					if diff := cmp.Diff(want, calls.List()); diff != "" {
						t.Error(diff)
					}
					if sent := len(broker.Messages("shipping")); sent != test.sent || test.at != "" && len(broker.Messages(test.at)) != 1 {
						t.Errorf("%d sent, %d in %q", sent, len(broker.Messages(test.at)), test.at)
					}
				})
			})
		}
	}
}

func TestAFinalFailureThatGoesWrongLeavesOutWhatItSent(t *testing.T) {
	var written atomic.Bool
	for name, f := range map[string]func(ctx context.Context, s *endpoint.Session) error{
		"an error": func(ctx context.Context, s *endpoint.Session) error {
			return errors.Join(s.Send(ctx, harness.ShipOrder{}), errNo)
		},
		"a panic": func(ctx context.Context, s *endpoint.Session) error { panic(s.Send(ctx, harness.ShipOrder{})) },
		"the end of its goroutine": func(ctx context.Context, s *endpoint.Session) error {
			defer runtime.Goexit()
			return s.Send(ctx, harness.ShipOrder{})
		},
		"a write, then an error that says nothing of the broker": func(ctx context.Context, s *endpoint.Session) error {
			return errors.Join(inmemory.OnCommit(ctx, s, func() { written.Store(true) }), context.DeadlineExceeded)
		},
		"a send to nowhere": func(ctx context.Context, s *endpoint.Session) error {
			return s.Send(ctx, harness.ShipOrder{}, endpoint.To("nowhere"))
		},
		"a write, then an error": func(ctx context.Context, s *endpoint.Session) error {
			return errors.Join(inmemory.OnCommit(ctx, s, func() { written.Store(true) }), errNo)
		},
		"a commit that fails": func(ctx context.Context, s *endpoint.Session) error {
			return inmemory.OnCommit(ctx, s, func() { panic("no") })
		},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				var calls, told harness.Tally
				cfg := harness.Sales(broker, failing(&harness.Tally{}))
				cfg.Transactions, cfg.Recoverability = endpoint.SendsAtomicWithReceive, once
				cfg.OnFinalFailure = func(ctx context.Context, s *endpoint.Session, _ recoverability.Failure) error {
					calls.Add("")
					return f(ctx, s)
				}
				cfg.Notify = telling(&told)
				harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
				time.Sleep(time.Minute)
				synctest.Wait()
				if got := len(broker.Messages("error")); got != 1 || len(broker.Messages("shipping")) != 0 || len(calls.List()) != 1 {
					t.Errorf("%d in the error queue, %d sent, called %d times", got, len(broker.Messages("shipping")), len(calls.List()))
				}
				if written.Load() {
					t.Error("what it wrote is there")
				}
				if diff := cmp.Diff([]string{"moved_to_error to error"}, told.List()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

func TestAFinalFailureIsCalledWhenTheRecoverStageFails(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls harness.Tally
		cfg := harness.Sales(broker, failing(&harness.Tally{}))
		cfg.Recoverability = once
		cfg.Pipeline.Recover.Use("fail", func(pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
			return func(context.Context, *pipeline.Recover) error { return errNo }
		})
		cfg.OnFinalFailure = func(ctx context.Context, s *endpoint.Session, _ recoverability.Failure) error {
			calls.Add("")
			return s.Send(ctx, harness.ShipOrder{})
		}
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := len(broker.Messages("error")); got != 1 || len(broker.Messages("shipping")) != 1 || len(calls.List()) != 1 {
			t.Errorf("%d in the error queue, %d sent, called %d times", got, len(broker.Messages("shipping")), len(calls.List()))
		}
	})
}

// The messages and writes of a final failure wait for a broker that does not answer.
func TestAFinalFailureWaitsForASilentBroker(t *testing.T) {
	for name, away := range map[string]error{
		"unknown": transport.ErrOutcomeUnknown, "unreachable": transport.ErrUnreachable, "late": context.DeadlineExceeded,
	} {
		for mode, tries := range map[endpoint.TransactionMode]int{endpoint.ReceiveOnly: 3, endpoint.SendsAtomicWithReceive: 1} {
			t.Run(fmt.Sprint(name, " ", mode), func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
					var asked, written harness.Tally
					broker.Fail = func(verb, _ string) error {
						if verb == "CompleteWith" && asked.Add("") <= tries {
							return away
						}
						return nil
					}
					cfg := harness.Sales(broker, failing(&harness.Tally{}))
					cfg.Transactions, cfg.Recoverability = mode, once
					cfg.OnFinalFailure = func(ctx context.Context, s *endpoint.Session, _ recoverability.Failure) error {
						if mode == endpoint.SendsAtomicWithReceive {
							if err := inmemory.OnCommit(ctx, s, func() { written.Add("") }); err != nil {
								return err
							}
						}
						return s.Send(ctx, harness.ShipOrder{})
					}
					harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
					time.Sleep(time.Minute)
					if failed, sent := len(broker.Messages("error")), len(broker.Messages("shipping")); failed != 1 || sent != 1 {
						t.Errorf("%d in the error queue, %d sent", failed, sent)
					}
					if n := len(written.List()); (n == 1) != (mode == endpoint.SendsAtomicWithReceive) {
						t.Errorf("written %d times", n)
					}
				})
			})
		}
	}
}

func TestAFinalFailureIsCalledForADelayThatIsRefused(t *testing.T) {
	for _, without := range []inmemory.Capability{0, inmemory.Completer} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			broker.Without = without
			broker.CreateQueues("sales")
			waiting(t, broker, "sales")
			broker.Fail = refusing(errNo, "sales")
			cfg := harness.Sales(broker, failing(&harness.Tally{}))
			cfg.Recoverability.Policy = func(recoverability.Failure) recoverability.Action { return recoverability.Delay{For: time.Minute} }
			cfg.Pipeline.Recover.Use("send", func(next pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
				return func(ctx context.Context, rec *pipeline.Recover) error {
					return errors.Join(rec.Sender().Send(ctx, harness.ShipOrder{ID: "stage"}), next(ctx, rec))
				}
			})
			cfg.OnFinalFailure = func(ctx context.Context, s *endpoint.Session, _ recoverability.Failure) error {
				return s.Send(ctx, harness.ShipOrder{ID: "final"})
			}
			harness.Start(t, cfg)
			time.Sleep(time.Minute)
			var sent []string
			for _, m := range broker.Messages("shipping") {
				sent = append(sent, string(m.Body))
			}
			if diff := cmp.Diff([]string{`{"ID":"stage"}`, `{"ID":"final"}`}, sent); diff != "" || len(broker.Messages("error")) != 1 {
				t.Errorf("without %b: %d in the error queue, sent %s", without, len(broker.Messages("error")), diff)
			}
		})
	}
}
