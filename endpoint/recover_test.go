package endpoint_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

var errNo = errors.New("the bank says no")

func failing(calls *tally) endpoint.Handler {
	return endpoint.Handle(func(_ context.Context, s *endpoint.Session, _ placeOrder) error {
		calls.add(fmt.Sprint(s.Attempt().N))
		return errNo
	})
}

func TestAMessageThatAlwaysFailsIsTriedExactlyAsConfigured(t *testing.T) {
	for _, exact := range []bool{true, false} {
		inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
			if !exact {
				broker.Without = inmemory.Exact
			}
			var calls tally
			r := start(t, sales(broker, failing(&calls)))
			begin := time.Now()
			r.send(placeOrder{ID: "7"})
			time.Sleep(10 * time.Minute)
			if got := len(calls.list()); got != 24 {
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

func TestAMessageKeepsItsIdentityOverDelaysAndTheErrorQueue(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var ids tally
		r := start(t, sales(broker, endpoint.Handle(func(_ context.Context, s *endpoint.Session, _ placeOrder) error {
			ids.add(s.MessageID() + " " + s.Header(header.MessageID))
			return errNo
		})))
		r.send(placeOrder{}, endpoint.MessageID("order-7"))
		time.Sleep(10 * time.Minute)
		for _, id := range ids.list() {
			if id != "order-7 order-7" {
				t.Fatalf("an attempt saw the id %q", id)
			}
		}
		if got := broker.Messages("error"); len(got) != 1 || got[0].ID != "order-7" {
			t.Errorf("error queue: %v", got)
		}
	})
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
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
			inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
				var calls tally
				start(t, sales(broker, endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m placeOrder) error {
					calls.add(m.ID)
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
				if len(calls.list()) > 1 {
					t.Errorf("it was handled %d times", len(calls.list()))
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
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		cfg := sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, placeOrder) error { panic(errNo) }))
		cfg.Recoverability = once
		var got error
		cfg.Recoverability.Policy = func(f recoverability.Failure) recoverability.Action {
			got = f.Err
			return recoverability.MoveToError{}
		}
		start(t, cfg).send(placeOrder{})
		synctest.Wait()
		var p *endpoint.PanicError
		if !errors.As(got, &p) || !errors.Is(got, errNo) {
			t.Fatalf("the policy saw %v", got)
		}
		failed := broker.Messages("error")
		if len(failed) != 1 || !strings.Contains(failed[0].Headers.Get(header.ExceptionStackTrace), "recover_test.go") {
			t.Errorf("no stack in %v", failed)
		}
	})
}

func TestNothingIsLostAndNothingSpinsWhileTheErrorQueueIsMissing(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Without = inmemory.DeadLetterer
		var missing atomic.Bool
		missing.Store(true)
		broker.Fail = func(verb, object string) error {
			if verb == "Dispatch" && object == "error" && missing.Load() {
				return transport.ErrNoQueue
			}
			return nil
		}
		var calls tally
		cfg := sales(broker, failing(&calls))
		cfg.Recoverability = once
		r := start(t, cfg)
		r.send(placeOrder{})
		time.Sleep(10 * time.Minute)
		if n := len(calls.list()); n < 10 || n > 60 {
			t.Errorf("%d attempts in ten minutes", n)
		}
		missing.Store(false)
		time.Sleep(time.Minute)
		if got := len(broker.Messages("error")); got != 1 {
			t.Errorf("the error queue has %d messages, want 1", got)
		}
	})
}

func TestAMissingDestinationFailsTheMessageAndSendsNothing(t *testing.T) {
	for _, without := range []inmemory.Capability{0, inmemory.Completer} {
		inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
			broker.Without = without
			cfg := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m placeOrder) error {
				return s.Send(ctx, shipOrder(m), endpoint.To("nowhere"))
			}))
			cfg.Recoverability = once
			start(t, cfg).send(placeOrder{})
			synctest.Wait()
			failed := broker.Messages("error")
			if len(failed) != 1 || !strings.Contains(failed[0].Headers.Get(header.ExceptionMessage), "no such queue") {
				t.Errorf("error queue: %v", failed)
			}
		})
	}
}

func TestWithoutDelaysAMessageGoesToTheErrorQueueAfterItsImmediateRetries(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Without = inmemory.Delay
		var calls tally
		r := start(t, sales(broker, failing(&calls)))
		r.send(placeOrder{})
		synctest.Wait()
		if len(calls.list()) != 6 || len(broker.Messages("error")) != 1 {
			t.Errorf("%d attempts, %d in the error queue", len(calls.list()), len(broker.Messages("error")))
		}
		if err := r.Send(t.Context(), placeOrder{}, endpoint.After(time.Second)); err == nil {
			t.Error("a delayed send was accepted")
		}
	})
}

