package backoff

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestNextDoublesWithinJitterUpToMax(t *testing.T) {
	b := Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	for _, top := range []time.Duration{100, 200, 400, 800, 1000, 1000} {
		top *= time.Millisecond
		if d := b.Next(); d < top/2 || d > top {
			t.Errorf("pause %v, want between %v and %v", d, top/2, top)
		}
	}
	b.Reset()
	if d := b.Next(); d > 100*time.Millisecond {
		t.Errorf("pause after Reset %v, want at most 100ms", d)
	}
}

func TestSleepEndsWithTheContextAndItsCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("stopping")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(cause) })
		start := time.Now()
		if err := Sleep(ctx, time.Hour); !errors.Is(err, cause) {
			t.Errorf("got %v, want the cause", err)
		}
		if waited := time.Since(start); waited != time.Second {
			t.Errorf("waited %v, want 1s", waited)
		}
	})
}
