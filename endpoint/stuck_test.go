package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// hanging is a handler that ignores its context until release is closed.
type hanging struct {
	release  chan struct{}
	returned chan error // of the message that each handler sends at its end
}

func newHanging() *hanging { return &hanging{make(chan struct{}), make(chan error, 100)} }

func (h *hanging) hang(ctx context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
	h.hangDeepInside()
	h.returned <- s.Send(context.WithoutCancel(ctx), harness.ShipOrder{ID: "late"}, endpoint.To("shipping"))
	return nil
}

//go:noinline
func (h *hanging) hangDeepInside() { <-h.release }

// hangingSales is an endpoint with two slots, and the log of the endpoint.
func hangingSales(broker *inmemory.Transport, h *hanging) (endpoint.Config, *harness.Log) {
	log := &harness.Log{}
	cfg := harness.Sales(broker, endpoint.Handle(h.hang))
	cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	cfg.Concurrency = 2
	return cfg, log
}

// after waits for d of the bubble's time.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// A handler that has not returned a second after its limit is in the log with the place where it
// hangs. The endpoint is not ready while such handlers take all slots.
func TestHandlerBeyondItsLimitIsSeen(t *testing.T) {
	limits := map[string]func(*endpoint.Config){
		"HandlerTimeout": func(cfg *endpoint.Config) { cfg.HandlerTimeout = 3 * time.Second },
		"Message.Timeout": func(cfg *endpoint.Config) {
			cfg.Messages = []endpoint.Message{endpoint.Command[harness.PlaceOrder]("Shop.PlaceOrder").Timeout(3 * time.Second)}
			cfg.Messages = append(cfg.Messages, harness.Messages()[1:]...)
		},
	}
	for name, limit := range limits {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				h := newHanging()
				cfg, log := hangingSales(broker, h)
				limit(&cfg)
				e := harness.Start(t, cfg)

				e.MustSend(harness.PlaceOrder{}, endpoint.MessageID("first"))
				after(3 * time.Second)
				if lines := log.Lines("has not returned"); len(lines) > 0 {
					t.Errorf("at the limit the log has %q", lines)
				}
				after(2 * time.Second)
				lines := log.Lines("has not returned")
				if len(lines) != 1 || !strings.Contains(lines[0], "hangDeepInside") ||
					!strings.Contains(lines[0], "message=first") || !strings.Contains(lines[0], "limit=3s") {
					t.Errorf("2 s after the limit the log has %q, want one line with the message and the stack", lines)
				}
				if h := e.Health(); !h.Ready || len(h.Warnings) > 0 {
					t.Errorf("with one of two slots stuck: %+v", h)
				}

				e.MustSend(harness.PlaceOrder{}, endpoint.MessageID("second"))
				after(5 * time.Second)
				health := e.Health()
				if health.Ready || !health.Live || !strings.Contains(fmt.Sprint(health.Reasons), `(message "second")`) {
					t.Errorf("with both slots stuck: ready %v, live %v, reasons %q", health.Ready, health.Live, health.Reasons)
				}
				if lines := log.Lines("has not returned"); len(lines) != 2 {
					t.Errorf("there are %d lines, want one for each handler: %q", len(lines), lines)
				}

				close(h.release)
				after(time.Second)
				if h := e.Health(); !h.Ready {
					t.Errorf("after the handlers have returned: %q", h.Reasons)
				}
			})
		})
	}
}

// A handler without a limit may run for long. The log says so after 10 minutes, an hour and six
// hours, and Health warns.
func TestHandlerWithoutLimitIsWarnedOf(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		h := newHanging()
		cfg, log := hangingSales(broker, h)
		e := harness.Start(t, cfg)
		e.MustSendMany(2)

		after(9 * time.Minute)
		if health := e.Health(); len(health.Warnings) > 0 || len(log.Lines("runs for very long")) > 0 {
			t.Errorf("after 9 minutes: %q", health.Warnings)
		}
		passed := 9 * time.Minute
		for i, until := range []time.Duration{11 * time.Minute, 61 * time.Minute, 361 * time.Minute, 24 * time.Hour} {
			after(until - passed)
			passed = until
			lines := log.Lines("runs for very long")
			if want := 2 * min(i+1, 3); len(lines) != want || !strings.Contains(lines[0], "hangDeepInside") {
				t.Errorf("after %v there are %d lines, want %d: %q", until, len(lines), want, lines)
			}
			if health := e.Health(); !health.Ready || len(health.Warnings) != 1 {
				t.Errorf("after %v: ready %v, warnings %q", until, health.Ready, health.Warnings)
			}
		}
		close(h.release)
		after(time.Second)
		if health := e.Health(); len(health.Warnings) > 0 {
			t.Errorf("after the handlers have returned: %q", health.Warnings)
		}
	})
}

