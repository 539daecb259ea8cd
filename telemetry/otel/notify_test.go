package otel_test

import (
	"context"
	"errors"
	"slices"
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

// once is no retries at all.
var once = recoverability.Config{Immediate: recoverability.None, Delayed: recoverability.None}

// counted are the points of a counter: its own attribute and number, such as "held: 1".
func (tel *telemetry) counted(metric, attribute string) map[string]float64 {
	tel.t.Helper()
	counts := map[string]float64{}
	for name, n := range tel.about(metric + "{") {
		_, rest, _ := strings.Cut(name, attribute+"=")
		value, _, _ := strings.Cut(rest, ",")
		counts[value] += n
	}
	return counts
}

// events are the names of the events of a span, and those of their attributes that are of
// recoverability.
func (tel *telemetry) events(span string) (events []string) {
	tel.t.Helper()
	for _, e := range tel.only(span).Events() {
		events = append(events, e.Name)
		for _, a := range told(e.Attributes) {
			if rest, ok := strings.CutPrefix(a, "holdfast.recoverability."); ok {
				events = append(events, rest)
			}
		}
	}
	return events
}

func TestFallbacksAreCountedAndOnTheSpan(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.CreateQueues("sales")
		broker.MaxHeaders = 400
		tel := newTelemetry(t)
		cfg := harness.Sales(broker, failing(errors.New(strings.Repeat("x", 1<<20))))
		cfg.Recoverability = once
		var h header.Map
		h.Set(header.EnclosedMessageTypes, "Shop.PlaceOrder")
		if err := broker.Put("sales", &transport.Message{ID: "m-1", Headers: h, Body: []byte("{}")}); err != nil {
			t.Fatal(err)
		}
		tel.start(cfg)
		synctest.Wait()
		if diff := cmp.Diff(map[string]float64{"minimal_headers": 1}, tel.counted("holdfast.recoverability.fallbacks", "fallback")); diff != "" {
			t.Error(diff)
		}
		want := []string{"exception", "fallback", "fallback=minimal_headers", "recoverability", "action=error", "queue=error"}
		if diff := cmp.Diff(want, tel.events("process sales")); diff != "" {
			t.Error(diff)
		}
	})
}

func TestWhatWasNotCarriedOutIsNoActionAndSaysSo(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Without = inmemory.DeadLetterer
		broker.Fail = func(verb, object string) error {
			if verb == "Dispatch" && object == "error" {
				return transport.ErrNoQueue
			}
			return nil
		}
		tel := newTelemetry(t)
		cfg := harness.Sales(broker, failing(errors.New("no funds")))
		cfg.Recoverability = once
		r := tel.start(cfg)
		r.send(t.Context(), harness.PlaceOrder{ID: "1"})
		time.Sleep(100 * time.Millisecond)
		r.End()
		if diff := cmp.Diff(map[string]float64{"held": 1}, tel.counted("holdfast.recoverability.fallbacks", "fallback")); diff != "" {
			t.Error(diff)
		}
		if got := tel.about("holdfast.recoverability.actions"); len(got) > 0 {
			t.Errorf("counted %v", got)
		}
		want := []string{"exception", "fallback", "fallback=held", "recoverability", "action=error", "carried_out=false", "queue=error"}
		if diff := cmp.Diff(want, tel.events("process sales")); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAnActionAfterAFailedRecoverStageIsCountedToo(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		tel := newTelemetry(t)
		cfg := harness.Sales(broker, failing(recoverability.Unrecoverable(errors.New("no funds"))))
		cfg.Pipeline.Recover.Use("fail", func(pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
			return func(context.Context, *pipeline.Recover) error { return errors.New("no") }
		})
		tel.start(cfg).send(t.Context(), harness.PlaceOrder{ID: "1"})
		if diff := cmp.Diff(map[string]float64{"error": 1}, tel.counted("holdfast.recoverability.actions", "action")); diff != "" {
			t.Error(diff)
		}
		if attrs := told(tel.only("process sales").Attributes()); !slices.Contains(attrs, "holdfast.error.class=unrecoverable") {
			t.Errorf("attributes are %q", attrs)
		}
	})
}

func TestUsersNotificationsAreKept(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var kinds []recoverability.NotificationKind
		tel := newTelemetry(t)
		cfg := harness.Sales(broker, failing(errors.New("no funds")))
		cfg.Recoverability = once
		cfg.Notify = append(cfg.Notify, func(_ context.Context, n recoverability.Notification) { kinds = append(kinds, n.Kind) })
		tel.start(cfg).send(t.Context(), harness.PlaceOrder{ID: "1"})
		if diff := cmp.Diff([]recoverability.NotificationKind{recoverability.MovedToError}, kinds); diff != "" {
			t.Error(diff)
		}
	})
}

func TestARateLimitIsMeasuredWhileItIsInForce(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		tel := newTelemetry(t)
		var down atomic.Bool
		down.Store(true)
		cfg := harness.Sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error {
			if down.Load() {
				return errors.New("away")
			}
			return nil
		}))
		cfg.Recoverability.RateLimit = recoverability.RateLimit{After: 4, Delay: time.Second, Scope: recoverability.ByType}
		r := tel.start(cfg)
		for range 5 {
			r.send(t.Context(), harness.PlaceOrder{})
		}
		time.Sleep(time.Minute)
		in := func() float64 {
			sum := 0.0
			for _, n := range tel.about("holdfast.rate_limits{") {
				sum += n
			}
			return sum
		}
		if n := in(); n != 1 {
			t.Errorf("%v limits in force, want 1: %v", n, tel.about("holdfast.rate_limits"))
		}
		down.Store(false)
		time.Sleep(time.Minute)
		if n := in(); n != 0 {
			t.Errorf("%v limits in force afterwards", n)
		}
	})
}
