package pump

import (
	"slices"
	"time"
)

// buffersPerSlot bounds what is buffered, however fast the handlers are.
const buffersPerSlot = 8

// rateTrips is over how many round trips the rate of finishing is taken. Over 4 of them,
// slow handlers that happen to end together look like no more than the least buffer.
const rateTrips = 4

// ahead is how many messages to keep buffered. Called with mu held.
//
// A message that waits here counts an attempt when the process crashes, and no other
// instance can take it; so it is no more than handlers use up during a few Receives.
func (p *Pump) ahead() int {
	c := p.concurrency
	switch {
	case p.cfg.Limits.Unbuffered || p.serial:
		return 0
	case p.cfg.Limits.Prefetch && c == 1:
		return 1 // of what the driver holds, so that the only worker waits for nobody
	case p.cfg.Limits.Prefetch:
		return 0
	}
	return min(max(p.demand.size, c/2, 1), buffersPerSlot*c)
}

// tripsAhead is for how many round trips messages are kept. The next request is made when half are used
// up: it takes what two trips use up, so that half of the time none is under way, and one trip's
// are left when its answer comes. So a demand that was held back by too small a buffer can show, too.
const tripsAhead = 4

// timeAhead is for how long messages are kept at least. Where trips are short this has a Receive take more of
// them, which costs the broker less; and none waits long for its handler.
const timeAhead = 10 * time.Millisecond

// demand estimates how many messages are used up during tripsAhead round trips of a
// Receive, or timeAhead, by Little's law: the rate at which messages finish times that.
type demand struct {
	trip     time.Duration // of a Receive that finds messages
	since    time.Duration // when the rate was last taken
	finished int           // how many had finished then
	size     int
}

// measure takes in a Receive that ended now: how long it took, how many messages have finished
// since the pump began, and whether it returned as many as it was asked for.
func (d *demand) measure(now, took time.Duration, finished int, full bool) {
	took = max(took, 1)
	switch {
	case d.trip == 0 || took < d.trip:
		d.trip = took
	case full:
		// It may have waited for messages, which is no part of the trip: so a longer
		// one is believed only little by little.
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