func TestActionsThatCannotBeCarriedOutMoveToTheErrorQueue(t *testing.T) {
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
			inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
				broker.Without, broker.MaxDelay = inmemory.DeadLetterer, time.Hour
				cfg := sales(broker, failing(&tally{}))
				cfg.Recoverability.Policy = policy
				start(t, cfg).send(placeOrder{})
				synctest.Wait()
				if got := len(broker.Messages("error")); got != 1 {
					t.Errorf("the error queue has %d messages, want 1", got)
				}
			})
		})
	}
}

func TestTheRecoverStageMayDecideOtherwiseAndSend(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls tally
		cfg := sales(broker, failing(&calls))
		cfg.Pipeline.Recover.Use("give up", func(next pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
			return func(ctx context.Context, rec *pipeline.Recover) error {
				rec.Action = recoverability.MoveToError{Queue: "other"}
				rec.Fault.Set("ticket", "T-1")
				if err := rec.Sender().Send(ctx, shipOrder{ID: "cancel"}); err != nil {
					return err
				}
				return next(ctx, rec)
			}
		})
		start(t, cfg).send(placeOrder{})
		synctest.Wait()
		moved := broker.Messages("other")
		if len(calls.list()) != 1 || len(moved) != 1 || moved[0].Headers.Get("ticket") != "T-1" {
			t.Errorf("%d attempts, moved %v", len(calls.list()), moved)
		}
		if got := len(broker.Messages("shipping")); got != 1 {
			t.Errorf("%d messages sent by the behavior, want 1", got)
		}
	})
}

func TestARecoverBehaviorThatFailsOrStopsDoesNotKeepTheMessage(t *testing.T) {
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
			inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
				cfg := sales(broker, failing(&tally{}))
				cfg.Recoverability = once
				cfg.Pipeline.Recover.Use("broken", func(pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
					return func(context.Context, *pipeline.Recover) error { return f() }
				})
				start(t, cfg).send(placeOrder{})
				synctest.Wait()
				if got := len(broker.Messages("error")); got != 1 {
					t.Errorf("the error queue has %d messages, want 1", got)
				}
			})
		})
	}
}

func TestARecoverBehaviorThatFailsAfterTheMoveUndoesNothingAndSaysNoOther(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var log lockedBuffer
		cfg := sales(broker, failing(&tally{}))
		cfg.Recoverability = once
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		cfg.Pipeline.Recover.Use("late", func(next pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
			return func(ctx context.Context, rec *pipeline.Recover) error {
				return errors.Join(rec.Sender().Send(ctx, shipOrder{}), next(ctx, rec), errNo)
			}
		})
		start(t, cfg).send(placeOrder{})
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
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls tally
		var log lockedBuffer
		cfg := sales(broker, failing(&calls))
		cfg.Transactions = endpoint.None
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		r := start(t, cfg)
		r.send(placeOrder{})
		synctest.Wait()
		if strings.Contains(log.String(), "cannot be carried out") {
			t.Errorf("the default policy wants what the mode has not:\n%s", log.String())
		}
		if len(calls.list()) != 1 || len(broker.Messages("error")) != 1 {
			t.Errorf("%d attempts, %d in the error queue", len(calls.list()), len(broker.Messages("error")))
		}
	})
}

func TestAtomicHandlersCommitTogetherOrNotAtAll(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var written tally
		cfg := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m placeOrder) error {
			if err := inmemory.OnCommit(ctx, s, func() { written.add(m.ID) }); err != nil {
				return err
			}
			if err := s.Send(ctx, shipOrder(m)); err != nil {
				return err
			}
			if s.Attempt().N == 1 {
				return errNo
			}
			return nil
		}))
		cfg.Transactions = endpoint.SendsAtomicWithReceive
		start(t, cfg).send(placeOrder{ID: "7"})
		synctest.Wait()
		if diff := cmp.Diff([]string{"7"}, written.list()); diff != "" {
			t.Error(diff)
		}
		if got := len(broker.Messages("shipping")); got != 1 {
			t.Errorf("%d messages left, want 1", got)
		}
	})
}

func TestWhatTheRecoverStageWritesGoesWithTheMove(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var written tally
		cfg := sales(broker, failing(&tally{}))
		cfg.Transactions = endpoint.SendsAtomicWithReceive
		cfg.Recoverability = recoverability.Config{Immediate: 2, Delayed: recoverability.None}
		cfg.Pipeline.Recover.Use("ledger", func(next pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
			return func(ctx context.Context, rec *pipeline.Recover) error {
				s := rec.Sender().(*endpoint.Session)
				if err := inmemory.OnCommit(ctx, s, func() { written.add(rec.Action.String()) }); err != nil {
					return err
				}
				return next(ctx, rec)
			}
		})
		start(t, cfg).send(placeOrder{})
		synctest.Wait()
		if diff := cmp.Diff([]string{`move to error queue "error"`}, written.list()); diff != "" {
			t.Error(diff)
		}
		if got := len(broker.Messages("error")); got != 1 {
			t.Errorf("the error queue has %d messages, want 1", got)
		}
	})
}
