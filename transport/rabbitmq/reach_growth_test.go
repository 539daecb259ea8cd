package rabbitmq

import (
	"testing"
	"time"
)

func TestWhenTheReachGrows(t *testing.T) {
	type use struct {
		after time.Duration
		n     int
	}
	const window = 384
	now := time.Now()
	for _, tt := range []struct {
		name   string
		inHand int
		used   []use
		want   int
	}{
		{name: "the queue is empty", inHand: 3, want: 96},
		{name: "part of it may be on its way", inHand: 71, want: 96},
		{name: "most is in hand", inHand: 72, want: 192},
		{name: "used up fast, over a long way to the broker", inHand: 10, used: []use{{0, 90}, {time.Second, 6}}, want: 192},
		{name: "used up slowly", inHand: 10, used: []use{{0, 90}, {time.Second + 1, 90}}, want: 96},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var r reach
			if got := r.of(window); got != 96 {
				t.Errorf("at first %d, want 96", got)
			}
			for _, u := range tt.used {
				r.use(u.n, now.Add(u.after))
			}
			if r.runsShort(tt.inHand) != (tt.want > 96) {
				t.Error("runsShort is wrong")
			}
			if got := r.of(window); got != tt.want {
				t.Errorf("then %d, want %d", got, tt.want)
			}
			if got := r.of(window); got != tt.want {
				t.Errorf("asked again %d, want %d", got, tt.want)
			}
		})
	}
}

func TestALittleMoreIsAskedForAtOnce(t *testing.T) {
	for _, tt := range []struct{ window, want int }{{3, 3}, {24, 24}, {42, 42}, {43, 32}, {128, 32}, {400, 100}} {
		if got := new(reach).of(tt.window); got != tt.want {
			t.Errorf("of a window of %d: %d, want %d", tt.window, got, tt.want)
		}
	}
}
