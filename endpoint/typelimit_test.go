package endpoint_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// working is a handler that takes a second.
func working[M any](done *harness.Tally, gauges ...*harness.Gauge) endpoint.Handler {
	return endpoint.Handle(func(ctx context.Context, _ *endpoint.Session, m M) error {
		for _, g := range gauges {
			g.Change(1)
			defer g.Change(-1)
		}
		select {
		case <-time.After(time.Second):
			done.Add(fmt.Sprintf("%T", m))
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// limited handles at most two messages ShipOrder at once, and four messages in all.
func limited(broker *inmemory.Transport, handlers ...endpoint.Handler) endpoint.Config {
	cfg := harness.Sales(broker, handlers...)
	cfg.Messages[2] = cfg.Messages[2].AtMost(2)
	cfg.Routes = []endpoint.Route{endpoint.RouteTo[harness.ShipOrder]("sales"), endpoint.RouteTo[harness.PlaceOrder]("sales")}
	cfg.Concurrency = 4
	return cfg
}

func TestATypeWithALimitKeepsItAndDoesNotHoldUpOthers(t *testing.T) {
	for _, mode := range []endpoint.TransactionMode{endpoint.ReceiveOnly, endpoint.None, endpoint.SendsAtomicWithReceive} {
		t.Run(mode.String(), func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				broker.Lease = 10 * time.Second
				var ships, all harness.Gauge
				var shipped, placed harness.Tally
				cfg := limited(broker, working[harness.ShipOrder](&shipped, &ships, &all), working[harness.PlaceOrder](&placed, &all))
				cfg.Transactions = mode
				if mode == endpoint.SendsAtomicWithReceive { // an open transaction keeps its slot
					cfg.Pipeline.Logical.Use("write", writing)
				}
				r := harness.Start(t, cfg)
				for range 12 {
					r.MustSend(harness.ShipOrder{})
				}
				for range 12 {
					r.MustSend(harness.PlaceOrder{})
				}
				time.Sleep(6*time.Second + 100*time.Millisecond) // 24 s of work, four at a time
				if len(placed.List()) != 12 || len(shipped.List()) != 12 {
					t.Errorf("%d placed, %d shipped, want 12 and 12", len(placed.List()), len(shipped.List()))
				}
				if ships.Peak() != 2 || all.Peak() != 4 {
					t.Errorf("%d of the type at once, %d in all, want 2 and 4", ships.Peak(), all.Peak())
				}
			})
		})
	}
}

func TestAFloodOfATypeWithALimitIsWorkedOffAtItsPace(t *testing.T) {
	for _, concurrency := range []int{1, 2, 4} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			var ships, all harness.Gauge
			var shipped, placed harness.Tally
			cfg := limited(broker, working[harness.ShipOrder](&shipped, &ships, &all), working[harness.PlaceOrder](&placed, &all))
			cfg.Concurrency = concurrency
			r := harness.Start(t, cfg)
			for range 100 {
				r.MustSend(harness.ShipOrder{})
			}
			r.MustSend(harness.PlaceOrder{})
			pace := min(2, concurrency)
			time.Sleep(time.Duration(100/pace+2) * time.Second)
			if len(placed.List()) != 1 || len(shipped.List()) != 100 || ships.Peak() != pace || all.Peak() > concurrency {
				t.Errorf("concurrency %d: %d placed, %d shipped, %d of the type at once, %d in all",
					concurrency, len(placed.List()), len(shipped.List()), ships.Peak(), all.Peak())
			}
		})
	}
}

func writing(next pipeline.Func[*pipeline.Logical]) pipeline.Func[*pipeline.Logical] {
	return func(ctx context.Context, l *pipeline.Logical) error {
		if err := inmemory.OnCommit(ctx, l.Sender().(*endpoint.Session), func() {}); err != nil {
			return err
		}
		return next(ctx, l)
	}
}

func TestAFailedMessageOfATypeWithALimitMakesRoom(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls harness.Tally
		cfg := limited(broker, endpoint.Handle(func(_ context.Context, _ *endpoint.Session, _ harness.ShipOrder) error {
			switch calls.Add("") % 3 {
			case 0:
				panic("no")
			case 1:
				return errNo
			}
			return nil
		}))
		cfg.Pipeline.Receive.Use("again", again)
		cfg.Recoverability = once
		r := harness.Start(t, cfg)
		for range 30 {
			r.MustSend(harness.ShipOrder{})
		}
		synctest.Wait()
		if len(calls.List()) < 30 || len(broker.Messages("sales")) != 0 {
			t.Errorf("%d calls, %d left", len(calls.List()), len(broker.Messages("sales")))
		}
	})
}

func TestAMessageThatWaitsAtAStopIsGivenBackUncounted(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var done harness.Tally
		cfg := limited(broker, working[harness.ShipOrder](&done))
		cfg.StopTimeout = 500 * time.Millisecond
		r := harness.Start(t, cfg)
		for range 12 {
			r.MustSend(harness.ShipOrder{})
		}
		time.Sleep(700 * time.Millisecond)
		r.End()
		if len(done.List()) != 2 || len(broker.Messages("sales")) != 10 {
			t.Fatalf("%d done, %d released", len(done.List()), len(broker.Messages("sales")))
		}
		var attempts harness.Tally
		again := limited(broker, endpoint.Handle(func(_ context.Context, s *endpoint.Session, _ harness.ShipOrder) error {
			attempts.Add(fmt.Sprint(s.Attempt().N))
			return nil
		}))
		harness.Start(t, again)
		synctest.Wait()
		for _, n := range attempts.List() {
			if n != "1" {
				t.Errorf("a message that only waited has attempt %s", n)
			}
		}
		if len(attempts.List()) != 10 {
			t.Errorf("%d handled", len(attempts.List()))
		}
	})
}

func TestAWaitingMessageWhoseLeaseIsLostMakesWay(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Lease = 3 * time.Second
		var lost atomic.Bool
		broker.Fail = func(verb, _ string) error {
			if verb == "Renew" && lost.Load() {
				return errNo
			}
			return nil
		}
		var done harness.Tally
		r := harness.Start(t, limited(broker, working[harness.ShipOrder](&done)))
		lost.Store(true)
		for range 12 {
			r.MustSend(harness.ShipOrder{})
		}
		time.Sleep(time.Minute)
		if len(done.List()) < 12 || len(broker.Messages("sales")) != 0 {
			t.Errorf("%d done, %d left", len(done.List()), len(broker.Messages("sales")))
		}
	})
}
