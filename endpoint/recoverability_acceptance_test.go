package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// These are the cases of NServiceBus's recoverability acceptance tests that no other test has. The
// table of all of them is in docs/conformance.md.

// errBank is an error with a type of its own.
type errBank struct{ code int }

func (*errBank) Error() string { return "the bank says no" }

// Attempts, notifications, lines of the log and what the error queue says, for the numbers of those
// tests.
func TestWhatIsTriedToldLoggedAndKeptIsAsConfigured(t *testing.T) {
	const off = recoverability.None
	const threeRetries = "immediate_retry #1, immediate_retry #2, immediate_retry #3, "
	for _, test := range []struct {
		immediate, delayed int
		attempts           int
		told               string // but for the last
	}{
		{5, off, 6, "immediate_retry #1, immediate_retry #2, immediate_retry #3, immediate_retry #4, immediate_retry #5, "},
		{3, off, 4, threeRetries},
		{off, off, 1, ""},
		{off, 3, 4, "delayed_retry #1 to sales, delayed_retry #2 to sales, delayed_retry #3 to sales, "},
		{3, 2, 12, threeRetries + "delayed_retry #1 to sales, " + threeRetries + "delayed_retry #2 to sales, " + threeRetries},
	} {
		t.Run(fmt.Sprint(test.immediate, test.delayed), func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				var calls, told, log harness.Tally
				failed := &errBank{}
				cfg := harness.Sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error {
					calls.Add("")
					return failed
				}))
				cfg.Recoverability.Immediate, cfg.Recoverability.Delayed = test.immediate, test.delayed
				cfg.Logger = slog.New(lines{&log})
				cfg.Notify = append(telling(&told), func(_ context.Context, n recoverability.Notification) {
					var same *errBank
					if !errors.As(n.Failure.Err, &same) || same != failed {
						t.Errorf("%s was told of %v", n.Kind, n.Failure.Err)
					}
				})
				harness.Start(t, cfg).MustSend(harness.PlaceOrder{}, endpoint.MessageID("m-1"))
				time.Sleep(time.Hour)
				synctest.Wait()
				if n := len(calls.List()); n != test.attempts {
					t.Errorf("%d attempts, want %d", n, test.attempts)
				}
				if diff := cmp.Diff(test.told+"moved_to_error to error", strings.Join(told.List(), ", ")); diff != "" {
					t.Error(diff)
				}
				checkLog(t, log.List(), told.List())
				checkFailed(t, broker.Messages("error"))
			})
		})
	}
}

// checkLog compares the lines of the log with the notifications: each has one.
func checkLog(t *testing.T, log, told []string) {
	t.Helper()
	count := func(list []string, begin string) (n int) {
		for _, line := range list {
			if strings.HasPrefix(line, begin) {
				n++
			}
		}
		return n
	}
	for line, kind := range map[string]string{
		"INFO ImmediateRetry: ": "immediate_retry", "WARN DelayedRetry: ": "delayed_retry", "ERROR ": "moved_to_error",
	} {
		if a, b := count(log, line), count(told, kind); a != b {
			t.Errorf("%d lines with %s, told of %d", a, line, b)
		}
	}
}

