package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// timing is a configuration whose handler carries out the steps in the id of its message, such as
// "set a 1h, cancel b". The messages of its timers are orders to ship, with the order's step as
// their id.
func timing(broker *inmemory.Transport) endpoint.Config {
	return harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
		for _, step := range strings.Split(o.ID, ", ") {
			var verb, name, after string
			_, _ = fmt.Sscan(step, &verb, &name, &after)
			switch verb {
			case "set":
				d, err := time.ParseDuration(after)
				if err == nil {
					err = s.Send(ctx, harness.ShipOrder{ID: step}, endpoint.After(d), endpoint.TimerName(name))
				}
				if err != nil {
					return err
				}
			case "cancel":
				if err := s.CancelTimer(ctx, name); err != nil {
					return err
				}
			case "send":
				if err := s.Send(ctx, harness.ShipOrder{ID: step}); err != nil {
					return err
				}
			default:
				return errNo
			}
		}
		return nil
	}))
}

// onTimers runs f for each place where timers can wait. db is where they do.
func onTimers(t *testing.T, f func(t *testing.T, cfg endpoint.Config, broker, db *inmemory.Transport)) {
	t.Helper()
	t.Run("outbox", func(t *testing.T) {
		withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
			cfg := timing(broker)
			cfg.Outbox = db
			f(t, cfg, broker, db)
		})
	})
	t.Run("atomic", func(t *testing.T) {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			cfg := timing(broker)
			cfg.Transactions = endpoint.SendsAtomicWithReceive
			f(t, cfg, broker, broker)
		})
	})
	t.Run("broker without delays", func(t *testing.T) {
		withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
			broker.Without = inmemory.Delay
			cfg := timing(broker)
			cfg.Outbox = db
			cfg.Recoverability.Delayed = recoverability.None
			f(t, cfg, broker, db)
		})
	})
}

func TestTimersAreSetReplacedAndCancelled(t *testing.T) {
	for _, test := range []struct {
		steps []string // a message each, a minute after the other
		want  []string // the shipped, in their order
	}{
		{[]string{"set a 1h"}, []string{"set a 1h"}},
		{[]string{"set a 1h", "set a 1h"}, []string{"set a 1h"}},
		{[]string{"set a 1h", "set a 2m"}, []string{"set a 2m"}},
		{[]string{"set a 1h", "cancel a"}, nil},
		{[]string{"cancel a", "set a 1h"}, []string{"set a 1h"}},
		{[]string{"set a 1h, cancel a"}, nil},
		{[]string{"set a 1h, cancel a, set a 2h"}, []string{"set a 2h"}},
		{[]string{"set a 1h, set a 2h, set b 1h"}, []string{"set b 1h", "set a 2h"}},
		{[]string{"set a 1h", "send, cancel a, fail", "send"}, []string{"send", "set a 1h"}},
		{[]string{"set a 30s", "send", "send", "cancel a"}, []string{"set a 30s", "send", "send"}},
		{[]string{"set a 5h, set b 3h, send", "cancel b", "set b 1h"}, []string{"send", "set b 1h", "set a 5h"}},
	} {
		t.Run(strings.Join(test.steps, "; "), func(t *testing.T) {
			onTimers(t, func(t *testing.T, cfg endpoint.Config, broker, db *inmemory.Transport) {
				cfg.Recoverability.Immediate = recoverability.None
				cfg.Recoverability.Delayed = recoverability.None
				r := harness.Start(t, cfg)
				for _, steps := range test.steps {
					r.MustSend(harness.PlaceOrder{ID: steps})
					pass(time.Minute)
				}
				pass(10 * time.Hour)
				var got []string
				for _, body := range bodies(broker, "shipping") {
					got = append(got, strings.TrimSuffix(strings.TrimPrefix(body, `{"ID":"`), `"}`))
				}
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Error(diff)
				}
				if n := len(db.Messages("sales.outbox")); n > 0 {
					t.Errorf("%d rows are left", n)
				}
			})
		})
	}
}

// A timer is sent when it is due, within a second, and not earlier.
func TestATimerIsOnTime(t *testing.T) {
	onTimers(t, func(t *testing.T, cfg endpoint.Config, broker, _ *inmemory.Transport) {
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{ID: "set a 72h"})
		pass(72*time.Hour - time.Second)
		if n := len(broker.Messages("shipping")); n != 0 {
			t.Errorf("%d messages were sent too early", n)
		}
		pass(2 * time.Second)
		if n := len(broker.Messages("shipping")); n != 1 {
			t.Errorf("%d messages were sent, want 1", n)
		}
	})
}

