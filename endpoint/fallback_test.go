package endpoint_test

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// failingWith is a handler that returns err.
func failingWith(err error) endpoint.Handler {
	return endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error { return err })
}

// refusing makes the broker refuse what is sent to the queues.
func refusing(err error, queues ...string) func(verb, object string) error {
	return func(verb, object string) error {
		for _, q := range queues {
			if verb == "Dispatch" && object == q {
				return err
			}
		}
		return nil
	}
}

// quiet is a broker that tells of no limit to headers and has one all the same.
type quiet struct{ *inmemory.Transport }

func (q quiet) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	q.MaxHeaders = 900
	conn, err := q.Transport.Open(ctx, env)
	return quietConn{conn}, err
}

type quietConn struct{ transport.Conn }

func (c quietConn) Limits() transport.Limits {
	l := c.Conn.Limits()
	l.MaxHeaders = 0
	return l
}

func TestFaultHeadersShrinkToTheRoomThereIs(t *testing.T) {
	huge := errors.New(strings.Repeat("x", 1<<20))
	for _, test := range []struct {
		room int
		want []string // told
		at   string   // where the message is
	}{
		{0, []string{"moved_to_error to error"}, "error"},
		{40_000, []string{"moved_to_error to error"}, "error"},
		{8_000, []string{"fallback_taken trimmed_headers", "moved_to_error to error"}, "error"},
		{1_000, []string{"fallback_taken minimal_headers", "moved_to_error to error"}, "error"},
		{80, []string{"fallback_taken original_headers", "moved_to_error to error"}, "error"},
		{20, []string{"fallback_taken dead_letter", "dead_lettered"}, "sales.dead"},
	} {
		for _, without := range []inmemory.Capability{0, inmemory.Completer} {
			t.Run(fmt.Sprint(test.room, without), func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
					broker.Without, broker.MaxHeaders = without, test.room
					broker.CreateQueues("sales")
					var told harness.Tally
					cfg := harness.Sales(broker, failingWith(huge))
					cfg.Recoverability = once
					cfg.Notify = telling(&told)
					waiting(t, broker, "sales")
					harness.Start(t, cfg)
					time.Sleep(time.Minute)
					if diff := cmp.Diff(test.want, told.List()); diff != "" {
						t.Error(diff)
					}
					got := broker.Messages(test.at)
					if len(got) != 1 || len(broker.Messages("sales")) != 0 {
						t.Fatalf("%d messages in %s, %d in sales", len(got), test.at, len(broker.Messages("sales")))
					}
					if string(got[0].Body) != `{"ID":"7"}` || got[0].Headers.Get(header.EnclosedMessageTypes) != "Shop.PlaceOrder" {
						t.Errorf("the message is %s %s", got[0].Headers.AppendJSON(nil), got[0].Body)
					}
					if q := got[0].Headers.Get(header.FailedQ); (q == "sales") != (test.room == 0 || test.room >= 1000) {
						t.Errorf("%s is %q", header.FailedQ, q)
					}
				})
			})
		}
	}
}

// waiting puts an order into the queue as it is, with 47 bytes of headers.
func waiting(t *testing.T, broker *inmemory.Transport, queue string) {
	t.Helper()
	var h header.Map
	h.Set(header.EnclosedMessageTypes, "Shop.PlaceOrder")
	if err := broker.Put(queue, &transport.Message{ID: "m-1", Headers: h, Body: []byte(`{"ID":"7"}`)}); err != nil {
		t.Fatal(err)
	}
}

// Fault headers shrink even if the limit is known only when the broker refuses the message.
func TestFaultHeadersShrinkAfterARefusedSend(t *testing.T) {
	for _, without := range []inmemory.Capability{0, inmemory.Completer} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			broker.Without = without
			broker.CreateQueues("sales", "error")
			var told harness.Tally
			cfg := harness.Sales(quiet{broker}, failingWith(errors.New(strings.Repeat("x", 1<<20))))
			cfg.Recoverability, cfg.Install = recoverability.Config{Immediate: recoverability.None, Delayed: 1}, false
			cfg.Messages = cfg.Messages[:1] // nothing to be subscribed to
			cfg.Routes = nil
			cfg.Notify = telling(&told)
			waiting(t, broker, "sales")
			harness.Start(t, cfg)
			time.Sleep(time.Minute)
			want := []string{"delayed_retry #1 to sales", "fallback_taken minimal_headers", "moved_to_error to error"}
			if diff := cmp.Diff(want, told.List()); diff != "" {
				t.Error(diff)
			}
			if got := broker.Messages("error"); len(got) != 1 || got[0].Headers.Get(header.HoldfastFaultClass) != "*errors.errorString" {
				t.Errorf("the error queue has %v", got)
			}
		})
	}
}

