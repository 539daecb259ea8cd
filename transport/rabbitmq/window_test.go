package rabbitmq

import (
	"math"
	"testing"
	"time"
)

// sharing is a session with consumers of these shares.
func sharing(shares ...int) *session {
	s, _ := lostSession(0)
	s.receiver.conn.maxHold = time.Minute
	for _, share := range shares {
		s.consumers = append(s.consumers, &consumer{share: share})
	}
	return s
}

func TestEachNarrowingOfAWindowIsBorneForAWhile(t *testing.T) {
	s, now := sharing(10, 5), time.Now()
	for range 3 {
		if out := s.excess(10, now); out != nil {
			t.Fatalf("%d consumers are to be cancelled at once", len(out))
		}
		now = now.Add(time.Second)
		if out := s.excess(15, now); out != nil {
			t.Fatalf("%d consumers are to be cancelled for nothing", len(out))
		}
		now = now.Add(time.Hour)
	}
	if out := s.excess(10, now); out != nil {
		t.Fatalf("%d consumers are to be cancelled at once", len(out))
	}
	if out := s.excess(10, now.Add(s.patience())); len(out) != 2 {
		t.Errorf("%d consumers are to be cancelled when it lasts, want both", len(out))
	}
}

func TestAWindowBeyondWhatConsumersTakeLeavesThemAlone(t *testing.T) {
	var full [maxConsumers]int
	for i := range full {
		full[i] = math.MaxUint16
	}
	s := sharing(full[:]...)
	if err := s.fit(2*maxWindow, false, time.Now()); err != nil || len(s.consumers) != maxConsumers {
		t.Errorf("%d consumers, %v", len(s.consumers), err)
	}
}

// What is not asked for because old deliveries hold so much is less than what has the reach grow: else handlers that are
// free would wait for others that take long.
func TestALastOldDeliveryHoldsUpNobody(t *testing.T) {
	const window, held = 1200, 200
	s := sharing()
	n := s.reachIn(window)
	s.leaving = []*consumer{{drained: true, open: held}}
	for left := held; left > 0; left-- {
		s.leaving[0].open = left
		if share := s.free(n); share > 0 {
			s.consumers = append(s.consumers, &consumer{share: share})
		}
		grows := s.reach
		if inHand := left + s.shares(); !grows.runsShort(inHand) {
			t.Fatalf("with %d in hand, %d of them old, nothing more is asked for", inHand, left)
		}
	}
}