func TestTimersOutsideHandlers(t *testing.T) {
	onTimers(t, func(t *testing.T, cfg endpoint.Config, broker, _ *inmemory.Transport) {
		r := harness.Start(t, cfg)
		set := func(id string, opts ...endpoint.SendOption) {
			r.MustSend(harness.ShipOrder{ID: id}, append(opts, endpoint.TimerName("a"))...)
		}
		cancel := func() {
			t.Helper()
			if err := r.CancelTimer(t.Context(), "a"); err != nil {
				t.Error(err)
			}
		}
		cancel()
		set("first", endpoint.After(time.Hour))
		set("second", endpoint.At(time.Now().Add(time.Minute)))
		pass(2 * time.Hour)
		set("third", endpoint.After(time.Hour))
		cancel()
		pass(2 * time.Hour)
		set("past", endpoint.At(time.Now().Add(-time.Hour)))
		pass(time.Second)
		if diff := cmp.Diff([]string{`{"ID":"second"}`, `{"ID":"past"}`}, bodies(broker, "shipping")); diff != "" {
			t.Error(diff)
		}
	})
}

func TestTimersOutliveTheProcess(t *testing.T) {
	onTimers(t, func(t *testing.T, cfg endpoint.Config, broker, _ *inmemory.Transport) {
		first := harness.Start(t, cfg)
		first.MustSend(harness.PlaceOrder{ID: "set a 1h, set b 1h, set c 1h"})
		pass(time.Minute)
		first.End()
		second := harness.Start(t, cfg)
		second.MustSend(harness.PlaceOrder{ID: "cancel a, set b 2h"})
		pass(90 * time.Minute)
		if diff := cmp.Diff([]string{`{"ID":"set c 1h"}`}, bodies(broker, "shipping")); diff != "" {
			t.Error(diff)
		}
		pass(time.Hour)
		if n := len(broker.Messages("shipping")); n != 2 {
			t.Errorf("%d messages were sent, want 2", n)
		}
	})
}

func TestBadTimersAreErrorsOfTheCall(t *testing.T) {
	onTimers(t, func(t *testing.T, cfg endpoint.Config, _, db *inmemory.Transport) {
		r := harness.Start(t, cfg)
		long := strings.Repeat("x", 501)
		hour := endpoint.After(time.Hour)
		var receipt transport.Receipt
		for what, opts := range map[string][]endpoint.SendOption{
			"empty":       {hour, endpoint.TimerName("")},
			"too long":    {hour, endpoint.TimerName(long)},
			"no UTF-8":    {hour, endpoint.TimerName("\xff")},
			"no delay":    {endpoint.TimerName("a")},
			"receipt":     {hour, endpoint.TimerName("a"), endpoint.ReceiptIn(&receipt)},
			"not a name":  {hour, endpoint.OutgoingOption(func(out *pipeline.Outgoing) { out.Timer = "a" })},
			"negative":    {endpoint.After(-time.Hour), endpoint.TimerName("a")},
			"in no tx":    {hour, endpoint.TimerName("a"), endpoint.In(nil)},
			"no such tx":  {hour, endpoint.TimerName("a"), endpoint.In(1)},
			"queue gone":  {hour, endpoint.TimerName("a"), endpoint.To("nowhere")},
			"to no queue": {hour, endpoint.TimerName("a"), endpoint.To("")},
		} {
			if what == "to no queue" {
				opts[2] = endpoint.OutgoingOption(func(out *pipeline.Outgoing) { out.Queue = "" })
			}
			if err := r.Send(t.Context(), harness.ShipOrder{ID: what}, opts...); err == nil {
				t.Errorf("%s: no error", what)
			}
		}
		for _, name := range []string{"", long, "\xff"} {
			if err := r.CancelTimer(t.Context(), name); err == nil {
				t.Errorf("timer %.10q was cancelled", name)
			}
		}
		if err := r.CancelTimer(t.Context(), "a", endpoint.In(nil)); err == nil {
			t.Error("a timer was cancelled in no transaction")
		}
		for _, name := range []string{"a\x00b", strings.Repeat("ü", 250), "0,0:a", " "} {
			r.MustSend(harness.ShipOrder{ID: "1"}, hour, endpoint.TimerName(name))
		}
		pass(time.Second)
		if n := delayedIn(t, db, "sales.outbox"); n != 4 {
			t.Errorf("%d timers wait, want 4", n)
		}
	})
}

// delayedIn returns the number of delayed messages in a queue.
func delayedIn(t *testing.T, db *inmemory.Transport, queue string) int64 {
	t.Helper()
	return statsIn(t, db, queue).Delayed
}

