package endpoint_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

func TestAHandlerThatTakesTooLongIsCancelledAndFails(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var cause error
		var took time.Duration
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, _ *endpoint.Session, _ harness.PlaceOrder) error {
			began := time.Now()
			<-ctx.Done()
			cause, took = context.Cause(ctx), time.Since(began)
			return ctx.Err()
		}))
		cfg.HandlerTimeout, cfg.Recoverability = 3*time.Second, once
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
		time.Sleep(time.Minute)
		synctest.Wait()
		if !errors.Is(cause, endpoint.ErrHandlerTimeout) || took != 3*time.Second {
			t.Errorf("cancelled after %v because of %v", took, cause)
		}
		got := broker.Messages("error")
		if len(got) != 1 {
			t.Fatalf("%d in the error queue", len(got))
		}
		if text := got[0].Headers.Get(header.ExceptionMessage); !strings.Contains(text, "the time for a handler is over: it had 3s") {
			t.Errorf("the error says %q", text)
		}
	})
}

// Each handler has a timeout of its own, and a handler that succeeds late does not fail.
func TestEachHandlerHasATimeoutOfItsOwn(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		slow := endpoint.Handle(func(_ context.Context, _ *endpoint.Session, _ harness.PlaceOrder) error {
			time.Sleep(4 * time.Second)
			return nil
		})
		own := endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error { return errNo })
		cfg := harness.Sales(broker, slow, slow, own)
		cfg.HandlerTimeout, cfg.Recoverability = 3*time.Second, once
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
		time.Sleep(time.Minute)
		got := broker.Messages("error")
		if len(got) != 1 || strings.Contains(got[0].Headers.Get(header.ExceptionMessage), "the time for") {
			t.Errorf("%d in the error queue", len(got))
		}
	})
}

func TestALongOutageIsCriticalOnce(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var away atomic.Bool
		broker.Fail = func(verb, _ string) error {
			if verb == "Receive" && away.Load() {
				return errNo
			}
			return nil
		}
		var told harness.Tally
		cfg := harness.Sales(broker, heard(&harness.Tally{}, func(harness.PlaceOrder) string { return "" }))
		cfg.Notify = []func(context.Context, recoverability.Notification){
			func(_ context.Context, n recoverability.Notification) {
				told.Add(n.Failure.Err.Error())
				panic("no")
			},
		}
		r := harness.Start(t, cfg)
		outage := func(d time.Duration) (n int) {
			before := len(told.List())
			away.Store(true)
			r.MustSend(harness.PlaceOrder{}) // lets the Receive return that waits
			time.Sleep(d)
			away.Store(false)
			time.Sleep(time.Minute)
			return len(told.List()) - before
		}
		for _, test := range []struct {
			lasting time.Duration
			want    int
		}{{time.Minute, 0}, {time.Minute, 0}, {10 * time.Minute, 1}, {5 * time.Minute, 1}} {
			if got := outage(test.lasting); got != test.want {
				t.Errorf("told %d times of an outage of %v, want %d", got, test.lasting, test.want)
			}
		}
		if got := told.List(); len(got) > 0 && !strings.HasPrefix(got[0], `receiving from "sales" has been failing for 2m0s: `) {
			t.Errorf("told %q", got[0])
		}
	})
}

func TestAMessageThatCannotBeDealtWithIsCritical(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Without = inmemory.DeadLetterer
		broker.Fail = func(verb, object string) error {
			if verb == "Dispatch" && object == "error" {
				return errNo
			}
			return nil
		}
		var told harness.Tally
		cfg := harness.Sales(broker, failing(&harness.Tally{}))
		cfg.Recoverability = once
		cfg.Notify = []func(context.Context, recoverability.Notification){
			func(_ context.Context, n recoverability.Notification) {
				if n.Kind == recoverability.CriticalError && n.Failure.MessageID == "m-1" && errors.Is(n.Failure.Err, errNo) {
					told.Add(n.Failure.Err.Error())
				}
			},
		}
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{}, endpoint.MessageID("m-1"))
		time.Sleep(400 * time.Millisecond)
		got := told.List()
		if len(got) != 1 || !strings.HasPrefix(got[0], `message "m-1" from "sales" could not be settled: `) {
			t.Errorf("told %q", got)
		}
	})
}