// Run does not wait for ever for handlers that ignore their context. It names them, and what they
// send later goes nowhere.
func TestRunReturnsWithoutStuckHandlers(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		h := newHanging()
		cfg, log := hangingSales(broker, h)
		cfg.StopTimeout = 10 * time.Second
		e, err := endpoint.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- endpoint.RunAll(ctx, e) }()
		if err := e.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"a", "b"} {
			if err := e.Send(ctx, harness.PlaceOrder{}, endpoint.MessageID(id)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		stop()
		began := time.Now()
		after(9 * time.Second)
		if lines := log.Lines("run on after StopTimeout"); len(lines) > 0 {
			t.Errorf("before StopTimeout the log has %q", lines)
		}
		after(2 * time.Second)
		if lines := log.Lines("run on after StopTimeout"); len(lines) != 1 || !strings.Contains(lines[0], `message \"a\"`) {
			t.Errorf("after StopTimeout the log has %q", lines)
		}
		err = <-done
		if took := time.Since(began); took < 15*time.Second || took > 17*time.Second {
			t.Errorf("Run returned after %v, want StopTimeout and 5 s", took)
		}
		stuck, ok := errors.AsType[*endpoint.StuckError](err)
		if !ok || len(stuck.Handlers) != 2 || stuck.Handlers[0].Queue != "sales" || stuck.Handlers[0].Running < 15*time.Second {
			t.Fatalf("RunAll returned %v", err)
		}
		if health := e.Health(); health.Live {
			t.Error("the endpoint is live")
		}

		close(h.release)
		for range 2 {
			<-h.returned
		}
		after(time.Minute)
		if n := statsIn(t, broker, "shipping").Ready; n != 0 {
			t.Errorf("handlers that had been given up sent %d messages", n)
		}
		if n := statsIn(t, broker, "sales").Ready; n != 2 {
			t.Errorf("%d messages are back in the queue, want 2", n)
		}
	})
}

// A Run that has no StopTimeout waits for its handlers, however long.
func TestRunWithoutStopTimeoutWaits(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		h := newHanging()
		cfg, _ := hangingSales(broker, h)
		cfg.StopTimeout = endpoint.None
		e := harness.Start(t, cfg)
		e.MustSendMany(2)
		synctest.Wait()
		e.Stop()
		after(24 * time.Hour)
		close(h.release)
		e.End() // fails the test if Run returns an error
		if n := statsIn(t, broker, "shipping").Ready; n != 2 {
			t.Errorf("the handlers sent %d messages, want 2", n)
		}
	})
}

// A function of Config.Background that does not return ends Run in the same way.
func TestRunReturnsWithoutStuckBackground(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		release := make(chan struct{})
		cfg := harness.Sales(broker)
		cfg.StopTimeout = 10 * time.Second
		cfg.Background = []func(context.Context, *endpoint.Endpoint){
			func(ctx context.Context, _ *endpoint.Endpoint) { <-ctx.Done() },
			func(context.Context, *endpoint.Endpoint) { <-release },
		}
		e, err := endpoint.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- e.Run(ctx) }()
		if err := e.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
		after(time.Hour)
		if health := e.Health(); !health.Ready || len(health.Warnings) > 0 {
			t.Errorf("while the functions run: %+v", health)
		}
		stop()
		stuck, ok := errors.AsType[*endpoint.StuckError](<-done)
		if !ok || len(stuck.Handlers) != 1 || stuck.Handlers[0].Handler != "function 2 of Config.Background" {
			t.Errorf("Run returned %v", stuck)
		}
		close(release)
		synctest.Wait()
	})
}

// A handler that hangs in quarantine takes the one slot of the quarantine, not those of the queue,
// whether the queue has one slot, as before the first message, or all.
func TestAHangingHandlerInQuarantineIsNamedOnce(t *testing.T) {
	for slots, first := range map[int]int{1: 0, 2: 1} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				release := make(chan struct{})
				handle := func(_ context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
					if s.MessageID() == "bad" {
						<-release
					}
					return nil
				}
				cfg := harness.Sales(broker, endpoint.Handle(handle))
				cfg.Concurrency, cfg.HandlerTimeout = 2, time.Second
				broker.CreateQueues("sales.quarantine")
				m := &transport.Message{ID: "bad", Body: []byte("{}")}
				m.Headers.Set(header.EnclosedMessageTypes, "Shop.PlaceOrder")
				e := harness.Start(t, cfg)
				e.MustSendMany(first)
				after(time.Second)
				if err := broker.Put("sales.quarantine", m); err != nil {
					t.Fatal(err)
				}
				after(2 * time.Minute)
				reasons := e.Health().Reasons
				if len(reasons) != 1 || !strings.HasPrefix(reasons[0], `all 1 slots of "sales"`) {
					t.Errorf("reasons: %q", reasons)
				}
				close(release)
				after(time.Minute)
				if h := e.Health(); !h.Ready {
					t.Errorf("after the handler has returned: %+v", h)
				}
			})
		})
	}
}
