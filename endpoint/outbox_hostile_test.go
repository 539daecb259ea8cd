package endpoint_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
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

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// An endpoint that stops while its database is away leaves no goroutine that asks the closed connection.
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
		cfg := storing(broker, db, new(tally))
		cfg.Logger = log.logger()
		r := start(t, cfg)
		away.Store(true)
		r.send(placeOrder{ID: "1"})
		time.Sleep(10 * time.Second)
		if looks.Load() < 2 {
			t.Fatalf("%d looks at the database, want some", looks.Load())
		}
		r.end()
		before := looks.Load()
		time.Sleep(5 * time.Minute)
		if n := looks.Load(); n != before || log.has("the database of the outbox answers") {
			t.Errorf("%d looks after the stop, and the log is:\n%s", n-before, log.text.String())
		}
	})
}

// Several messages of one handler that the broker cannot take for a moment are several operations: none moves to the
// error queue at the first refusal.
func TestARefusalThatPassesMovesNoneOfManyMessages(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var refusals atomic.Int32
		broker.Fail = func(verb, object string) error {
			if verb == "Dispatch" && object == "shipping" && refusals.Add(1) <= 10 {
				return errors.New("no room at the moment")
			}
			return nil
		}
		cfg := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o placeOrder) error {
			for range 10 {
				if err := s.Send(ctx, shipOrder(o)); err != nil {
					return err
				}
			}
			return nil
		}))
		cfg.Outbox = db
		start(t, cfg).send(placeOrder{ID: "1"})
		time.Sleep(time.Minute)
		if sent, failed := len(broker.Messages("shipping")), len(broker.Messages("error")); sent != 10 || failed != 0 {
			t.Errorf("%d sent, %d in the error queue; want 10, 0", sent, failed)
		}
	})
}
