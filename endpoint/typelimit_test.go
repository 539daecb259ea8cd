package endpoint_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// gauge is how many run at once, and the most that ever did.
type gauge struct {
	mu        sync.Mutex
	now, most int
}

func (g *gauge) change(by int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now += by
	g.most = max(g.most, g.now)
}

func (g *gauge) peak() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.most
}

// working is a handler that takes a second.
func working[M any](done *tally, gauges ...*gauge) endpoint.Handler {
	return endpoint.Handle(func(ctx context.Context, _ *endpoint.Session, m M) error {
		for _, g := range gauges {
			g.change(1)
			defer g.change(-1)
		}
		select {
		case <-time.After(time.Second):
			done.add(fmt.Sprintf("%T", m))
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// limited handles at most two shipOrders at once, and four messages in all.
func limited(broker *inmemory.Transport, handlers ...endpoint.Handler) endpoint.Config {
	cfg := sales(broker, handlers...)
	cfg.Messages[2] = cfg.Messages[2].AtMost(2)
	cfg.Routes = []endpoint.Route{endpoint.RouteTo[shipOrder]("sales"), endpoint.RouteTo[placeOrder]("sales")}
	cfg.Concurrency = 4
	return cfg
}

func TestATypeWithALimitKeepsItAndDoesNotHoldUpOthers(t *testing.T) {
	for _, mode := range []endpoint.TransactionMode{endpoint.ReceiveOnly, endpoint.None, endpoint.SendsAtomicWithReceive} {
		t.Run(mode.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
				broker.Lease = 10 * time.Second
				var ships, all gauge
				var shipped, placed tally
				cfg := limited(broker, working[shipOrder](&shipped, &ships, &all), working[placeOrder](&placed, &all))
				cfg.Transactions = mode
				if mode == endpoint.SendsAtomicWithReceive { // an open transaction keeps its slot
					cfg.Pipeline.Logical.Use("write", writing)
				}
				r := start(t, cfg)
				for range 12 {
					r.send(shipOrder{})
				}
				for range 12 {
					r.send(placeOrder{})
				}
				time.Sleep(6*time.Second + 100*time.Millisecond) // 24 s of work, four at a time
				if len(placed.list()) != 12 || len(shipped.list()) != 12 {
					t.Errorf("%d placed, %d shipped, want 12 and 12", len(placed.list()), len(shipped.list()))
				}
				if ships.peak() != 2 || all.peak() != 4 {
					t.Errorf("%d of the type at once, %d in all, want 2 and 4", ships.peak(), all.peak())
				}
			})
		})
	}
}

func TestAFloodOfATypeWithALimitIsWorkedOffAtItsPace(t *testing.T) {
	for _, concurrency := range []int{1, 2, 4} {
		inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
			var ships, all gauge
			var shipped, placed tally
			cfg := limited(broker, working[shipOrder](&shipped, &ships, &all), working[placeOrder](&placed, &all))
			cfg.Concurrency = concurrency
			r := start(t, cfg)
			for range 100 {
				r.send(shipOrder{})
			}
			r.send(placeOrder{})
			pace := min(2, concurrency)
			time.Sleep(time.Duration(100/pace+2) * time.Second)
			if len(placed.list()) != 1 || len(shipped.list()) != 100 || ships.peak() != pace || all.peak() > concurrency {
				t.Errorf("concurrency %d: %d placed, %d shipped, %d of the type at once, %d in all",
					concurrency, len(placed.list()), len(shipped.list()), ships.peak(), all.peak())
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
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls tally
		cfg := limited(broker, endpoint.Handle(func(_ context.Context, _ *endpoint.Session, _ shipOrder) error {
			switch calls.add("") % 3 {
			case 0:
				panic("no")
			case 1:
				return errNo
			}
			return nil
		}))
		cfg.Pipeline.Receive.Use("again", again)
		cfg.Recoverability = once
		r := start(t, cfg)
		for range 30 {
			r.send(shipOrder{})
		}
		synctest.Wait()
		if len(calls.list()) < 30 || len(broker.Messages("sales")) != 0 {
			t.Errorf("%d calls, %d left", len(calls.list()), len(broker.Messages("sales")))
		}
	})
}

func TestAMessageThatWaitsAtAStopIsGivenBackUncounted(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var done tally
		cfg := limited(broker, working[shipOrder](&done))
		cfg.StopTimeout = 500 * time.Millisecond
		r := start(t, cfg)
		for range 12 {
			r.send(shipOrder{})
		}
		time.Sleep(700 * time.Millisecond)
		r.end()
		if len(done.list()) != 2 || len(broker.Messages("sales")) != 10 {
			t.Fatalf("%d done, %d released", len(done.list()), len(broker.Messages("sales")))
		}
		var attempts tally
		again := limited(broker, endpoint.Handle(func(_ context.Context, s *endpoint.Session, _ shipOrder) error {
			attempts.add(fmt.Sprint(s.Attempt().N))
			return nil
		}))
		start(t, again)
		synctest.Wait()
		for _, n := range attempts.list() {
			if n != "1" {
				t.Errorf("a message that only waited has attempt %s", n)
			}
		}
		if len(attempts.list()) != 10 {
			t.Errorf("%d handled", len(attempts.list()))
		}
	})
}

func TestAWaitingMessageWhoseLeaseIsLostMakesWay(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Lease = 3 * time.Second
		var lost atomic.Bool
		broker.Fail = func(verb, _ string) error {
			if verb == "Renew" && lost.Load() {
				return errNo
			}
			return nil
		}
		var done tally
		r := start(t, limited(broker, working[shipOrder](&done)))
		lost.Store(true)
		for range 12 {
			r.send(shipOrder{})
		}
		time.Sleep(time.Minute)
		if len(done.list()) < 12 || len(broker.Messages("sales")) != 0 {
			t.Errorf("%d done, %d left", len(done.list()), len(broker.Messages("sales")))
		}
	})
}
