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
