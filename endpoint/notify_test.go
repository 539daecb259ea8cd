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
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// telling notes what a Notify function is told, as one line each.
func telling(told *harness.Tally) []func(context.Context, recoverability.Notification) {
	return []func(context.Context, recoverability.Notification){
		func(_ context.Context, n recoverability.Notification) {
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
			told.Add(line)
		},
	}
}

// Notifications count attempts from one, and name the queue that has the message.
func TestNotificationsCountFromOneAndNameTheQueue(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var told harness.Tally
		cfg := harness.Sales(broker, failing(&harness.Tally{}))
		cfg.Recoverability = recoverability.Config{Immediate: 2, Delayed: 1}
		cfg.Notify = telling(&told)
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
		time.Sleep(time.Hour)
		want := []string{
			"immediate_retry #1", "immediate_retry #2", "delayed_retry #1 to sales",
			"immediate_retry #1", "immediate_retry #2", "moved_to_error to error",
		}
		if diff := cmp.Diff(want, told.List()); diff != "" {
			t.Error(diff)
		}
	})
}

// The message is through before the first function has returned, also when it never does.
func TestASlowNotifyIsCalledInOrder(t *testing.T) {
	for name, test := range map[string]struct{ first, all time.Duration }{
		"slow":  {3 * time.Second, 4 * time.Second},
		"hangs": {time.Minute, 11 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				var told harness.Tally
				var begun atomic.Int32
				cfg := harness.Sales(broker, failing(&harness.Tally{}))
				cfg.Recoverability = recoverability.Config{Immediate: 2, Delayed: recoverability.None}
				cfg.Notify = append(telling(&told), func(context.Context, recoverability.Notification) {
					if begun.Add(1) == 1 {
						time.Sleep(test.first)
					}
				})
				harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
				time.Sleep(time.Second)
				if n, first := len(broker.Messages("error")), begun.Load(); n != 1 || first != 1 {
					t.Errorf("%d messages in the error queue, told of %d", n, first)
				}
				time.Sleep(test.all - time.Second)
				got := told.List()
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

// A notification has the message, the error and the action that was carried out.
func TestANotificationHasMessageErrorAndAction(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var got recoverability.Notification
		cfg := harness.Sales(broker, failing(&harness.Tally{}))
		cfg.Recoverability.Policy = func(recoverability.Failure) recoverability.Action {
			return recoverability.Discard{Reason: "too old"}
		}
		cfg.Notify = append(cfg.Notify, func(_ context.Context, n recoverability.Notification) { got = n })
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{ID: "7"}, endpoint.MessageID("m-1"))
		synctest.Wait()
		if got.Kind != recoverability.Discarded || got.Action != (recoverability.Discard{Reason: "too old"}) {
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
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
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
				var told harness.Tally
				cfg := harness.Sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error {
					if fail == nil {
						time.Sleep(2 * time.Second)
					}
					return errNo
				}))
				cfg.Recoverability = once
				cfg.Recoverability.Quarantine.After = recoverability.None // a lost lease counts
				cfg.Notify = telling(&told)
				r := harness.Start(t, cfg)
				r.MustSend(harness.PlaceOrder{})
				time.Sleep(10 * time.Second)
				for _, line := range told.List() {
					if strings.HasPrefix(line, "moved") {
						t.Errorf("told %q", told.List())
					}
				}
			})
		})
	}
}

func TestANotifyFunctionThatPanicsOrHangsHarmsNobody(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var log harness.Log
		var told harness.Tally
		release := make(chan struct{})
		cfg := harness.Sales(broker, failing(&harness.Tally{}))
		cfg.Recoverability = once
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		cfg.Notify = []func(context.Context, recoverability.Notification){
			func(context.Context, recoverability.Notification) { panic("no") },
			telling(&told)[0],
			func(context.Context, recoverability.Notification) { <-release },
		}
		r := harness.Start(t, cfg)
		const messages = 150
		for range messages {
			r.MustSend(harness.PlaceOrder{})
		}
		time.Sleep(time.Hour)
		if got := len(broker.Messages("error")); got != messages {
			t.Errorf("%d of %d messages are in the error queue", got, messages)
		}
		r.End()
		close(release)
		if got := len(told.List()); got != 100 {
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
	cfg := harness.Sales(&inmemory.Transport{})
	cfg.Notify = append(cfg.Notify, nil)
	if _, err := endpoint.New(cfg); err == nil || !strings.Contains(err.Error(), "Notify[0] is nil") {
		t.Errorf("New: %v", err)
	}
}
