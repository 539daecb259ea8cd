package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

var errFullDisk = errors.New("no space left on device")

// detecting is a database that takes errFullDisk for an outage.
type detecting struct{ *inmemory.Transport }

func (d detecting) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	c, err := d.Transport.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	return detectingConn{c, c.(transport.OutboxStore), c.(transport.Installer), c.(transport.Inspector)}, nil
}

type detectingConn struct {
	transport.Conn
	transport.OutboxStore
	transport.Installer
	transport.Inspector
}

func (c detectingConn) BeginStore(ctx context.Context, e transport.OutboxEntry) (transport.Tx, error) {
	tx, err := c.OutboxStore.BeginStore(ctx, e)
	return detectingTx{tx}, err
}

type detectingTx struct{ transport.Tx }

func (detectingTx) Outage(_ context.Context, err error) bool { return errors.Is(err, errFullDisk) }

// A handler that finds a full disk, in a database that stores other messages, makes its own message
// wait: others are handled, and the endpoint is ready. The message uses up no retry, and fails if
// the disk stays full for long.
func TestAFullDiskOfOneHandler(t *testing.T) {
	for name, test := range map[string]struct {
		full    time.Duration
		handled bool
	}{"for a while": {5 * time.Minute, true}, "for long": {24 * time.Hour, false}} {
		t.Run(name, func(t *testing.T) {
			withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
				began := time.Now()
				cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
					if _, err := s.Tx(ctx); err != nil {
						return err
					}
					if o.ID == "full" && time.Since(began) < test.full {
						return fmt.Errorf("insert: %w", errFullDisk)
					}
					return s.Send(ctx, harness.ShipOrder(o))
				}))
				cfg.Outbox, cfg.Recoverability, cfg.Concurrency = detecting{db}, once, 1
				r := harness.Start(t, cfg)
				r.MustSend(harness.PlaceOrder{ID: "full"})
				for range 15 {
					r.MustSend(harness.PlaceOrder{ID: "other"})
					pass(time.Minute)
					if h := r.Health(); !h.Ready {
						t.Fatalf("health is %+v", h)
					}
				}
				sent, failed := len(broker.Messages("shipping")), broker.Messages("error")
				if want := map[bool]int{true: 16, false: 15}[test.handled]; sent != want || len(failed) != 16-want {
					t.Errorf("%d messages were sent and %d failed, want %d and %d", sent, len(failed), want, 16-want)
				}
			})
		})
	}
}

// A full disk that takes no other message either is an outage.
func TestAFullDiskOfTheDatabase(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var full atomic.Bool
		full.Store(true)
		db.Fail = func(verb, _ string) error {
			if verb == "Store" && full.Load() {
				return fmt.Errorf("%w: %w", transport.ErrUnreachable, errFullDisk)
			}
			return nil
		}
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
			if _, err := s.Tx(ctx); err != nil {
				return err
			}
			if full.Load() {
				return fmt.Errorf("insert: %w", errFullDisk)
			}
			return s.Send(ctx, harness.ShipOrder(o))
		}))
		cfg.Outbox, cfg.Recoverability = detecting{db}, once
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{ID: "1"})
		pass(time.Hour)
		if h := r.Health(); h.Ready || !strings.Contains(strings.Join(h.Reasons, ";"), "the outbox has not been usable") {
			t.Errorf("health is %+v", h)
		}
		full.Store(false)
		pass(time.Minute)
		if sent, failed := len(broker.Messages("shipping")), len(broker.Messages("error")); sent != 1 || failed != 0 {
			t.Errorf("%d messages were sent and %d failed, want 1 and 0", sent, failed)
		}
	})
}
