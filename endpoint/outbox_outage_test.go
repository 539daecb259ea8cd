package endpoint_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// logged is a log that can be read while it is written.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

func (l *logged) all() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// pass lets time pass, and what is due happen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// While the database is away nothing is handled, no retry is used up, and afterwards all goes on.
func TestAnUnreachableDatabaseUsesUpNoRetry(t *testing.T) {
	for _, verb := range []string{"FindHandled", "BeginStore", "Store"} {
		t.Run(verb, func(t *testing.T) {
			withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
				var away atomic.Bool
				db.Fail = func(v, _ string) error {
					if away.Load() && (v == verb || verb == "FindHandled") {
						return fmt.Errorf("%w: the database restarts", transport.ErrUnreachable)
					}
					return nil
				}
				var written harness.Tally
				cfg := storing(broker, db, &written)
				cfg.Recoverability = once
				r := harness.Start(t, cfg)
				away.Store(true)
				for i := range 20 {
					r.MustSend(harness.PlaceOrder{ID: fmt.Sprint(i)})
				}
				time.Sleep(time.Hour)
				if h := r.Health(); h.Ready || !strings.Contains(strings.Join(h.Reasons, ";"), "the outbox has not been usable") {
					t.Errorf("health is %+v", h)
				}
				if n := len(broker.Messages("error")); n > 0 {
					t.Fatalf("%d messages are in the error queue", n)
				}
				away.Store(false)
				time.Sleep(time.Minute)
				if n, sent := len(written.List()), len(broker.Messages("shipping")); n != 20 || sent != 20 {
					t.Errorf("%d writes, %d sent, want 20", n, sent)
				}
				if h := r.Health(); !h.Ready {
					t.Errorf("health is %+v", h)
				}
			})
		})
	}
}

// An endpoint that stops while its database is away leaves no goroutine that asks the closed
// connection.
func TestNothingProbesTheDatabaseAfterAStop(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var away atomic.Bool
		var looks atomic.Int32
		db.Fail = func(verb, _ string) error {
			if verb == "FindHandled" && away.Load() {
				looks.Add(1)
				return transport.ErrUnreachable
			}
			return nil
		}
		var log logged
		cfg := storing(broker, db, new(harness.Tally))
		cfg.Logger = log.logger()
		r := harness.Start(t, cfg)
		away.Store(true)
		r.MustSend(harness.PlaceOrder{ID: "1"})
		pass(10 * time.Second)
		if looks.Load() < 2 {
			t.Fatalf("%d looks at the database, want some", looks.Load())
		}
		r.End()
		before := looks.Load()
		pass(5 * time.Minute)
		if n := looks.Load(); n != before || log.has("the database of the outbox and the inbox answers") {
			t.Errorf("%d looks after the stop, and the log is:\n%s", n-before, log.text.String())
		}
	})
}

// Tables that are dropped while the endpoint runs are no fault of the messages.
func TestMissingTablesUseUpNoRetry(t *testing.T) {
	for _, missing := range []string{"sales.handled", "sales.outbox"} {
		t.Run(missing, func(t *testing.T) {
			withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
				var gone atomic.Bool
				db.Fail = func(_, object string) error {
					if gone.Load() && object == missing {
						return transport.ErrNoQueue
					}
					return nil
				}
				var written harness.Tally
				cfg := storing(broker, db, &written)
				cfg.Recoverability = once
				r := harness.Start(t, cfg)
				gone.Store(true)
				r.MustSend(harness.PlaceOrder{ID: "1"})
				pass(time.Hour)
				if n := len(broker.Messages("error")); n != 0 || len(written.List()) != 0 {
					t.Fatalf("%d messages failed, and %d were handled", n, len(written.List()))
				}
				if h := r.Health(); h.Ready || !strings.Contains(strings.Join(h.Reasons, " "), "Install") {
					t.Errorf("health is %+v", h)
				}
				gone.Store(false)
				pass(time.Minute)
				if len(written.List()) != 1 || len(broker.Messages("shipping")) != 1 {
					t.Errorf("%d writes, %d sent; want 1, 1", len(written.List()), len(broker.Messages("shipping")))
				}
			})
		})
	}
}

