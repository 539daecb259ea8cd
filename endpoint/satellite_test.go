package endpoint_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// lookFailing is a broker with two satellites, whose search for those named by away fails while
// away says so. Messages of both are noted in done.
func lookFailing(broker *inmemory.Transport, done *harness.Tally, away func(verb, queue string) bool) {
	broker.CreateQueues("dead", "waiting")
	for _, queue := range []string{"dead", "waiting"} {
		broker.Satellites = append(broker.Satellites, transport.Satellite{
			Queue: queue, Handle: func(context.Context, *transport.Message) ([]transport.Operation, error) {
				done.Add(queue)
				return nil, nil
			},
		})
	}
	broker.Fail = func(verb, object string) error {
		if away(verb, object) {
			return errNo
		}
		return nil
	}
}

// If satellites cannot be verified, the endpoint verifies them again.
func TestVerificationOfSatellitesIsRepeated(t *testing.T) {
	for name, verb := range map[string]string{"the search fails": "Satellites", "the receiver does not open": "OpenReceiver"} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				var (
					away          atomic.Bool
					done, handled harness.Tally
					logs          bytes.Buffer
				)
				away.Store(true)
				lookFailing(broker, &done, func(v, queue string) bool { return v == verb && queue == "waiting" && away.Load() })
				cfg := harness.Sales(broker, working[harness.PlaceOrder](&handled))
				cfg.Logger = slog.New(slog.NewTextHandler(&logs, nil))
				r := harness.Start(t, cfg)
				for _, queue := range []string{"dead", "waiting"} {
					if err := broker.Put(queue, &transport.Message{}); err != nil {
						t.Fatal(err)
					}
				}
				r.MustSend(harness.PlaceOrder{})
				time.Sleep(time.Hour)
				if diff := cmp.Diff([]string{"dead"}, done.List()); diff != "" || len(handled.List()) != 1 {
					t.Errorf("while one satellite is unknown: %s, %d messages handled", diff, len(handled.List()))
				}
				h := r.Health()
				if h.Ready || len(h.Reasons) != 1 || !strings.Contains(h.Reasons[0], "the transport's own queues") || !strings.Contains(h.Reasons[0], errNo.Error()) {
					t.Errorf("health: %+v", h)
				}
				away.Store(false)
				time.Sleep(time.Minute)
				if diff := cmp.Diff([]string{"dead", "waiting"}, done.List()); diff != "" {
					t.Errorf("afterwards: %s", diff)
				}
				h = r.Health()
				want := []endpoint.QueueHealth{{Queue: "sales"}, {Queue: "dead"}, {Queue: "waiting"}}
				if diff := cmp.Diff(want, h.Queues); diff != "" || !h.Ready {
					t.Errorf("health afterwards: %+v %s", h, diff)
				}
				r.End()
				if n := strings.Count(logs.String(), "could not be looked for"); n != 1 {
					t.Errorf("%d log lines about the search, want 1:\n%s", n, logs.String())
				}
			})
		})
	}
}

func TestAnEndpointStopsWhileItLooksForSatellites(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var done harness.Tally
		lookFailing(broker, &done, func(verb, _ string) bool { return verb == "Satellites" })
		r := harness.Start(t, harness.Sales(broker))
		synctest.Wait()
		began := time.Now()
		r.End()
		if took := time.Since(began); took > time.Second {
			t.Errorf("the stop took %v", took)
		}
	})
}

func TestALongSearchForSatellitesIsACriticalError(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var done, critical harness.Tally
		lookFailing(broker, &done, func(verb, _ string) bool { return verb == "Satellites" })
		cfg := harness.Sales(broker)
		cfg.Notify = append(cfg.Notify, func(_ context.Context, n recoverability.Notification) {
			if n.Kind == recoverability.CriticalError && errors.Is(n.Failure.Err, errNo) {
				critical.Add(n.Failure.Queue)
			}
		})
		harness.Start(t, cfg)
		time.Sleep(time.Hour)
		if got := critical.List(); len(got) != 1 {
			t.Errorf("critical errors: %v, want 1", got)
		}
	})
}

// NServiceBus describes a failure in headers, and has Service Bus move the message.
func TestADeadLetterKeepsTheFailureOfItsSender(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.CreateQueues("dead")
		broker.Satellites = []transport.Satellite{{
			Queue: "dead", Handle: func(context.Context, *transport.Message) ([]transport.Operation, error) {
				return nil, &transport.DeadLetteredError{Queue: "sales", Reason: "moved", Count: 1}
			},
		}}
		cfg := harness.Sales(broker)
		cfg.Recoverability.FaultHeaders = func(h *header.Map, _ recoverability.Failure) { h.Set("tenant", h.Get(header.ExceptionType)) }
		harness.Start(t, cfg)
		m := &transport.Message{ID: "m"}
		m.Headers.Set(header.FailedQ, "billing")
		m.Headers.Set(header.ExceptionType, "System.TimeoutException")
		m.Headers.Set(header.ExceptionMessage, "too late")
		if err := broker.Put("dead", m); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		failed := broker.Messages("error")
		if len(failed) != 1 {
			t.Fatalf("%d messages are in the error queue", len(failed))
		}
		for name, want := range map[string]string{
			header.FailedQ: "billing", header.ExceptionType: "System.TimeoutException", header.ExceptionMessage: "too late",
			header.ExceptionStackTrace: "", header.HoldfastFaultClass: "dead-lettered", "tenant": "System.TimeoutException",
			header.HoldfastFaultDeadLettered: `dead-lettered by the broker in queue "sales": moved, 1 time(s)`,
		} {
			if got := failed[0].Headers.Get(name); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
	})
}
