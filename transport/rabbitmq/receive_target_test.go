package rabbitmq

import (
	"testing"
	"time"
)

func TestWhenThePrefetchTargetGrows(t *testing.T) {
	type use struct {
		after time.Duration
		n     int
	}
	const window = 384
	now := time.Now()
	for _, tt := range []struct {
		name string
		held int
		used []use
		want int
	}{
		{name: "the queue is empty", held: 3, want: 96},
		{name: "part of it may be on its way", held: 71, want: 96},
		{name: "most is held", held: 72, want: 192},
		{name: "used up fast, over a long way to the broker", held: 10, used: []use{{0, 90}, {time.Second, 6}}, want: 192},
		{name: "used up slowly", held: 10, used: []use{{0, 90}, {time.Second + 1, 90}}, want: 96},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var r target
			if got := r.of(window, 0, now); got != 96 {
				t.Errorf("at first %d, want 96", got)
			}
			for _, u := range tt.used {
				r.use(u.n, now.Add(u.after))
			}
			if r.runsShort(tt.held, window, now) != (tt.want > 96) {
				t.Error("runsShort is wrong")
			}
			if got := r.of(window, 0, now); got != tt.want {
				t.Errorf("then %d, want %d", got, tt.want)
			}
			if got := r.of(window, 0, now); got != tt.want {
				t.Errorf("asked again %d, want %d", got, tt.want)
			}
		})
	}
}

func TestThePrefetchTargetFallsWhenItIsNotNeeded(t *testing.T) {
	const window = 120
	var r target
	now := time.Now()
	for r.of(window, 0, now) < window { // handlers are fast
		r.use(r.size, now)
		r.runsShort(0, window, now)
		now = now.Add(10 * time.Millisecond)
	}
	for range 10 { // and go on so, without running short
		now = now.Add(calm / 2)
		r.use(fullTarget, now)
		if got := r.of(window, 0, now); got != window {
			t.Fatalf("%d while it is needed, want %d", got, window)
		}
	}
	if got := r.of(window, 0, now.Add(calm-1)); got != window {
		t.Errorf("%d too soon", got)
	}
	for range 10 { // slow ones need no more than the first
		now = now.Add(calm / 10)
		r.use(fullTarget/4, now)
	}
	if got := r.of(window, 0, now); got != fullTarget {
		t.Errorf("%d in the end, want %d", got, fullTarget)
	}
}

func TestThePrefetchTargetIsHandledInTime(t *testing.T) {
	const window, maxHold = 24, time.Minute
	now := time.Now()
	for _, tt := range []struct {
		handling time.Duration
		beside   int
		want     int
	}{
		{time.Millisecond, 1, window}, {time.Second, 1, window}, {2 * time.Second, 1, 16}, {6 * time.Second, 1, 8}, {30 * time.Second, 1, 2}, {time.Hour, 1, 1}, {6 * time.Second, 9, window},
	} {
		var r target
		r.handled(tt.handling, tt.beside)
		r.handled(0, 0) // released without a handler
		if got := r.of(window, maxHold, now); got != tt.want {
			t.Errorf("%v beside %d others: %d, want %d", tt.handling, tt.beside, got, tt.want)
		}
		if got := r.of(window, 0, now); got != window {
			t.Errorf("%v beside %d others, held for ever: %d, want %d", tt.handling, tt.beside, got, window)
		}
	}
}

func TestALittleMoreIsAskedForAtOnce(t *testing.T) {
	for _, tt := range []struct{ window, want int }{{3, 3}, {24, 24}, {42, 42}, {43, 32}, {128, 32}, {400, 100}} {
		if got := new(target).of(tt.window, 0, time.Now()); got != tt.want {
			t.Errorf("of a window of %d: %d, want %d", tt.window, got, tt.want)
		}
	}
}
