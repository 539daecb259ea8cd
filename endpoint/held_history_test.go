package endpoint_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/internal/histories"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// Whatever the error queue does, and whenever the endpoint stops or deliveries are lost: each
// failed message arrives in the error queue, and other messages are handled. Without losses and
// silence each failed message arrives once, and its handler runs once.
func TestHistoriesOfHeldMessages(t *testing.T) {
	histories.Run(t, histories.Count{Short: 50, Test: 500, Soak: 100_000}, heldHistory)
}

func heldHistory(t *testing.T, rnd *rand.Rand) {
	broker := new(inmemory.Transport)
	broker.CreateQueues("sales", "error", "shipping")
	leased := rnd.IntN(2) == 0
	if leased {
		broker.Lease = 30 * time.Second
	}
	if rnd.IntN(2) == 0 {
		deadLetters(broker)
	}
	var o orders
	b, cfg := moodyErrors(broker, &o)
	l := &losable{moodyBroker: b}
	if rnd.IntN(2) == 0 {
		l.maxHold = 10 * time.Minute
	}
	if !leased {
		cfg.Transport = l
	}
	r := harness.Start(t, cfg)
	exact, bad, well := true, 0, 0
	for range 3 + rnd.IntN(10) {
		switch rnd.IntN(7) {
		case 0, 1, 6:
			m := mood(rnd.IntN(int(moods)))
			b.set([]string{"error", "error", "sales.dead-letters"}[rnd.IntN(3)], m)
			exact = exact && m != silentMood && m != slowMood
		case 2, 3:
			k := rnd.IntN(30)
			send(t, r, "bad", bad, bad+k)
			bad += k
		case 4:
			r.End()
			r = harness.Start(t, cfg)
		case 5:
			if !leased && rnd.IntN(3) == 0 {
				l.lost.Store(true)
				pass(time.Second)
				l.lost.Store(false)
				exact = false
			}
		}
		pass(time.Duration(rnd.Int64N(int64(5 * time.Minute))))
	}
	send(t, r, "well", 0, 10)
	pass(30 * time.Second)
	if well, _ = o.handled(); well != 10 {
		t.Errorf("%d of 10 other orders were handled", well)
	}
	b.set("error", wellMood)
	pass(5 * time.Minute)
	all := idsIn(broker, "error")
	for i := range bad {
		if n := all[fmt.Sprint("bad", i)]; n < 1 || exact && n != 1 {
			t.Errorf("the error queue has order %d %d times", i, n)
		}
	}
	if _, twice := o.handled(); exact && twice != nil {
		t.Errorf("handlers were called again for %q", twice)
	}
	if h := r.Health(); !h.Ready {
		t.Errorf("health %+v", h)
	}
	r.End()
	if left := len(broker.Messages("sales")) + len(broker.Messages("sales.dead-letters")); left > 0 {
		t.Errorf("%d messages are left", left)
	}
}