// statsIn returns the counts of a queue.
func statsIn(t *testing.T, db *inmemory.Transport, queue string) transport.QueueStats {
	t.Helper()
	conn, err := db.Open(t.Context(), transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stats, err := conn.(transport.Inspector).Inspect(t.Context(), queue)
	if err != nil {
		t.Fatal(err)
	}
	return stats[0]
}

func TestTimersNeedADatabase(t *testing.T) {
	for name, change := range map[string]func(cfg *endpoint.Config){
		"no outbox": func(*endpoint.Config) {},
		"none":      func(cfg *endpoint.Config) { cfg.Transactions = endpoint.None },
		"not installed": func(cfg *endpoint.Config) {
			cfg.Transactions, cfg.Install = endpoint.SendsAtomicWithReceive, false
		},
		"no outbox store": func(cfg *endpoint.Config) {
			cfg.Transactions = endpoint.SendsAtomicWithReceive
			cfg.Transport.(*inmemory.Transport).Without = inmemory.OutboxStore
		},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				broker.CreateQueues("sales", "error", "sales.quarantine")
				var errs []error
				cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
					errs = append(errs, s.Send(ctx, harness.ShipOrder{}, endpoint.After(time.Hour), endpoint.TimerName("a")), s.CancelTimer(ctx, "a"))
					return nil
				}))
				change(&cfg)
				r := harness.Start(t, cfg)
				r.MustSend(harness.PlaceOrder{ID: "1"})
				pass(time.Second)
				errs = append(errs, r.Send(t.Context(), harness.ShipOrder{}, endpoint.After(time.Hour), endpoint.TimerName("a")), r.CancelTimer(t.Context(), "a"))
				for _, err := range errs {
					if err == nil {
						t.Error("no error")
					}
					if missing := errors.Is(err, transport.ErrNoQueue); missing != (name == "not installed") {
						t.Errorf("error %v", err)
					}
				}
				if len(errs) != 4 {
					t.Errorf("%d calls", len(errs))
				}
			})
		})
	}
}

func TestARecoveryHasNoTimers(t *testing.T) {
	onTimers(t, func(t *testing.T, cfg endpoint.Config, broker, _ *inmemory.Transport) {
		var errs []error
		cfg.Recoverability.Immediate = recoverability.None
		cfg.Recoverability.Delayed = recoverability.None
		cfg.OnFinalFailure = func(ctx context.Context, s *endpoint.Session, _ recoverability.Failure) error {
			errs = append(errs, s.Send(ctx, harness.ShipOrder{}, endpoint.After(time.Hour), endpoint.TimerName("a")), s.CancelTimer(ctx, "a"))
			return nil
		}
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{ID: "fail"})
		pass(time.Minute)
		if len(errs) != 2 || errs[0] == nil || errs[1] == nil {
			t.Errorf("the errors are %v", errs)
		}
		if n := len(broker.Messages("error")); n != 1 {
			t.Errorf("%d messages in the error queue", n)
		}
	})
}

// A timer whose queue is gone when it is due moves to the error queue, and holds up no other.
func TestATimerForAQueueThatIsGone(t *testing.T) {
	onTimers(t, func(t *testing.T, cfg endpoint.Config, broker, db *inmemory.Transport) {
		r := harness.Start(t, cfg)
		r.MustSend(harness.ShipOrder{ID: "gone"}, endpoint.To("other"), endpoint.After(time.Hour), endpoint.TimerName("a"))
		r.MustSend(harness.ShipOrder{ID: "there"}, endpoint.After(time.Hour), endpoint.TimerName("b"))
		conn, err := broker.Open(t.Context(), transport.Env{})
		if err == nil {
			err = errors.Join(conn.(transport.Remover).Remove(t.Context(), "other"), conn.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		pass(2 * time.Hour)
		if n := len(broker.Messages("error")); n != 1 {
			t.Errorf("%d messages in the error queue, want 1", n)
		}
		if diff := cmp.Diff([]string{`{"ID":"there"}`}, bodies(broker, "shipping")); diff != "" {
			t.Error(diff)
		}
		if n := delayedIn(t, db, "sales.outbox") + int64(len(db.Messages("sales.outbox"))); n != 0 {
			t.Errorf("%d rows are left", n)
		}
	})
}

// In the transport's own database a timer is moved to its queue in one commit: a failed one sends
// nothing.
func TestAnOwnTimerIsMovedAtomically(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		cfg := timing(broker)
		cfg.Transactions = endpoint.SendsAtomicWithReceive
		var completions atomic.Int32
		broker.Fail = func(verb, object string) error {
			if verb == "CompleteWith" && object == "sales.outbox" && completions.Add(1) <= 3 {
				return transport.ErrUnreachable
			}
			return nil
		}
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{ID: "set a 1h"})
		pass(2 * time.Hour)
		if n := len(broker.Messages("shipping")); n != 1 || completions.Load() != 4 {
			t.Errorf("%d messages after %d completions, want 1 and 4", n, completions.Load())
		}
	})
}

// A start while timers wait warns of nothing: they are sent when they are due.
func TestTimersAreNoLeftover(t *testing.T) {
	onTimers(t, func(t *testing.T, cfg endpoint.Config, broker, _ *inmemory.Transport) {
		var log strings.Builder
		cfg.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{ID: "set a 1h"})
		pass(time.Minute)
		r.End()
		harness.Start(t, cfg)
		pass(time.Hour)
		if log.Len() > 0 {
			t.Errorf("the log has warnings:\n%s", &log)
		}
		if n := len(broker.Messages("shipping")); n != 1 {
			t.Errorf("%d timers arrived, want 1", n)
		}
	})
}
