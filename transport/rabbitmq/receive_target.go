package rabbitmq

import (
	"math/bits"
	"time"
)

const (
	// fullTarget is the largest window that is prefetched from the start.
	fullTarget = 32
	// fast is how soon as many messages as the target are used where it should grow.
	fast = time.Second
	// calm is how long a larger target than the first has not been needed when it falls back to the first.
	calm = 30 * time.Second
)

// target is how much of its window a receiver prefetches. It doubles when handlers run out of messages, either with most
// of the target prefetched or in handlers, or because they use the target within a second. It falls back when that is over. Where
// messages would wait for so long that the broker takes them back, it is smaller. Guarded by [prefetch].
type target struct {
	size  int
	first int       // the target at the start
	short bool      // it is to be doubled
	since time.Time // when used was last 0
	used  int       // messages that handlers took
	busy  time.Time // when more than the first target was needed last

	// pace is the mean time that a message is in a handler, divided by how many are.
	pace time.Duration
}

// of returns how much of a window of n to prefetch: all, when little is missing. The broker takes messages back that are not
// settled for maxHold; 0 is never.
func (t *target) of(n int, maxHold time.Duration, now time.Time) int {
	switch {
	case t.short:
		t.size, t.short, t.used, t.since, t.busy = 2*t.size, false, 0, time.Time{}, now
	case now.Sub(t.busy) >= calm:
		t.size = 0
	}
	t.first = max(n/4, fullTarget)
	t.size = max(t.size, t.first)
	if t.size >= n-n/4 {
		t.size = max(t.size, n)
	}
	size := min(t.size, n)
	if slow := t.timely(maxHold); slow < size {
		size = min(n, slow)
	}
	return size
}

// timely is how many messages are handled within half of maxHold, rounded down to a power of two, and at least 1.
func (t *target) timely(maxHold time.Duration) int {
	if maxHold <= 0 || t.pace <= 0 {
		return maxWindow
	}
	n := min(maxHold/2/t.pace, maxWindow)
	if n <= 1 {
		return 1
	}
	return 1 << (bits.Len64(uint64(n)) - 1)
}

// use notes that handlers took n messages.
func (t *target) use(n int, now time.Time) {
	if now.Sub(t.since) > fast {
		t.since, t.used = now, 0
	}
	t.used += n
	if t.used >= t.first {
		t.busy = now
	}
}

// runsShort notes that handlers ran out of messages, while held ones are prefetched or in handlers, and reports whether the
// target is to grow for that. It is not when the rest may just not be there.
func (t *target) runsShort(held, window int, now time.Time) bool {
	if held < t.size-t.size/4 && t.used < t.size {
		return t.short
	}
	t.busy = now
	t.short = t.short || t.size < window
	return t.short
}

// handled notes how long a message was in a handler, beside so many others.
func (t *target) handled(d time.Duration, beside int) {
	if d <= 0 {
		return
	}
	sample := d / time.Duration(max(beside, 0)+1)
	if t.pace == 0 {
		t.pace = sample
		return
	}
	t.pace += (sample - t.pace) / 8
}