// A delayed copy that is too large loses its history, or the message moves to the error
// queue.
func TestATooLargeDelayedCopyLosesItsHistory(t *testing.T) {
	for room, want := range map[int][]string{
		300: {"fallback_taken trimmed_headers", "delayed_retry #1 to sales", "fallback_taken minimal_headers", "moved_to_error to error"},
		120: {"fallback_taken original_headers", "fallback_taken move_to_error", "moved_to_error to error"},
	} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			broker.MaxHeaders = room
			broker.CreateQueues("sales")
			var told harness.Tally
			cfg := harness.Sales(broker, failing(&harness.Tally{}))
			cfg.Recoverability = recoverability.Config{Immediate: recoverability.None, Delayed: 1}
			cfg.Notify = telling(&told)
			waiting(t, broker, "sales")
			harness.Start(t, cfg)
			time.Sleep(time.Minute)
			if diff := cmp.Diff(want, told.List()); diff != "" {
				t.Errorf("room for %d: %s", room, diff)
			}
		})
	}
}

func TestAnErrorQueueThatRefusesLeadsOn(t *testing.T) {
	for name, test := range map[string]struct {
		refused []string
		err     error
		without inmemory.Capability
		want    []string
		at      string
	}{
		"none":         {nil, nil, 0, []string{"moved_to_error to refused"}, "refused"},
		"the named":    {[]string{"refused"}, errNo, 0, []string{"fallback_taken default_queue", "moved_to_error to error"}, "error"},
		"both":         {[]string{"refused", "error"}, errNo, 0, []string{"fallback_taken dead_letter", "dead_lettered"}, "sales.dead"},
		"both missing": {[]string{"refused", "error"}, transport.ErrNoQueue, 0, []string{"fallback_taken dead_letter", "dead_lettered"}, "sales.dead"},
		"both, no dead letters": {
			[]string{"refused", "error"}, errNo, inmemory.DeadLetterer, []string{"critical_error", "fallback_taken held"}, "",
		},
		"both, unknown": {[]string{"refused", "error"}, transport.ErrOutcomeUnknown, 0, []string{"critical_error", "fallback_taken held"}, ""},
		"both, away":    {[]string{"refused", "error"}, context.DeadlineExceeded, 0, []string{"critical_error", "fallback_taken held"}, ""},
	} {
		for _, without := range []inmemory.Capability{0, inmemory.Completer} {
			t.Run(fmt.Sprint(name, without), func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
					broker.Without = without | test.without
					broker.CreateQueues("refused")
					broker.Fail = refusing(test.err, test.refused...)
					var told harness.Tally
					cfg := harness.Sales(broker, failing(&harness.Tally{}))
					cfg.Recoverability.Policy = func(recoverability.Failure) recoverability.Action {
						return recoverability.MoveToError{Queue: "refused"}
					}
					cfg.Notify = telling(&told)
					r := harness.Start(t, cfg)
					r.MustSend(harness.PlaceOrder{ID: "7"})
					time.Sleep(2500 * time.Millisecond)
					got := told.List()
					if diff := cmp.Diff(test.want, got[:min(len(got), 2)]); diff != "" {
						t.Error(diff)
					}
					if test.at == "" {
						return
					}
					if n := len(broker.Messages(test.at)); n != 1 || len(got) != len(test.want) {
						t.Errorf("%d messages in %s, told %q", n, test.at, got)
					}
				})
			})
		}
	}
}

func TestARefusalThatPassesLeadsNowhereElse(t *testing.T) {
	for _, without := range []inmemory.Capability{0, inmemory.Completer} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			var tries, told harness.Tally
			broker.Without = without
			broker.Fail = func(verb, object string) error {
				if verb == "Dispatch" && object == "error" && tries.Add(verb) < 3 {
					return errNo
				}
				return nil
			}
			cfg := harness.Sales(broker, failing(&harness.Tally{}))
			cfg.Recoverability = once
			cfg.Notify = telling(&told)
			harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
			time.Sleep(10 * time.Second)
			if diff := cmp.Diff([]string{"moved_to_error to error"}, told.List()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestABodyThatTheErrorQueueHasNoRoomForStays(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Without, broker.MaxBody = inmemory.DeadLetterer, 5
		broker.CreateQueues("sales")
		var told, calls harness.Tally
		cfg := harness.Sales(broker, failing(&calls))
		cfg.Recoverability = once
		cfg.Notify = telling(&told)
		waiting(t, broker, "sales")
		r := harness.Start(t, cfg)
		time.Sleep(10 * time.Minute)
		if n := len(calls.List()); n < 10 || n > 60 {
			t.Errorf("%d attempts in ten minutes", n)
		}
		r.End()
		if n := len(broker.Messages("sales")); n != 1 || !strings.HasPrefix(told.List()[0], "critical_error") {
			t.Errorf("%d messages in sales, told %q", n, told.List()[0])
		}
	})
}

