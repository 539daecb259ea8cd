package endpoint_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// counting is a configuration with an outbox, whose handler counts, and takes a time.
func counting(broker, db *inmemory.Transport, concurrency int, handled *atomic.Int32, takes time.Duration) endpoint.Config {
	cfg := harness.Sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error {
		handled.Add(1)
		<-time.After(takes)
		return nil
	}))
	cfg.Outbox, cfg.Concurrency = db, concurrency
	return cfg
}

func TestMessagesThatArriveTogetherAreLookedForTogether(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var handled, looks atomic.Int32
		var keys []string
		db.Fail = func(verb, _ string) error {
			if verb == "FindHandled" {
				looks.Add(1)
			}
			return nil
		}
		for i := range 20 {
			keys = append(keys, fmt.Sprintf("m-%d", i))
		}
		harness.Start(t, counting(broker, db, 20, &handled, time.Second)).End()
		arrive(t, broker, keys...)
		before := looks.Load() // one at each start
		harness.Start(t, counting(broker, db, 20, &handled, time.Second))
		pass(time.Minute)
		if n := looks.Load() - before; handled.Load() != 20 || n > 5 {
			t.Errorf("%d handled after %d looks, want 20 after 5 at most", handled.Load(), n)
		}
	})
}

// A copy that arrives together with the message is not handled, because its look is older than the
// handling.
func TestACopyBesideItsMessageIsNotHandled(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var handled atomic.Int32
		harness.Start(t, counting(broker, db, 1, &handled, time.Millisecond)).End()
		arrive(t, broker, "m-1", "m-1", "m-2", "m-1")
		r := harness.Start(t, counting(broker, db, 1, &handled, time.Millisecond))
		pass(time.Minute)
		if n := r.Health().Outbox.Duplicates; handled.Load() != 2 || n != 2 {
			t.Errorf("%d handled and %d recognized, want 2 and 2", handled.Load(), n)
		}
	})
}

// What another process handles while a message waits for a handler is recognized.
func TestALookIsRepeatedForAMessageThatHasWaited(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var handled, elsewhere atomic.Int32
		harness.Start(t, counting(broker, db, 1, &handled, 2*time.Second)).End()
		arrive(t, broker, "m-1", "m-2")
		r := harness.Start(t, counting(broker, db, 1, &handled, 2*time.Second))
		pass(10 * time.Millisecond) // both have arrived, and the first is being handled
		other := &inmemory.Transport{}
		harness.Start(t, counting(other, db, 1, &elsewhere, 0)).End()
		arrive(t, other, "m-2")
		harness.Start(t, counting(other, db, 1, &elsewhere, 0))
		pass(time.Minute)
		if n := r.Health().Outbox.Duplicates; handled.Load() != 1 || elsewhere.Load() != 1 || n != 1 {
			t.Errorf("%d handled, %d by the other process, %d recognized; want 1, 1, 1", handled.Load(), elsewhere.Load(), n)
		}
	})
}

// While the database does not answer, arriving messages wait, and use up no retry.
func TestMessagesArriveWhileTheirLookFails(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var handled atomic.Int32
		var away atomic.Bool
		db.Fail = func(verb, _ string) error {
			if verb == "FindHandled" && away.Load() {
				return transport.ErrUnreachable
			}
			return nil
		}
		harness.Start(t, counting(broker, db, 4, &handled, 2*time.Second))
		away.Store(true)
		arrive(t, broker, "m-1", "m-2", "m-3")
		pass(10 * time.Minute)
		if n := handled.Load(); n != 0 {
			t.Errorf("%d handled while the database was away", n)
		}
		away.Store(false)
		pass(10 * time.Minute)
		if n := len(broker.Messages("error")); handled.Load() != 3 || n != 0 {
			t.Errorf("%d handled and %d failed, want 3 and 0", handled.Load(), n)
		}
	})
}

// A driver that panics when messages arrive does not end the process. The attempts ask again.
func TestADriverThatPanicsOverALookHandlesTheMessages(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var handled, looks atomic.Int32
		var armed atomic.Bool
		db.Fail = func(verb, _ string) error {
			if verb == "FindHandled" && armed.Load() && looks.Add(1) == 1 {
				panic("a fault of the driver")
			}
			return nil
		}
		harness.Start(t, counting(broker, db, 4, &handled, 0))
		armed.Store(true)
		arrive(t, broker, "m-1", "m-2", "m-3")
		pass(time.Minute)
		if n := len(broker.Messages("error")); looks.Load() < 2 || handled.Load() != 3 || n != 0 {
			t.Errorf("%d looks, %d handled, %d failed; want several, 3 and 0", looks.Load(), handled.Load(), n)
		}
	})
}

// arrive adds orders with these ids to the queue of sales.
func arrive(t *testing.T, broker *inmemory.Transport, ids ...string) {
	t.Helper()
	for _, id := range ids {
		m := &transport.Message{ID: id, Body: []byte(`{"ID":"1"}`)}
		m.Headers.Set(header.EnclosedMessageTypes, "Shop.PlaceOrder")
		if err := broker.Put("sales", m); err != nil {
			t.Fatal(err)
		}
	}
}
