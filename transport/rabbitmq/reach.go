package rabbitmq

import "time"

// What the broker has sent ahead no other instance can take, and each counts an attempt when the process
// dies; messages that are handled fast need many under way nevertheless. So a session asks for a
// part of its window, its reach, and for more when handlers run out of messages, either with most of
// that in hand or because it is used up fast.

const (
	// fullReach is the largest window that is asked for at once.
	fullReach = 32
	// fast is how soon as many messages as the reach has are used up where it should grow.
	fast = time.Second
)

// reach is how much of its window a session has asked for. It only grows.
type reach struct {
	size  int
	short bool      // it is to be doubled
	since time.Time // when used was last 0
	used  int       // messages that handlers took
}

// of is how much of a window of n to ask the broker for: all, when little is missing.
func (r *reach) of(n int) int {
	if r.short {
		*r = reach{size: 2 * r.size}
	}
	r.size = max(r.size, n/4, fullReach)
	if r.size >= n-n/4 {
		r.size = max(r.size, n)
	}
	return min(r.size, n)
}

// use notes that handlers took n messages.
func (r *reach) use(n int, now time.Time) {
	if now.Sub(r.since) > fast {
		r.since, r.used = now, 0
	}
	r.used += n
}

// runsShort tells of handlers that run out of messages, while so many are in hand, whether the reach is to grow
// for that. It is not when the rest may just not be there.
func (r *reach) runsShort(inHand int) bool {
	r.short = r.short || inHand >= r.size-r.size/4 || r.used >= r.size
	return r.short
}
