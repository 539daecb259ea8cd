package endpoint_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

var errNo = errors.New("the bank says no")

func failing(calls *harness.Tally) endpoint.Handler {
	return endpoint.Handle(func(_ context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
		calls.Add(fmt.Sprint(s.Attempt().N))
		return errNo
	})
}

// A message that always fails is attempted exactly as often as configured.
func TestRetriesAreMadeExactlyAsConfigured(t *testing.T) {
	for _, exact := range []bool{true, false} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			if !exact {
				broker.Without = inmemory.Exact
			}
			var calls harness.Tally
			r := harness.Start(t, harness.Sales(broker, failing(&calls)))
			begin := time.Now()
			r.MustSend(harness.PlaceOrder{ID: "7"})
			time.Sleep(10 * time.Minute)
			if got := len(calls.List()); got != 24 {
				t.Errorf("exact %v: %d attempts, want (5+1)·(3+1) = 24", exact, got)
			}
			failed := broker.Messages("error")
			if len(failed) != 1 {
				t.Fatalf("the error queue has %d messages, want 1", len(failed))
			}
			h := failed[0].Headers
			for name, want := range map[string]string{
				header.FailedQ:            "sales",
				header.ProcessingEndpoint: "sales",
				header.TimeOfFailure:      header.FormatTime(begin.Add(60 * time.Second)),
				header.HoldfastFaultFirst: header.FormatTime(begin),
			} {
				if got := h.Get(name); got != want {
					t.Errorf("%s is %q, want %q", name, got, want)
				}
			}
			if text := h.Get(header.ExceptionMessage); !strings.HasPrefix(text, "handler endpoint_test.") || !strings.HasSuffix(text, ": the bank says no") {
				t.Errorf("error text %q", text)
			}
			for _, name := range []string{header.Retries, header.RetriesTimestamp, header.HoldfastFirstFailure} {
				if v, ok := h.Lookup(name); ok {
					t.Errorf("the error copy still has %s %q", name, v)
				}
			}
			if string(failed[0].Body) != `{"ID":"7"}` {
				t.Errorf("body %s", failed[0].Body)
			}
		})
	}
}

// A message keeps its identity over delayed retries and in the error queue.
func TestAMessageKeepsItsIDOverDelaysAndTheErrorQueue(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var ids harness.Tally
		r := harness.Start(t, harness.Sales(broker, endpoint.Handle(func(_ context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
			ids.Add(s.MessageID() + " " + s.Header(header.MessageID))
			return errNo
		})))
		r.MustSend(harness.PlaceOrder{}, endpoint.MessageID("order-7"))
		time.Sleep(10 * time.Minute)
		for _, id := range ids.List() {
			if id != "order-7 order-7" {
				t.Fatalf("an attempt saw the id %q", id)
			}
		}
		if got := broker.Messages("error"); len(got) != 1 || got[0].ID != "order-7" {
			t.Errorf("error queue: %v", got)
		}
	})
}

func TestWhatCannotEverWorkGoesToTheErrorQueueAtOnce(t *testing.T) {
	for name, m := range map[string]*transport.Message{
		"unknown type":    native("Shop.Unheard", "application/json", `{}`),
		"no type":         native("", "application/json", `{}`),
		"no handler":      native("Shop.ShipOrder", "application/json", `{}`),
		"bad JSON":        native("Shop.PlaceOrder", "application/json", `{"ID":`),
		"empty body":      native("Shop.PlaceOrder", "application/json", ``),
		"wrong JSON type": native("Shop.PlaceOrder", "application/json", `{"ID":7}`),
		"content type":    native("Shop.PlaceOrder", "text/xml", `<order/>`),
		"undecodable":     {NativeID: "n1", Undecodable: errors.New("headers are no JSON"), Body: []byte("??")},
		"unrecoverable":   native("Shop.PlaceOrder", "application/json", `{"ID":"never"}`),
		"panic in a goroutine's result": native("Shop.PlaceOrder", "application/json; charset=utf-8",
			`{"ID":"never"}`),
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				var calls harness.Tally
				harness.Start(t, harness.Sales(broker, endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m harness.PlaceOrder) error {
					calls.Add(m.ID)
					return recoverability.Unrecoverable(errNo)
				})))
				if err := broker.Put("sales", m); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				failed := broker.Messages("error")
				if len(failed) != 1 || failed[0].Headers.Get(header.FailedQ) != "sales" || failed[0].Headers.Get(header.ExceptionMessage) == "" {
					t.Fatalf("error queue: %v", failed)
				}
				if !bytes.Equal(failed[0].Body, m.Body) {
					t.Errorf("body %q became %q", m.Body, failed[0].Body)
				}
				if len(calls.List()) > 1 {
					t.Errorf("it was handled %d times", len(calls.List()))
				}
			})
		})
	}
}

func native(types, contentType, body string) *transport.Message {
	m := &transport.Message{ID: "n1", Body: []byte(body)}
	if types != "" {
		m.Headers.Set(header.EnclosedMessageTypes, types+", Shop.Messages, Version=1.0.0.0")
	}
	m.Headers.Set(header.ContentType, contentType)
	return m
}

