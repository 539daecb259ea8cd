package endpoint_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// The proof by chaos: whatever fails, and whenever it stops, a message ends in what its handler
// sends, in the error queue or in the dead-letter queue; and in one of them only, once, where
// completing and sending are one step.
func TestNoFaultLosesAMessage(t *testing.T) {
	for _, without := range []inmemory.Capability{
		0, inmemory.Completer, inmemory.Exact, inmemory.Delay, inmemory.FreeRelease, inmemory.DeadLetterer,
		inmemory.Completer | inmemory.Exact | inmemory.Delay | inmemory.FreeRelease | inmemory.DeadLetterer,
	} {
		for seed := range uint64(4) {
			for _, mode := range []endpoint.TransactionMode{endpoint.ReceiveOnly, endpoint.SendsAtomicWithReceive} {
				t.Run(fmt.Sprintf("without %b, %v, seed %d", without, mode, seed), func(t *testing.T) {
					harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
						broker.Without = without
						c := &chaos{t: t, broker: broker, seed: seed, mode: mode}
						c.run(1 + 7*int(seed%2))
						c.check(without&inmemory.Completer == 0)
					})
				})
			}
		}
	}
}

type chaos struct {
	t      *testing.T
	broker *inmemory.Transport
	seed   uint64
	mode   endpoint.TransactionMode
	limit  recoverability.RateLimit
	raging atomic.Bool
	calls  atomic.Uint64
}

const chaosMessages = 100

// mayFail are the verbs that a broker in trouble refuses.
var mayFail = []string{"Complete", "CompleteWith", "Retry", "Release", "Dispatch", "Receive", "Renew", "Begin"}

// roll is true once in n times, the same in each run with the seed and the number of the call.
func (c *chaos) roll(n uint64) bool {
	return c.raging.Load() && rand.New(rand.NewPCG(c.seed, c.calls.Add(1))).Uint64N(n) == 0
}

func (c *chaos) run(concurrency int) {
	c.broker.Lease = 20 * time.Second
	c.broker.CreateQueues("sales")
	c.broker.Fail = func(verb, _ string) error {
		if slices.Contains(mayFail, verb) && c.roll(4) {
			return errNo
		}
		return nil
	}
	feeder := harness.Sales(c.broker)
	feeder.SendOnly, feeder.Install, feeder.Name = true, false, "feeder"
	feed := harness.Start(c.t, feeder)
	for i := range chaosMessages {
		feed.MustSend(harness.PlaceOrder{ID: fmt.Sprint(i)}, endpoint.To("sales"))
	}
	cfg := harness.Sales(c.broker, endpoint.Handle(c.handle))
	cfg.Transactions, cfg.Concurrency, cfg.StopTimeout = c.mode, concurrency, 3*time.Second
	cfg.Recoverability = recoverability.Config{Immediate: 3, Delayed: 2, RateLimit: c.limit}
	c.raging.Store(true)
	for k := range 6 { // it is stopped now and then
		r := harness.Start(c.t, cfg)
		<-time.After(time.Duration(k) * 7 * time.Second)
		r.End()
	}
	c.raging.Store(false)
	r := harness.Start(c.t, cfg)
	<-time.After(time.Hour)
	r.End()
}

func (c *chaos) handle(ctx context.Context, s *endpoint.Session, m harness.PlaceOrder) error {
	if c.roll(5) {
		return errNo
	}
	if c.roll(20) {
		panic(errNo)
	}
	if c.roll(10) {
		<-time.After(5 * time.Second)
	}
	if c.mode == endpoint.SendsAtomicWithReceive && !c.roll(3) {
		if _, err := s.Tx(ctx); err != nil {
			return err
		}
	}
	return s.Send(ctx, harness.ShipOrder(m))
}

func (c *chaos) check(once bool) {
	c.t.Helper()
	seen := map[string]int{}
	for _, queue := range []string{"shipping", "error", "sales.dead", "sales.quarantine.dead"} {
		for _, m := range c.broker.Messages(queue) {
			var o harness.PlaceOrder
			if err := json.Unmarshal(m.Body, &o); err != nil {
				c.t.Fatal(err)
			}
			seen[o.ID]++
		}
	}
	for i := range chaosMessages {
		switch n := seen[fmt.Sprint(i)]; {
		case n == 0:
			c.t.Errorf("message %d is lost", i)
		case n > 1 && once:
			c.t.Errorf("message %d is there %d times", i, n)
		}
	}
	if left := len(c.broker.Messages("sales")); left > 0 {
		c.t.Errorf("%d messages are still in their queue", left)
	}
}