// If the broker refuses an action, the message moves to the error queue.
func TestARefusedActionMovesToTheErrorQueue(t *testing.T) {
	for name, test := range map[string]struct {
		action recoverability.Action
		fail   func(verb, object string) error
	}{
		"a delay":     {recoverability.Delay{For: time.Minute}, refusing(errNo, "sales")},
		"dead letter": {recoverability.DeadLetter{Reason: "x"}, func(verb, _ string) error { return map[string]error{"DeadLetter": errNo}[verb] }},
		"no action":   {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				broker.CreateQueues("sales")
				waiting(t, broker, "sales")
				broker.Fail = test.fail
				var told harness.Tally
				cfg := harness.Sales(broker, failing(&harness.Tally{}))
				cfg.Recoverability.Policy = func(recoverability.Failure) recoverability.Action {
					if test.action == nil {
						panic("no")
					}
					return test.action
				}
				cfg.Notify = telling(&told)
				harness.Start(t, cfg)
				time.Sleep(10 * time.Second)
				if diff := cmp.Diff([]string{"fallback_taken move_to_error", "moved_to_error to error"}, told.List()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// errCircle wraps itself; its text and its methods are what is worst about errors.
type errCircle struct{ text string }

func (e errCircle) Error() string {
	if e.text == "" {
		panic("no text")
	}
	return e.text
}
func (e errCircle) Unwrap() error { return e }

func TestWhateverAnErrorIsTheMessageGetsOut(t *testing.T) {
	deep := errors.New("deep")
	for range 3000 {
		deep = fmt.Errorf("d: %w", deep)
	}
	for name, err := range map[string]error{
		"a circle": errCircle{"round"}, "a circle that panics": errCircle{}, "deep": deep,
		"a megabyte": errors.New(strings.Repeat("é", 1<<19)), "control characters": errors.New(strings.Repeat("\x00\r\n", 1000)),
		"joined": errors.Join(errCircle{}, deep), "a nil pointer": (*recoverability.PanicError)(nil),
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				cfg := harness.Sales(broker, failingWith(err))
				cfg.Recoverability = recoverability.Config{Immediate: 1, Delayed: 1}
				harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
				time.Sleep(time.Minute)
				got := broker.Messages("error")
				if len(got) != 1 {
					t.Fatalf("%d messages in the error queue", len(got))
				}
				if size := got[0].Headers.Size(); size > 40<<10 || got[0].Headers.Get(header.HoldfastFaultClass) == "" {
					t.Errorf("%d bytes of headers, class %q", size, got[0].Headers.Get(header.HoldfastFaultClass))
				}
			})
		})
	}
}

func TestAnErrorThatWrapsItselfDoesNotHoldUpAStop(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, _ *endpoint.Session, _ harness.PlaceOrder) error {
			<-ctx.Done()
			return errCircle{"round"}
		}))
		cfg.Recoverability, cfg.StopTimeout = once, time.Second
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{})
		synctest.Wait()
		r.End()
		if n := len(broker.Messages("error")); n != 1 {
			t.Errorf("%d messages in the error queue", n)
		}
	})
}

// The messages of the Recover stage are sent once, even if the copy is refused many times.
func TestARefusedCopySendsTheRecoverStageOnce(t *testing.T) {
	for _, without := range []inmemory.Capability{0, inmemory.Completer} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			broker.Without = without
			broker.Fail = refusing(errNo, "refused")
			cfg := harness.Sales(broker, failing(&harness.Tally{}))
			cfg.Recoverability.Policy = func(recoverability.Failure) recoverability.Action {
				return recoverability.MoveToError{Queue: "refused"}
			}
			cfg.Pipeline.Recover.Use("send", func(next pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
				return func(ctx context.Context, rec *pipeline.Recover) error {
					return errors.Join(rec.Sender().Send(ctx, harness.ShipOrder{}), next(ctx, rec))
				}
			})
			harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
			time.Sleep(10 * time.Second)
			if shipped, failed := len(broker.Messages("shipping")), len(broker.Messages("error")); shipped != 1 || failed != 1 {
				t.Errorf("without %b: %d sent, %d in the error queue", without, shipped, failed)
			}
		})
	}
}