func checkFailed(t *testing.T, failed []*transport.Message) {
	t.Helper()
	if len(failed) != 1 || failed[0].ID != "m-1" {
		t.Fatalf("the error queue has %v", failed)
	}
	for name, want := range map[string]string{
		header.MessageID: "m-1", header.EnclosedMessageTypes: "Shop.PlaceOrder", header.ExceptionType: "*endpoint_test.errBank",
	} {
		if got := failed[0].Headers.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

func TestWhatAPolicyDecidesIsDone(t *testing.T) {
	for name, test := range map[string]struct {
		policy   recoverability.Policy
		attempts int
		at       string
	}{
		"always to the error queue": {func(recoverability.Failure) recoverability.Action { return recoverability.MoveToError{} }, 1, "error"},
		"to a queue of its own": {func(recoverability.Failure) recoverability.Action {
			return recoverability.MoveToError{Queue: "other"}
		}, 1, "other"},
		"discard": {func(recoverability.Failure) recoverability.Action { return recoverability.Discard{Reason: "old"} }, 1, ""},
		"later, then to the error queue": {func(f recoverability.Failure) recoverability.Action {
			if f.Delayed == 0 {
				return recoverability.Delay{For: time.Second}
			}
			return recoverability.MoveToError{}
		}, 2, "error"},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				var ids harness.Tally
				cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
					ids.Add(s.MessageID())
					return errNo
				}))
				cfg.AuditQueue, cfg.Recoverability.Policy = "audit", test.policy
				harness.Start(t, cfg).MustSend(harness.PlaceOrder{}, endpoint.MessageID("m-1"))
				time.Sleep(time.Hour)
				synctest.Wait()
				if diff := cmp.Diff(slices.Repeat([]string{"m-1"}, test.attempts), ids.List()); diff != "" {
					t.Error(diff)
				}
				for _, queue := range []string{"error", "other", "audit", "sales"} {
					if n := len(broker.Messages(queue)); (n == 1) != (queue == test.at) || n > 1 {
						t.Errorf("%s has %d messages, the message should be in %q", queue, n, test.at)
					}
				}
			})
		})
	}
}

// A policy sees the message, its error and the configuration.
func TestAPolicySeesMessageErrorAndConfiguration(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var seen harness.Tally
		broker.CreateQueues("sales")
		cfg := harness.Sales(broker, failing(&harness.Tally{}))
		cfg.Recoverability = recoverability.Config{Immediate: recoverability.None, Delayed: 1, Delays: recoverability.Delays{Delay: time.Second}, ErrorQueue: "failed"}
		cfg.Recoverability.Policy = func(f recoverability.Failure) recoverability.Action {
			seen.Add(fmt.Sprintf("%s %s %s %s, is the error %v, after %d, config %d %d %v %s", f.MessageID, f.Type, f.Queue, f.Headers.Get("Tenant")+f.Native["colour"],
				errors.Is(f.Err, errNo), f.Delayed, f.Config.Immediate, f.Config.Delayed, f.Config.Delays.Delay, f.Config.ErrorQueue))
			return f.Decide()
		}
		m := native("Shop.PlaceOrder", "application/json", `{}`)
		m.Headers.Set("Tenant", "acme")
		m.ID, m.Native = "m-1", map[string]string{"colour": "red"}
		harness.Start(t, cfg)
		if err := broker.Put("sales", m); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		want := []string{ // the copy has what was sent: the native properties were the first one's
			"m-1 Shop.PlaceOrder sales acmered, is the error true, after 0, config -1 1 1s failed",
			"m-1 Shop.PlaceOrder sales acme, is the error true, after 1, config -1 1 1s failed",
		}
		if diff := cmp.Diff(want, seen.List()); diff != "" {
			t.Error(diff)
		}
	})
}

// failAfter is a stage with a behavior that fails when all behind it has succeeded.
func failAfter[T any]() (s pipeline.Stage[T]) {
	s.Use("fail", func(next pipeline.Func[T]) pipeline.Func[T] {
		return func(ctx context.Context, in T) error { return errors.Join(next(ctx, in), errNo) }
	})
	return s
}

func TestWhatWasSentBeforeABehaviorFailedDoesNotLeave(t *testing.T) {
	for _, mode := range []endpoint.TransactionMode{endpoint.None, endpoint.ReceiveOnly, endpoint.SendsAtomicWithReceive} {
		for name, p := range map[string]pipeline.Pipeline{
			"Receive": {Receive: failAfter[*pipeline.Receive]()},
			"Logical": {Logical: failAfter[*pipeline.Logical]()},
			"Invoke":  {Invoke: failAfter[*pipeline.Invoke]()},
		} {
			t.Run(fmt.Sprint(mode, name), func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
					cfg := harness.Sales(broker, shipping())
					cfg.Transactions, cfg.Recoverability, cfg.Pipeline = mode, once, p
					harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
					synctest.Wait()
					if sent, failed := len(broker.Messages("shipping")), len(broker.Messages("error")); sent != 0 || failed != 1 {
						t.Errorf("%d sent, %d in the error queue", sent, failed)
					}
				})
			})
		}
	}
}

