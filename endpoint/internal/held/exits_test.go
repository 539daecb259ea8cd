package held

import (
	"testing"
	"testing/synctest"
	"time"
)

// Few messages leave at once, and a queue that did not answer gets no further ones for a minute.
func TestExitsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := new(Exits)
		var left []time.Duration
		begin, all := time.Now(), make(chan time.Duration)
		for range 3 * exitsAtOnce {
			go func() {
				done := e.Enter()
				<-time.After(time.Second)
				done()
				all <- time.Since(begin)
			}()
		}
		for range 3 * exitsAtOnce {
			left = append(left, <-all)
		}
		for i, at := range left {
			if want := time.Duration(1+i/exitsAtOnce) * time.Second; at != want {
				t.Errorf("message %d left after %v, want %v", i, at, want)
			}
		}
		e.NoAnswer("one")
		if e.Answers("one") || !e.Answers("two") {
			t.Error("the wrong queue is taken to be silent")
		}
		pass(silentFor + time.Second)
		if !e.Answers("one") {
			t.Error("the queue is taken to be silent for ever")
		}
	})
}
