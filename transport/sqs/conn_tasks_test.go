package sqs

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func TestTasksTakeTurnsInTheGoroutinesThatThereAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // which fails when one is left
		var ts tasks
		var ran atomic.Int32
		for range 3 {
			begin := make(chan struct{})
			for range maxSpare + 5 {
				if !ts.start(func() { <-begin; ran.Add(1) }) {
					t.Fatal("a task was not started")
				}
			}
			close(begin)
			synctest.Wait()
			if n := len(ts.spare); n != maxSpare {
				t.Errorf("%d goroutines wait for a task, want %d", n, maxSpare)
			}
		}
		running := make(chan struct{})
		ts.start(func() { <-running; ran.Add(1) })
		go close(running)
		ts.stop()
		if got, want := ran.Load(), int32(3*(maxSpare+5)+1); got != want {
			t.Errorf("%d tasks ran before stop returned, want %d", got, want)
		}
		if ts.start(func() { t.Error("a task ran after stop") }) {
			t.Error("a task was started after stop")
		}
	})
}