func TestCopiesOfAFailedMessageDoNotExpire(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls harness.Tally
		cfg := harness.Sales(broker, failing(&calls))
		cfg.Recoverability = recoverability.Config{Immediate: recoverability.None, Delayed: 1, Delays: recoverability.Delays{Delay: time.Minute}}
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{}, endpoint.ExpireAfter(10*time.Second))
		time.Sleep(24 * time.Hour)
		got := broker.Messages("error")
		if len(calls.List()) != 2 || len(got) != 1 || got[0].Headers.Get(header.TimeToBeReceived) != "00:00:10" {
			t.Errorf("%d attempts, the error queue has %v", len(calls.List()), got)
		}
	})
}

// What a behavior decides counts like what the policy does: it is logged, told, and replaced
// where it cannot be carried out.
func TestWhatARecoverBehaviorDecidesIsLoggedAndTold(t *testing.T) {
	for name, test := range map[string]struct {
		action recoverability.Action
		want   []string
		logger string
	}{
		"another queue": {recoverability.MoveToError{Queue: "other"}, []string{"moved_to_error to other"}, "ERROR MoveToError: "},
		"discard":       {recoverability.Discard{Reason: "old"}, []string{"discarded"}, "INFO Discard: "},
		"too long":      {recoverability.Delay{For: 48 * time.Hour}, []string{"fallback_taken move_to_error", "moved_to_error to error"}, "ERROR MoveToError: "},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				broker.MaxDelay = time.Hour
				var told, log harness.Tally
				cfg := harness.Sales(broker, failing(&harness.Tally{}))
				cfg.Logger, cfg.Notify = slog.New(lines{&log}), telling(&told)
				cfg.Pipeline.Recover.Use("decide", func(next pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
					return func(ctx context.Context, rec *pipeline.Recover) error {
						rec.Action = test.action
						return next(ctx, rec)
					}
				})
				harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
				synctest.Wait()
				if diff := cmp.Diff(test.want, told.List()); diff != "" {
					t.Error(diff)
				}
				if !slices.ContainsFunc(log.List(), func(line string) bool { return strings.HasPrefix(line, test.logger) }) {
					t.Errorf("no line of %q in %q", test.logger, log.List())
				}
			})
		})
	}
}

// A rate limit begins after the configured number of failures.
func TestARateLimitBeginsAfterItsFailures(t *testing.T) {
	for after, want := range map[int][]string{5: {"rate_limit_started"}, 100: nil} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			var told harness.Tally
			cfg := harness.Sales(broker, failing(&harness.Tally{}))
			cfg.Recoverability = recoverability.Config{Immediate: 3, Delayed: recoverability.None}
			cfg.Recoverability.RateLimit = recoverability.RateLimit{After: after, Delay: 2 * time.Second}
			cfg.Notify = telling(&told)
			harness.Start(t, cfg).MustSendMany(10)
			time.Sleep(time.Minute)
			got := slices.DeleteFunc(told.List(), func(line string) bool { return !strings.HasPrefix(line, "rate_limit") })
			if diff := cmp.Diff(want, got, cmp.Transformer("all", func(s []string) string { return strings.Join(s, ",") })); diff != "" {
				t.Errorf("after %d failures: %s", after, diff)
			}
		})
	}
}

