package pump

import (
	"slices"
	"time"
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