// A handler that gets its transaction at the second try has failed for another reason.
func TestAHandlerThatFailsAfterAnOutageUsesUpItsRetries(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var begins atomic.Int32
		db.Fail = func(verb, _ string) error {
			if verb == "BeginStore" && begins.Add(1)%2 == 1 {
				return transport.ErrUnreachable
			}
			return nil
		}
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
			begin := func() error { return inmemory.OnCommit(ctx, s, func() {}) }
			if first, second := begin(), begin(); first == nil || second != nil {
				t.Errorf("the transaction was begun with %v, then %v", first, second)
			}
			return errNo
		}))
		cfg.Outbox, cfg.Recoverability = db, once
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{ID: "1"})
		pass(time.Minute)
		if n := len(broker.Messages("error")); n != 1 {
			t.Errorf("%d messages in the error queue, want 1", n)
		}
	})
}

// The broker is away: messages are handled and stored, and sent when it is back.
func TestAnOutboxSendsWhenTheBrokerIsBack(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var away atomic.Bool
		broker.Fail = func(verb, object string) error {
			if away.Load() && verb == "Dispatch" && object == "shipping" {
				return transport.ErrUnreachable
			}
			return nil
		}
		r := harness.Start(t, storing(broker, db, new(harness.Tally)))
		away.Store(true)
		r.MustSend(harness.PlaceOrder{ID: "1"})
		for i := range 3 {
			if err := r.Send(t.Context(), harness.ShipOrder{ID: fmt.Sprint("via ", i)}, endpoint.ViaOutbox()); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(30 * time.Second)
		if n := len(broker.Messages("shipping")); n != 0 {
			t.Fatalf("%d sent while the broker is away", n)
		}
		away.Store(false)
		time.Sleep(10 * time.Second)
		if n := len(broker.Messages("shipping")); n != 4 {
			t.Errorf("%d sent, want 4", n)
		}
	})
}

func TestABacklogStopsHandling(t *testing.T) {
	for _, remember := range []time.Duration{0, endpoint.None} {
		t.Run(fmt.Sprint("remember ", remember), func(t *testing.T) { backlogStopsHandling(t, remember) })
	}
}

func backlogStopsHandling(t *testing.T, remember time.Duration) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var away atomic.Bool
		broker.Fail = func(verb, object string) error {
			if away.Load() && verb == "Dispatch" && object == "shipping" {
				return transport.ErrUnreachable
			}
			return nil
		}
		var written harness.Tally
		cfg := storing(broker, db, &written)
		cfg.Concurrency, cfg.Remember = 1, remember
		r := harness.Start(t, cfg)
		away.Store(true)
		for i := range 10 {
			if err := r.Send(t.Context(), harness.ShipOrder{ID: fmt.Sprint(i)}, endpoint.ViaOutbox()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		time.Sleep(5 * time.Minute)
		r.MustSend(harness.PlaceOrder{ID: "held"})
		time.Sleep(time.Minute)
		if len(written.List()) != 0 {
			t.Error("a message was handled while the outbox has a backlog")
		}
		away.Store(false)
		time.Sleep(2 * time.Minute)
		if n := len(broker.Messages("shipping")); n != 11 {
			t.Errorf("%d sent, want 11", n)
		}
	})
}

// A broker that delivers again what is held for too long, and counts that, does not make suspects
// of the messages that wait while the database is away.
func TestALongOutageMakesNoSuspects(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		broker.Without = inmemory.FreeRelease
		var away, quarantined atomic.Bool
		db.Fail = func(string, string) error {
			if away.Load() {
				return transport.ErrUnreachable
			}
			return nil
		}
		var written harness.Tally
		cfg := storing(broker, db, &written)
		cfg.Transport, cfg.Recoverability = &holdingBroker{broker, 10 * time.Minute}, once
		cfg.Notify = []func(context.Context, recoverability.Notification){func(_ context.Context, n recoverability.Notification) {
			quarantined.Store(quarantined.Load() || n.Kind == recoverability.Quarantined)
		}}
		r := harness.Start(t, cfg)
		away.Store(true)
		for i := range 5 {
			r.MustSend(harness.PlaceOrder{ID: fmt.Sprint(i)})
		}
		pass(12 * time.Hour)
		away.Store(false)
		pass(time.Hour)
		if n := len(written.List()); n != 5 || quarantined.Load() {
			t.Errorf("%d messages were handled, want 5; quarantined: %t", n, quarantined.Load())
		}
		if n := len(broker.Messages("error")) + len(broker.Messages("sales.quarantine")); n > 0 {
			t.Errorf("%d messages are in the error queue or in quarantine", n)
		}
	})
}
