package rabbitmq

import (
	"math"
	"testing"
	"time"
)

// sharing is a prefetch with consumers of these shares, of which so many deliveries are open.
func sharing(open int, shares ...int) *prefetch {
	p := newPrefetch(3 * time.Minute)
	for _, share := range shares {
		c := &consumer{share: share, open: min(open, share)}
		open -= c.open
		p.consumers = append(p.consumers, c)
	}
	return p
}

func TestWhenConsumersAreCancelledForASmallerWindow(t *testing.T) {
	const all = 15
	for _, tt := range []struct {
		name  string
		open  int
		after time.Duration
		want  bool
	}{
		{"at once", all, 0, false},
		{"soon, with all delivered", all, narrowFor, true},
		{"soon, with nothing delivered", 0, narrowFor, true},
		{"soon, with some on their way", 7, narrowFor, false},
		{"later, with some on their way", 7, unsafeAfter, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, now := sharing(tt.open, 10, 5), time.Now()
			for range 3 { // each time anew
				if out, later := p.excess(10, now); out != nil || !later {
					t.Fatalf("%d consumers are to be cancelled at once, later is %t", len(out), later)
				}
				now = now.Add(narrowFor / 2)
				if out, later := p.excess(all, now); out != nil || later {
					t.Fatalf("%d consumers are to be cancelled for nothing, later is %t", len(out), later)
				}
				now = now.Add(time.Hour)
			}
			p.excess(10, now)
			out, later := p.excess(10, now.Add(tt.after))
			if (len(out) == 2) != tt.want || later == tt.want {
				t.Errorf("%d consumers are to be cancelled, later is %t", len(out), later)
			}
		})
	}
}

func TestAWindowBeyondWhatConsumersTakeLeavesThemAlone(t *testing.T) {
	var full [maxConsumers]int
	for i := range full {
		full[i] = math.MaxUint16
	}
	p, now := sharing(0, full[:]...), time.Now()
	n := p.want(2*maxWindow, 0, now)
	p.target.size = 2 * maxWindow
	n = max(n, p.want(2*maxWindow, 0, now))
	if out, _ := p.excess(maxWindow, now); n > maxWindow || out != nil || p.next(maxWindow, "orders") != nil {
		t.Errorf("of %d wanted, consumers change: %d cancelled", n, len(out))
	}
}

// What is not asked for because old deliveries hold so much is less than what has the target grow: otherwise free handlers
// would wait for others that take long.
func TestTheLastOldDeliveryHoldsUpNoOther(t *testing.T) {
	const window, held = 1200, 200
	p, now := sharing(0), time.Now()
	n := p.want(window, 0, now)
	p.leaving = []*consumer{{drained: true, open: held}}
	for left := held; left > 0; left-- {
		p.leaving[0].open = left
		p.next(n, "orders")
		grows := p.target
		if inHand := left + p.shares(); !grows.runsShort(inHand, window, now) {
			t.Fatalf("with %d held, %d of them old, nothing more is asked for", inHand, left)
		}
	}
}
