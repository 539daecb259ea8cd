package recovery

import (
	"testing"
	"testing/synctest"
	"time"
)

// The pauses of stuck messages grow, and begin anew after a time without such a message.
func TestPausesOfStuckMessagesGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Shared
		check := func(bound time.Duration) {
			t.Helper()
			if got := s.StuckPause(); got < bound/2 || got > bound {
				t.Errorf("a pause of %v, want %v at most and half of that at least", got, bound)
			}
		}
		for _, bound := range []int{1, 2, 4, 8, 16, 30, 30} {
			check(time.Duration(bound) * time.Second)
		}
		time.Sleep(2*maxHold + time.Second)
		check(time.Second)
	})
}

// The stop of the endpoint ends the pause of a stuck message.
func TestTheStopEndsThePauseOfAStuckMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stopping := make(chan struct{})
		s, began := Shared{Stopping: stopping}, time.Now()
		s.sleep(t.Context(), time.Second)
		if waited := time.Since(began); waited != time.Second {
			t.Errorf("the pause took %v, want 1s", waited)
		}
		close(stopping)
		s.sleep(t.Context(), time.Hour)
		if waited := time.Since(began); waited != time.Second {
			t.Errorf("the pauses took %v, want 1s", waited)
		}
	})
}