func TestAPanicIsAFailureWithItsStack(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		cfg := harness.Sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error { panic(errNo) }))
		cfg.Recoverability = once
		var got error
		cfg.Recoverability.Policy = func(f recoverability.Failure) recoverability.Action {
			got = f.Err
			return recoverability.MoveToError{}
		}
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
		synctest.Wait()
		var p *recoverability.PanicError
		if !errors.As(got, &p) || !errors.Is(got, errNo) {
			t.Fatalf("the policy saw %v", got)
		}
		failed := broker.Messages("error")
		if len(failed) != 1 || !strings.Contains(failed[0].Headers.Get(header.ExceptionStackTrace), "recover_test.go") {
			t.Errorf("no stack in %v", failed)
		}
	})
}

// While the error queue is missing, no message is lost and no handler is called again.
func TestAMissingErrorQueueLosesNothing(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Without = inmemory.DeadLetterer
		var missing atomic.Bool
		missing.Store(true)
		broker.Fail = func(verb, object string) error {
			if verb == "Dispatch" && object == "error" && missing.Load() {
				return transport.ErrNoQueue
			}
			return nil
		}
		var calls harness.Tally
		cfg := harness.Sales(broker, failing(&calls))
		cfg.Recoverability = once
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{})
		time.Sleep(10 * time.Minute)
		if n := len(calls.List()); n != 1 {
			t.Errorf("%d attempts in ten minutes, want 1", n)
		}
		missing.Store(false)
		time.Sleep(time.Minute)
		if got := len(broker.Messages("error")); got != 1 {
			t.Errorf("the error queue has %d messages, want 1", got)
		}
	})
}

// A missing destination fails the message, and no message of the attempt is sent.
func TestAMissingDestinationSendsNothing(t *testing.T) {
	for _, without := range []inmemory.Capability{0, inmemory.Completer} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			broker.Without = without
			cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m harness.PlaceOrder) error {
				return s.Send(ctx, harness.ShipOrder(m), endpoint.To("nowhere"))
			}))
			cfg.Recoverability = once
			harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
			synctest.Wait()
			failed := broker.Messages("error")
			if len(failed) != 1 || !strings.Contains(failed[0].Headers.Get(header.ExceptionMessage), "no such queue") {
				t.Errorf("error queue: %v", failed)
			}
		})
	}
}

// If the transport has no delays, a message moves to the error queue after its immediate
// retries.
func TestWithoutDelaysOnlyImmediateRetriesAreMade(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Without = inmemory.Delay
		var calls harness.Tally
		r := harness.Start(t, harness.Sales(broker, failing(&calls)))
		r.MustSend(harness.PlaceOrder{})
		synctest.Wait()
		if len(calls.List()) != 6 || len(broker.Messages("error")) != 1 {
			t.Errorf("%d attempts, %d in the error queue", len(calls.List()), len(broker.Messages("error")))
		}
		if err := r.Send(t.Context(), harness.PlaceOrder{}, endpoint.After(time.Second)); err == nil {
			t.Error("a delayed send was accepted")
		}
	})
}

// If an action cannot be carried out, the message moves to the error queue.
func TestAnImpossibleActionMovesToTheErrorQueue(t *testing.T) {
	for name, policy := range map[string]recoverability.Policy{
		"dead letter without a queue for it": func(recoverability.Failure) recoverability.Action {
			return recoverability.DeadLetter{Reason: "no"}
		},
		"delay beyond the transport": func(recoverability.Failure) recoverability.Action {
			return recoverability.Delay{For: 48 * time.Hour}
		},
		"nil":   func(recoverability.Failure) recoverability.Action { return nil },
		"panic": func(recoverability.Failure) recoverability.Action { panic("oh") },
		"end of its goroutine": func(recoverability.Failure) recoverability.Action {
			runtime.Goexit()
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				broker.Without, broker.MaxDelay = inmemory.DeadLetterer, time.Hour
				cfg := harness.Sales(broker, failing(&harness.Tally{}))
				cfg.Recoverability.Policy = policy
				harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
				synctest.Wait()
				if got := len(broker.Messages("error")); got != 1 {
					t.Errorf("the error queue has %d messages, want 1", got)
				}
			})
		})
	}
}

func TestTheRecoverStageMayDecideOtherwiseAndSend(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls harness.Tally
		cfg := harness.Sales(broker, failing(&calls))
		cfg.Pipeline.Recover.Use("give up", func(next pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
			return func(ctx context.Context, rec *pipeline.Recover) error {
				rec.Action = recoverability.MoveToError{Queue: "other"}
				rec.Fault.Set("ticket", "T-1")
				if err := rec.Sender().Send(ctx, harness.ShipOrder{ID: "cancel"}); err != nil {
					return err
				}
				return next(ctx, rec)
			}
		})
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
		synctest.Wait()
		moved := broker.Messages("other")
		if len(calls.List()) != 1 || len(moved) != 1 || moved[0].Headers.Get("ticket") != "T-1" {
			t.Errorf("%d attempts, moved %v", len(calls.List()), moved)
		}
		if got := len(broker.Messages("shipping")); got != 1 {
			t.Errorf("%d messages sent by the behavior, want 1", got)
		}
	})
}