// What is to go to the same queue again is no more refused than what is to go to the error queue:
// both wait.
func TestAnUnreachableBrokerRefusesNoFallback(t *testing.T) {
	unreached := fmt.Errorf("no connection: %w", transport.ErrUnreachable)
	for _, without := range []inmemory.Capability{0, inmemory.Completer} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			broker.Without = without
			broker.CreateQueues("sales")
			waiting(t, broker, "sales")
			back := time.Now().Add(time.Minute)
			broker.Fail = func(verb, _ string) error {
				if verb != "Dispatch" || time.Now().After(back) {
					return nil
				}
				return unreached
			}
			var told harness.Tally
			cfg := harness.Sales(broker, failing(&harness.Tally{}))
			cfg.Recoverability = recoverability.Config{
				Immediate: recoverability.None, Delayed: 1,
				Quarantine: recoverability.Quarantine{After: recoverability.None},
			}
			cfg.Notify = telling(&told)
			harness.Start(t, cfg)
			time.Sleep(10 * time.Minute)
			got := slices.DeleteFunc(told.List(), func(s string) bool { return s == "critical_error" || s == "fallback_taken held" })
			if diff := cmp.Diff([]string{"delayed_retry #1 to sales", "moved_to_error to error"}, got); diff != "" {
				t.Errorf("without %b: %s", without, diff)
			}
		})
	}
}

func TestTheErrorQueueKnowsWhatWentBefore(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		cfg := harness.Sales(broker, failing(&harness.Tally{}))
		cfg.Recoverability = recoverability.Config{Immediate: 2, Delayed: 2}
		cfg.Instance = "m1"
		begin := time.Now()
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
		time.Sleep(time.Minute)
		got := broker.Messages("error")
		if len(got) != 1 || got[0].Headers.Get(header.HoldfastHistory) != "" {
			t.Fatalf("the error queue has %v", got)
		}
		var past []string
		for _, p := range fault.ParseHistory(got[0].Headers.Get(header.HoldfastFaultHistory)) {
			if p.Class != "*errors.errorString" || !strings.HasSuffix(p.Text, errNo.Error()) || p.Instance != "m1" {
				t.Errorf("past %+v", p)
			}
			past = append(past, fmt.Sprintf("%v: delayed %d, attempt %d", p.Time.Sub(begin), p.Delayed, p.Attempt))
		}
		want := []string{
			"0s: delayed 0, attempt 1", "0s: delayed 0, attempt 2", "0s: delayed 0, attempt 3",
			"10s: delayed 1, attempt 1", "10s: delayed 1, attempt 2", "10s: delayed 1, attempt 3",
			"30s: delayed 2, attempt 1", "30s: delayed 2, attempt 2",
		}
		if diff := cmp.Diff(want, past); diff != "" {
			t.Error(diff)
		}
	})
}

func TestFaultHeadersAreTheUsersToChange(t *testing.T) {
	for name, breaks := range map[string]bool{"changed": false, "panics": true} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				cfg := harness.Sales(broker, failing(&harness.Tally{}))
				cfg.Recoverability = recoverability.Config{
					Immediate: recoverability.None, Delayed: recoverability.None,
					FaultHeaders: func(fault *header.Map, f recoverability.Failure) {
						fault.Set(header.ExceptionMessage, "[left out]")
						fault.Set("Ticket", f.MessageID)
						if breaks {
							panic("no")
						}
					},
				}
				harness.Start(t, cfg).MustSend(harness.PlaceOrder{}, endpoint.MessageID("m-1"))
				synctest.Wait()
				got := broker.Messages("error")
				if len(got) != 1 {
					t.Fatalf("%d messages in the error queue", len(got))
				}
				h := got[0].Headers
				if changed := h.Get(header.ExceptionMessage) == "[left out]" && h.Get("Ticket") == "m-1"; changed == breaks {
					t.Errorf("headers %s", h.AppendJSON(nil))
				}
				if h.Get(header.ExceptionMessage) == "" || h.Get(header.FailedQ) != "sales" {
					t.Errorf("headers %s", h.AppendJSON(nil))
				}
			})
		})
	}
}
