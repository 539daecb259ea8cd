package goroutines

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func TestStopWaitsForAllFunctions(t *testing.T) {
	for _, keep := range []int{0, 7} {
		synctest.Test(t, func(t *testing.T) { // which fails when a goroutine is left
			g := Group{Keep: keep}
			var ran atomic.Int32
			for range 3 {
				begin := make(chan struct{})
				for range keep + 5 {
					if !g.Go(func() { <-begin; ran.Add(1) }) {
						t.Fatal("a function was not started")
					}
				}
				close(begin)
				synctest.Wait()
				if n := len(g.spare); n != keep {
					t.Errorf("%d goroutines wait for a function, want %d", n, keep)
				}
			}
			running := make(chan struct{})
			g.Go(func() { <-running; ran.Add(1) })
			go close(running)
			g.Stop()
			if got, want := ran.Load(), int32(3*(keep+5)+1); got != want {
				t.Errorf("%d functions ran before Stop returned, want %d", got, want)
			}
			if g.Go(func() { t.Error("a function ran after Stop") }) {
				t.Error("a function was started after Stop")
			}
		})
	}
}
