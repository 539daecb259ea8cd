package asb

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestAThrottledConnectionMakesOneRequestAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		throttle := newThrottle()
		begin := time.Now()
		const busyFor = time.Minute
		refused, accepted := 0, 0
		var mu sync.Mutex
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				for {
					own, err := throttle.wait(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(10 * time.Millisecond) // the request
					mu.Lock()
					busy := time.Since(begin) < busyFor
					if busy {
						refused++
					} else {
						accepted++
					}
					mu.Unlock()
					if !busy {
						own.end(nil)
						return
					}
					own.end(fmt.Errorf("%w: by the test", errBusy))
				}
			})
		}
		all.Wait()
		// The first hundred are in flight before the first answer; then pauses are 2 s at least,
		// and 10 s at most.
		if again := refused - 100; again < 6 || again > 30 || accepted != 100 {
			t.Errorf("%d requests were refused, of which 100 at the beginning, and %d accepted", refused, accepted)
		}
		if took := time.Since(begin); took > busyFor+throttleMax+time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

func TestAProbeWithoutAnAnswerKeepsTheThrottle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		throttle := newThrottle()
		own, _ := throttle.try()
		own.end(errBusy)
		probe, err := throttle.wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := throttle.try(); ok {
			t.Error("a request is made beside the probe")
		}
		probe.end(context.Canceled)
		if _, ok := throttle.try(); ok {
			t.Error("a request is made at once after a probe without an answer")
		}
		probe, err = throttle.wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		probe.end(nil)
		if _, ok := throttle.try(); !ok {
			t.Error("a request waits after the probe was accepted")
		}
		own.end(errBusy) // an answer that is late
		if _, ok := throttle.try(); !ok {
			t.Error("a late answer counts")
		}
	})
}

func TestAWaitForTheThrottleEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		throttle := newThrottle()
		own, _ := throttle.try()
		own.end(errBusy)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := throttle.wait(ctx); err == nil {
			t.Error("it did not wait")
		}
	})
}
