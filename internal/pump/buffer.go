package pump

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// rateTrips is the number of round trips over which the rate of finished messages is measured. Over
// 4 of them, slow handlers that end together by chance do not raise the buffer above its minimum.
const rateTrips = 4

// tripsAhead is the number of round trips for which messages are buffered. The next request is made
// when half of them are handled, and asks for as many as two trips need: so no request runs half of
// the time, and the messages of one trip are left when the answer arrives. So the measured demand
// can grow beyond a buffer that is too small.
const tripsAhead = 4

// timeAhead is the least time for which messages are buffered. Where round trips are short, a
// Receive then asks for more messages, which costs the broker less.
const timeAhead = 10 * time.Millisecond

// demand estimates the number of messages that are handled during tripsAhead round trips of a
// Receive, or timeAhead, by Little's law: the rate of finished messages times that time.
type demand struct {
	trip     time.Duration // of a Receive that finds messages
	since    time.Duration // when the rate was last measured
	finished int           // messages finished by then
	size     int
}

// measure adds a Receive that ended now: its duration, the messages finished since the pump began,
// and whether it returned as many messages as it was asked for.
func (d *demand) measure(now, took time.Duration, finished int, full bool) {
	took = max(took, 1)
	switch {
	case d.trip == 0 || took < d.trip:
		d.trip = took
	case full:
		// It may have waited for messages, which is not part of the trip: so a longer trip is
		// adopted slowly.
		d.trip = min(took, d.trip+d.trip/4+1)
	}
	past := now - d.since
	if past < rateTrips*d.trip {
		return
	}
	d.size = int(float64(finished-d.finished) * float64(max(tripsAhead*d.trip, timeAhead)) / float64(past))
	d.since, d.finished = now, finished
}

// queue is first in, first out.
type queue struct {
	slots []*Slot
	head  int
}

func (q *queue) len() int { return len(q.slots) - q.head }

func (q *queue) push(s *Slot) {
	if q.head > len(q.slots)/2 && len(q.slots) == cap(q.slots) {
		q.slots = slices.Delete(q.slots, 0, q.head)
		q.head = 0
	}
	q.slots = append(q.slots, s)
}

func (q *queue) pop() *Slot {
	s := q.slots[q.head]
	q.slots[q.head] = nil
	q.head++
	if q.head == len(q.slots) {
		q.slots, q.head = q.slots[:0], 0
	}
	return s
}

// drop removes the slots that are gone.
func (q *queue) drop() {
	q.slots = slices.Delete(q.slots, 0, q.head)
	q.head = 0
	q.slots = slices.DeleteFunc(q.slots, func(s *Slot) bool { return s.state == gone })
}

// DefaultBudget is the default size of a Budget in bytes.
const DefaultBudget = 256 << 20

const (
	// unseenSize is the expected size of a message before the first is received, where the driver
	// cannot bound a Receive by size. So the first request is for at most 32 messages with the
	// default budget.
	unseenSize = 8 << 20
	// leastRequest is the least bound of a Receive in bytes, where there is room.
	leastRequest = 1 << 20
	// sizesAbove is the factor by which a Receive may exceed the expected size of its messages.
	sizesAbove = 4
	// meanWeight is the number of messages over which the mean size is taken.
	meanWeight = 16
)

// A Budget bounds the bytes of the messages that several pumps hold: headers and bodies of all
// deliveries that were received and are not settled. It is safe for concurrent use.
//
// A pump may use all that the others do not use; while another one lacks room, it may use an equal
// share. A pump that holds nothing may always receive one message, so the total can exceed the
// budget by one message of each pump.
type Budget struct {
	size    int64
	pumps   atomic.Int64
	claimed atomic.Int64 // of all pumps
	short   atomic.Int64 // len of lacking

	mu      sync.Mutex
	lacking map[*Pump]struct{} // the pumps that lack room
}

// NewBudget returns a Budget of size bytes; less than 1 is [DefaultBudget].
func NewBudget(size int64) *Budget {
	if size < 1 {
		size = DefaultBudget
	}
	return &Budget{size: size, lacking: map[*Pump]struct{}{}}
}

// freed wakes the pumps that lack room, except by. Called without any pump's mutex.
func (b *Budget) freed(by *Pump) {
	if b.short.Load() == 0 {
		return
	}
	b.mu.Lock()
	lacking := slices.Collect(maps.Keys(b.lacking))
	b.mu.Unlock()
	for _, p := range lacking {
		if p != by {
			p.mu.Lock()
			p.wake()
			p.mu.Unlock()
		}
	}
}

