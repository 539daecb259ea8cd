package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/envelope"
	"github.com/holdfast-go/holdfast/internal/handledid"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// putRow stores a message for a queue in the outbox of sales. The driver cannot decode the row if
// undecodable is set.
func putRow(t *testing.T, db *inmemory.Transport, queue, id string, undecodable error) {
	t.Helper()
	op := transport.Operation{Queue: queue, Message: &transport.Message{ID: id, Body: []byte(id)}}
	body := envelope.Encode([]transport.Operation{op}, time.Now(), 0)[0]
	if err := db.Put("sales.outbox", &transport.Message{ID: id, Body: body, Undecodable: undecodable}); err != nil {
		t.Fatal(err)
	}
}

// The driver cannot decode a row whose body looks sound.
func TestAnUndecodableRowIsNotSent(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		db.Lease = 30 * time.Second
		r := harness.Start(t, storing(broker, db, new(harness.Tally)))
		putRow(t, db, "shipping", "sound", nil)
		putRow(t, db, "shipping", "odd", errors.New("the headers are no JSON"))
		pass(time.Minute)
		r.End()
		left := db.Messages("sales.outbox")
		if n := len(broker.Messages("shipping")); n != 1 || len(left) != 1 || left[0].ID != "odd" {
			t.Errorf("%d messages were sent, and the rows %v are left", n, left)
		}
	})
}

// A row that was sent and cannot be removed is not released at the stop: another instance would
// send the message at once.
func TestASentRowIsNotReleasedAtTheStop(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		broker.CreateQueues("stock")
		broker.Fail = func(verb, object string) error {
			if verb == "Dispatch" && object == "stock" {
				return transport.ErrUnreachable
			}
			return nil
		}
		var released atomic.Int32
		db.Fail = func(verb, object string) error {
			switch {
			case object != "sales.outbox":
			case verb == "Complete":
				return transport.ErrUnreachable
			case verb == "Release":
				released.Add(1)
			}
			return nil
		}
		cfg := harness.Sales(broker)
		cfg.SendOnly, cfg.Outbox, cfg.Concurrency, cfg.StopTimeout = true, db, 1, 5*time.Second
		r := harness.Start(t, cfg) // makes the queues
		r.End()
		for _, queue := range []string{"shipping", "stock"} { // one batch
			putRow(t, db, queue, queue, nil)
		}
		r = harness.Start(t, cfg)
		pass(30 * time.Second)
		r.End()
		if n := len(broker.Messages("shipping")); n != 1 || released.Load() != 1 {
			t.Errorf("%d messages were sent, and %d rows released; want 1, 1", n, released.Load())
		}
	})
}

// With Concurrency 1 messages that are refused move to the error queue in their order. Each takes
// less time than the one before.
func TestRefusedMessagesKeepTheirOrder(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		broker.CreateQueues("error")
		var calls atomic.Int32
		broker.Fail = func(verb, object string) error {
			if verb == "Dispatch" && object == "error" {
				time.Sleep(time.Second / time.Duration(calls.Add(1)))
			}
			return nil
		}
		cfg := harness.Sales(broker)
		cfg.SendOnly, cfg.Outbox, cfg.Concurrency = true, db, 1
		harness.Start(t, cfg).End() // makes the queues
		var want []string
		for i := range 10 { // one batch
			putRow(t, db, "nowhere", fmt.Sprint(i), nil)
			want = append(want, fmt.Sprint(i))
		}
		harness.Start(t, cfg)
		time.Sleep(time.Minute)
		synctest.Wait()
		if diff := cmp.Diff(want, bodies(broker, "error")); diff != "" {
			t.Error(diff)
		}
	})
}

// A message is completed three times at most.
func TestASettlingIsTriedThreeTimes(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls atomic.Int32
		broker.Fail = func(verb, object string) error {
			if verb == "Complete" && object == "sales" {
				calls.Add(1)
				return transport.ErrUnreachable
			}
			return nil
		}
		cfg := harness.Sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error { return nil }))
		cfg.Transactions = endpoint.ReceiveOnly
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{ID: "1"})
		pass(time.Minute)
		if n := calls.Load(); n != 3 {
			t.Errorf("%d calls", n)
		}
	})
}

// A hash is a UUID of version 8. As an id of another message the text of the hash has another key.
func TestNoIDIsTheKeyOfAnother(t *testing.T) {
	hash := handledid.Of("sales", "order 1")
	if key := handledid.Of("sales", uuid.Text(hash)); key == hash {
		t.Errorf("the id %s has the key of another message", uuid.Text(hash))
	}
	if a, b := handledid.Of("sales", "1"), handledid.Of("sale", "s1"); a == b {
		t.Errorf("messages of two queues have the key %x", a)
	}
}

// While an outage is known, a commit that fails is part of the outage: the message waits, although
// the database may answer again.
func TestAFailedCommitInAnOutageWaits(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var stores atomic.Int32
		failing := map[int32]bool{1: true, 2: true, 3: true} // the commit of 1, whether it fails alone, and the commit of 2
		db.Fail = func(verb, _ string) error {
			if verb == "Store" && failing[stores.Add(1)] {
				return transport.ErrUnreachable
			}
			return nil
		}
		began := time.Now()
		var calls harness.Tally
		cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, _ *endpoint.Session, o harness.PlaceOrder) error {
			calls.Add(fmt.Sprint(o.ID, " ", time.Since(began) >= 400*time.Millisecond))
			if o.ID == "2" {
				time.Sleep(100 * time.Millisecond)
			}
			return nil
		}))
		cfg.Outbox = db
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{ID: "1"})
		r.MustSend(harness.PlaceOrder{ID: "2"})
		pass(time.Minute)
		all := calls.List()
		slices.Sort(all)
		if diff := cmp.Diff([]string{"1 false", "1 true", "2 false", "2 true"}, all); diff != "" {
			t.Error(diff)
		}
	})
}

// Health names an outage of the database: of commits, and of the relay.
func TestHealthNamesAnOutageOfTheOutbox(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var away atomic.Bool
		db.Fail = func(string, string) error {
			if away.Load() {
				return transport.ErrUnreachable
			}
			return nil
		}
		r := harness.Start(t, storing(broker, db, new(harness.Tally)))
		away.Store(true)
		putRow(t, db, "shipping", "1", nil) // ends the call of Receive
		r.MustSend(harness.PlaceOrder{ID: "2"})
		pass(time.Minute)
		reasons := strings.Join(r.Health().Reasons, "; ")
		for _, want := range []string{"the outbox has not been usable since", "receiving from the outbox has been failing since"} {
			if !strings.Contains(reasons, want) || r.Health().Ready {
				t.Errorf("reasons %q, want %q", reasons, want)
			}
		}
		away.Store(false)
		pass(time.Minute)
		if n := len(broker.Messages("shipping")); n != 2 || !r.Health().Ready {
			t.Errorf("%d messages were sent, %+v", n, r.Health())
		}
	})
}
