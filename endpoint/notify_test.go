package endpoint_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// telling notes what a Notify function is told, as one line each.
func telling(told *tally) []func(context.Context, endpoint.Notification) {
	return []func(context.Context, endpoint.Notification){
		func(_ context.Context, n endpoint.Notification) {
			line := string(n.Kind)
			if n.Retry > 0 {
				line += fmt.Sprintf(" #%d", n.Retry)
			}
			if n.Fallback != "" {
				line += " " + string(n.Fallback)
			}
			if n.To != "" {
				line += " to " + n.To
			}
			told.add(line)
		},
	}
}

func TestNotificationsCountFromOneAndTellWhereTheMessageIs(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var told tally
		cfg := sales(broker, failing(&tally{}))
		cfg.Recoverability = recoverability.Config{Immediate: 2, Delayed: 1}
		cfg.Notify = telling(&told)
		start(t, cfg).send(placeOrder{})
		time.Sleep(time.Hour)
		want := []string{
			"immediate_retry #1", "immediate_retry #2", "delayed_retry #1 to sales",
			"immediate_retry #1", "immediate_retry #2", "moved_to_error to error",
		}
		if diff := cmp.Diff(want, told.list()); diff != "" {
			t.Error(diff)
		}
	})
}

// The message is through before the first function has returned, also when it never does.
func TestASlowNotifyFunctionIsToldInOrderAndHoldsNoMessageUp(t *testing.T) {
	for name, test := range map[string]struct{ first, all time.Duration }{
		"slow":  {3 * time.Second, 4 * time.Second},
		"hangs": {time.Minute, 11 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
				var told tally
				var begun atomic.Int32
				cfg := sales(broker, failing(&tally{}))
				cfg.Recoverability = recoverability.Config{Immediate: 2, Delayed: recoverability.None}
				cfg.Notify = append(telling(&told), func(context.Context, endpoint.Notification) {
					if begun.Add(1) == 1 {
						time.Sleep(test.first)
					}
				})
				start(t, cfg).send(placeOrder{})
				time.Sleep(time.Second)
				if n, first := len(broker.Messages("error")), begun.Load(); n != 1 || first != 1 {
					t.Errorf("%d messages in the error queue, told of %d", n, first)
				}
				time.Sleep(test.all - time.Second)
				got := told.list()
				time.Sleep(time.Minute)
				if name == "hangs" { // what waited in vain is told at once
					slices.Sort(got)
				}
				if diff := cmp.Diff([]string{"immediate_retry #1", "immediate_retry #2", "moved_to_error to error"}, got); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

func TestANotificationHoldsTheMessageItsErrorAndWhatWasDone(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var got endpoint.Notification
		cfg := sales(broker, failing(&tally{}))
		cfg.Recoverability.Policy = func(recoverability.Failure) recoverability.Action {
			return recoverability.Discard{Reason: "too old"}
		}
		cfg.Notify = append(cfg.Notify, func(_ context.Context, n endpoint.Notification) { got = n })
		start(t, cfg).send(placeOrder{ID: "7"}, endpoint.MessageID("m-1"))
		synctest.Wait()
		if got.Kind != endpoint.Discarded || got.Action != (recoverability.Discard{Reason: "too old"}) {
			t.Errorf("told of %v: %v", got.Kind, got.Action)
		}
		f := got.Failure
		if f.MessageID != "m-1" || f.Type != "Shop.PlaceOrder" || f.Queue != "sales" || string(f.Body) != `{"ID":"7"}` {
			t.Errorf("told of message %+v", f)
		}
		if f.Err == nil || !strings.HasSuffix(f.Err.Error(), errNo.Error()) || f.Attempt != 1 {
			t.Errorf("told of the error %v at attempt %d", f.Err, f.Attempt)
		}
	})
}

func TestWhatWasNotCarriedOutIsNotTold(t *testing.T) {
	for name, fail := range map[string]error{"refused": errNo, "lost when settled": transport.ErrLeaseLost, "lease lost": nil} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
				if fail == nil {
					broker.Lease = time.Second
				}
				broker.Fail = func(verb, object string) error {
					switch {
					case fail != nil && verb == "CompleteWith":
						return fail
					case fail == nil && verb == "Renew":
						return errNo
					}
					return nil
				}
				var told tally
				cfg := sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, placeOrder) error {
					if fail == nil {
						time.Sleep(2 * time.Second)
					}
					return errNo
				}))
				cfg.Recoverability = once
				cfg.Recoverability.Quarantine.After = recoverability.None // a lost lease counts
				cfg.Notify = telling(&told)
				r := start(t, cfg)
				r.send(placeOrder{})
				time.Sleep(10 * time.Second)
				for _, line := range told.list() {
					if strings.HasPrefix(line, "moved") {
						t.Errorf("told %q", told.list())
					}
				}
			})
		})
	}
}

func TestANotifyFunctionThatPanicsOrHangsHarmsNobody(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var log lockedBuffer
		var told tally
		release := make(chan struct{})
		cfg := sales(broker, failing(&tally{}))
		cfg.Recoverability = once
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		cfg.Notify = []func(context.Context, endpoint.Notification){
			func(context.Context, endpoint.Notification) { panic("no") },
			telling(&told)[0],
			func(context.Context, endpoint.Notification) { <-release },
		}
		r := start(t, cfg)
		const messages = 150
		for range messages {
			r.send(placeOrder{})
		}
		time.Sleep(time.Hour)
		if got := len(broker.Messages("error")); got != messages {
			t.Errorf("%d of %d messages are in the error queue", got, messages)
		}
		r.end()
		close(release)
		if got := len(told.list()); got != 100 {
			t.Errorf("%d notifications were told, want 100: then too many functions hang", got)
		}
		for _, want := range []string{"a function of Config.Notify panicked", "has not returned", "do not return"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log says nothing of %q", want)
			}
		}
	})
}

func TestANilNotifyFunctionIsAnError(t *testing.T) {
	cfg := sales(&inmemory.Transport{})
	cfg.Notify = append(cfg.Notify, nil)
	if _, err := endpoint.New(cfg); err == nil || !strings.Contains(err.Error(), "Notify[0] is nil") {
		t.Errorf("New: %v", err)
	}
}