// An action that does not complete the message with a copy sends the messages of the stage too.
func TestTheRecoverStageSendsWithoutACopy(t *testing.T) {
	for _, action := range []recoverability.Action{
		recoverability.Retry{}, recoverability.RetryInline{}, recoverability.DeadLetter{Reason: "no"},
	} {
		t.Run(fmt.Sprintf("%T", action), func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				var calls harness.Tally
				cfg := harness.Sales(broker, failing(&calls))
				cfg.Recoverability = once
				cfg.Pipeline.Recover.Use("send", func(next pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
					return func(ctx context.Context, rec *pipeline.Recover) error {
						if len(calls.List()) > 1 {
							return next(ctx, rec)
						}
						rec.Action = action
						return errors.Join(rec.Sender().Send(ctx, harness.ShipOrder{}), next(ctx, rec))
					}
				})
				harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
				synctest.Wait()
				if got := len(broker.Messages("shipping")); got != 1 {
					t.Errorf("%d messages sent by the behavior, want 1", got)
				}
			})
		})
	}
}

// A Recover behavior that fails or does not call next does not keep the message in its
// queue.
func TestAFailingRecoverBehaviorKeepsNoMessage(t *testing.T) {
	for name, f := range map[string]func() error{
		"error": func() error { return errNo },
		"stop":  func() error { return nil },
		"panic": func() error { panic("oh") },
		"end of its goroutine": func() error {
			runtime.Goexit()
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				cfg := harness.Sales(broker, failing(&harness.Tally{}))
				cfg.Recoverability = once
				cfg.Pipeline.Recover.Use("broken", func(pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
					return func(context.Context, *pipeline.Recover) error { return f() }
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

// A Recover behavior that fails after the move neither undoes the move nor reports another.
func TestAFailureAfterTheMoveUndoesNothing(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var log harness.Log
		cfg := harness.Sales(broker, failing(&harness.Tally{}))
		cfg.Recoverability = once
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		cfg.Pipeline.Recover.Use("late", func(next pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
			return func(ctx context.Context, rec *pipeline.Recover) error {
				return errors.Join(rec.Sender().Send(ctx, harness.ShipOrder{}), next(ctx, rec), errNo)
			}
		})
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
		synctest.Wait()
		if shipped, failed := len(broker.Messages("shipping")), len(broker.Messages("error")); shipped != 1 || failed != 1 {
			t.Errorf("%d sent, %d in the error queue", shipped, failed)
		}
		if text := log.String(); strings.Contains(text, "discarded") || !strings.Contains(text, "after its message was settled") {
			t.Errorf("the log says\n%s", text)
		}
	})
}

func TestTransactionsNoneHandlesAtMostOnce(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls harness.Tally
		var log harness.Log
		cfg := harness.Sales(broker, failing(&calls))
		cfg.Transactions = endpoint.None
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{})
		synctest.Wait()
		if strings.Contains(log.String(), "cannot be carried out") {
			t.Errorf("the default policy wants what the mode has not:\n%s", log.String())
		}
		if len(calls.List()) != 1 || len(broker.Messages("error")) != 1 {
			t.Errorf("%d attempts, %d in the error queue", len(calls.List()), len(broker.Messages("error")))
		}
	})
}

func TestAtomicHandlersCommitTogetherOrNotAtAll(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var written harness.Tally
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m harness.PlaceOrder) error {
			if err := inmemory.OnCommit(ctx, s, func() { written.Add(m.ID) }); err != nil {
				return err
			}
			if err := s.Send(ctx, harness.ShipOrder(m)); err != nil {
				return err
			}
			if s.Attempt().N == 1 {
				return errNo
			}
			return nil
		}))
		cfg.Transactions = endpoint.SendsAtomicWithReceive
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{ID: "7"})
		synctest.Wait()
		if diff := cmp.Diff([]string{"7"}, written.List()); diff != "" {
			t.Error(diff)
		}
		if got := len(broker.Messages("shipping")); got != 1 {
			t.Errorf("%d messages left, want 1", got)
		}
	})
}

func TestWhatTheRecoverStageWritesGoesWithTheMove(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var written harness.Tally
		cfg := harness.Sales(broker, failing(&harness.Tally{}))
		cfg.Transactions = endpoint.SendsAtomicWithReceive
		cfg.Recoverability = recoverability.Config{Immediate: 2, Delayed: recoverability.None}
		cfg.Pipeline.Recover.Use("ledger", func(next pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
			return func(ctx context.Context, rec *pipeline.Recover) error {
				s := rec.Sender().(*endpoint.Session)
				if err := inmemory.OnCommit(ctx, s, func() { written.Add(rec.Action.String()) }); err != nil {
					return err
				}
				return next(ctx, rec)
			}
		})
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
		synctest.Wait()
		if diff := cmp.Diff([]string{`move to error queue "error"`}, written.List()); diff != "" {
			t.Error(diff)
		}
		if got := len(broker.Messages("error")); got != 1 {
			t.Errorf("the error queue has %d messages, want 1", got)
		}
	})
}