// Claimed returns the bytes that the pumps hold or have reserved for running Receive calls.
func (b *Budget) Claimed() int64 { return b.claimed.Load() }

// A share is a pump's part of a Budget. The pump's mutex guards it.
type share struct {
	budget   *Budget
	prefetch bool                   // the driver holds messages that the pump has not seen
	receiver transport.ByteReceiver // bounds a Receive by size itself; nil: by number only

	held    int64   // in deliveries
	asked   int64   // reserved by Receive calls that run
	mean    float64 // of the messages' sizes; 0: none has been received
	window  int     // of a driver that prefetches
	claimed int64   // sum of the above in the budget
	lacking bool    // room; the same in the budget
}

// lacks records whether p, the owner of s, gets less room than p wants.
func (s *share) lacks(p *Pump, lacks bool) {
	if s.lacking == lacks {
		return
	}
	s.lacking = lacks
	b := s.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if lacks {
		b.lacking[p] = struct{}{}
	} else {
		delete(b.lacking, p)
	}
	b.short.Store(int64(len(b.lacking)))
}

// leave removes the share of p from the budget.
func (s *share) leave(p *Pump) {
	p.mu.Lock()
	s.lacks(p, false)
	s.budget.pumps.Add(-1)
	s.budget.claimed.Add(-s.claimed)
	s.claimed = 0
	p.mu.Unlock()
	s.budget.freed(p)
}

// most returns how many bytes the pump may hold.
func (s *share) most() int64 {
	b := s.budget
	left := b.size - (b.claimed.Load() - s.claimed)
	others := b.short.Load()
	if s.lacking {
		others--
	}
	if others > 0 {
		left = min(left, b.size/max(1, b.pumps.Load()))
	}
	return left
}

// expected returns the expected size of the next message.
func (s *share) expected() float64 { return cmp.Or(s.mean, unseenSize) }

// room returns how many of up to n messages p has room for.
func (s *share) room(p *Pump, n int) int {
	if s.prefetch { // it is bounded by its window
		return n
	}
	fits := s.fitting(n)
	s.lacks(p, fits < n)
	return fits
}

func (s *share) fitting(n int) int {
	if n <= 0 {
		return n
	}
	left := s.most() - s.held - s.asked
	fits := float64(left) / s.expected()
	switch {
	case s.receiver != nil && s.mean == 0 && left > 0:
		return n // the driver counts
	case fits >= float64(n):
		return n
	case fits >= 1:
		return int(fits)
	case s.held+s.asked == 0:
		return 1
	}
	return 0
}

// ask reserves room for a Receive of n messages and returns the bytes to bound it by.
func (s *share) ask(n int) int64 {
	if s.prefetch {
		return 0
	}
	left := max(1, s.most()-s.held-s.asked)
	bytes := float64(n) * s.expected()
	if s.receiver != nil {
		bytes = max(sizesAbove*float64(n)*s.mean, leastRequest)
	}
	reserved := max(1, int64(min(bytes, float64(left))))
	s.asked += reserved
	s.claim()
	return reserved
}

// take counts a message that was received.
func (s *share) take(size int64) {
	s.held += size
	mean := float64(size)
	if s.mean > 0 {
		mean = s.mean + (mean-s.mean)/meanWeight
	}
	s.mean = max(1, mean)
	s.claim()
}

// drop counts a message that the pump no longer holds.
func (s *share) drop(size int64) {
	s.held -= size
	s.claim()
}

// claim writes the bytes that are held, reserved and prefetched to the budget.
func (s *share) claim() {
	c := s.held + s.asked
	if s.prefetch && s.mean > 0 {
		c = max(c, int64(float64(s.window)*s.mean))
	}
	if c != s.claimed {
		s.budget.claimed.Add(c - s.claimed)
		s.claimed = c
	}
}

// bound returns the window of a driver that prefetches: n, or as many messages as there is room
// for. It keeps the last window while that is at least half of the room, because each change costs
// the driver a request. An equal share is always allowed, because another pump may claim a window
// that its queue no longer fills.
func (s *share) bound(p *Pump, n, last int) int {
	if !s.prefetch {
		return n
	}
	left := max(s.most(), s.budget.size/max(1, s.budget.pumps.Load()))
	fits := int(max(1, min(float64(left)/s.expected(), math.MaxInt32)))
	s.lacks(p, fits < n && s.mean > 0)
	switch {
	case fits >= n:
		return n
	case last <= fits && last >= fits/2 && last > 0 && last <= n:
		return last
	}
	return fits
}