// A message that ServiceControl has returned from its error queue: the success is told once, in one
// unit with what the handler sends, and the audit copy says so.
func TestARetryOfServiceControlIsAcknowledged(t *testing.T) {
	for name, test := range map[string]struct {
		queue, id string
		mute      bool // a behavior keeps back what the handler sent
		want      int
	}{
		"a retry":                 {"acks", "u-1", false, 1},
		"a retry that is muted":   {"acks", "u-1", true, 1},
		"one that wants no word":  {"", "u-1", false, 0},
		"one without an identity": {"acks", "", false, 0},
		"from where no queue is":  {"acks@[dbo]", "u-1", false, 0},
	} {
		for _, mode := range []endpoint.TransactionMode{endpoint.None, endpoint.ReceiveOnly, endpoint.SendsAtomicWithReceive} {
			t.Run(fmt.Sprint(name, mode), func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
					broker.CreateQueues("acks")
					cfg := harness.Sales(broker, shipping())
					cfg.AuditQueue, cfg.Transactions = "audit", mode
					if test.mute {
						cfg.Pipeline.Dispatch = onDispatch(func(func() error) error { return nil })
					}
					harness.Start(t, cfg).MustSend(harness.PlaceOrder{}, stateful.Header{Name: header.RetryAcknowledgement, Value: test.queue}, stateful.Header{Name: header.RetryUniqueID, Value: test.id})
					synctest.Wait()
					acks, audited := broker.Messages("acks"), broker.Messages("audit")
					if len(acks) != test.want || len(audited) != 1 {
						t.Fatalf("%d acknowledgements, %d audited", len(acks), len(audited))
					}
					told := audited[0].Headers.Get(header.RetryAcknowledged)
					if told != map[int]string{1: "True"}[test.want] {
						t.Errorf("the audit copy says %q", told)
					}
					for _, ack := range acks {
						h := ack.Headers
						if len(ack.Body) > 0 || h.Get(header.ControlMessage) != "True" || h.Get(header.RetryUniqueID) != test.id ||
							h.Get(header.RetrySuccessful) != header.FormatTime(time.Now()) {
							t.Errorf("the acknowledgement has %s", h.AppendJSON(nil))
						}
					}
				})
			})
		}
	}
}

func TestARetryThatFailsAgainIsNotAcknowledged(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.CreateQueues("acks")
		cfg := harness.Sales(broker, failing(&harness.Tally{}))
		cfg.Recoverability = once
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{}, stateful.Header{Name: header.RetryAcknowledgement, Value: "acks"}, stateful.Header{Name: header.RetryUniqueID, Value: "u-1"})
		synctest.Wait()
		failed := broker.Messages("error")
		if len(broker.Messages("acks")) != 0 || len(failed) != 1 || failed[0].Headers.Get(header.RetryUniqueID) != "u-1" {
			t.Errorf("%d acknowledgements, the error queue has %v", len(broker.Messages("acks")), failed)
		}
	})
}

// The stack is that of the user's code: where it panicked and which of its functions led there.
func TestTheStackOfAPanicIsTheUsersAlone(t *testing.T) {
	for name, test := range map[string]struct {
		panics func()
		frames int
	}{
		"a value":   {func() { panic("no") }, 2},
		"a nil":     {func() { _ = (*errBank)(nil).text() }, 3},
		"once more": {panicsTwice, 4},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				cfg := harness.Sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error { test.panics(); return nil }))
				cfg.Recoverability = once
				cfg.Pipeline.Invoke.Use("pass", func(next pipeline.Func[*pipeline.Invoke]) pipeline.Func[*pipeline.Invoke] { return next })
				harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
				synctest.Wait()
				trace := broker.Messages("error")[0].Headers.Get(header.ExceptionStackTrace)
				stack := fault.GoStack(trace)
				lines := strings.Split(strings.TrimSuffix(stack, "\n"), "\n")
				if !strings.HasPrefix(lines[0], "goroutine ") || len(lines) != 1+2*test.frames || strings.Contains(trace, "holdfast/endpoint.") {
					t.Errorf("want %d frames, got %s", test.frames, trace)
				}
				if !strings.HasPrefix(lines[1], "github.com/holdfast-go/holdfast/endpoint_test.") {
					t.Errorf("it begins with %s", lines[1])
				}
			})
		})
	}
}

func (e *errBank) text() int { return e.code }

func panicsTwice() {
	defer func() { panic(recover()) }()
	panic("no")
}
