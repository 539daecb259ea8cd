package inmemory

import (
	"container/heap"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// item is a message in a queue. It is ready in queue.ready, held by a delivery, or delayed in
// queue.timed alone. Ready and held items are in queue.timed too if their state ends at a known
// time.
type item struct {
	message  transport.Message
	queue    *queue
	seq      uint64        // its place in the queue, to which it returns
	since    time.Time     // when it became ready
	ttl      time.Duration // counted from when it first became ready
	expires  time.Time     // when that is over; zero without a ttl, and before
	attempts int
	holder   *delivery // settles of other deliveries fail
	name     string    // in queue.names; empty of others
	deferred bool      // delayed since a delivery of it was deferred
	receipt  string    // empty when it cannot be cancelled

	due        time.Time // when its state ends, while it is in queue.timed
	heapIndex  int       // there, from 1; 0 when it is not
	list       *list     // the list it is in, if any
	prev, next *item
}

// queue is a queue, guarded by broker.mu. Nothing runs in the background: advance carries out
// everything that is due, before each access to the queue.
type queue struct {
	name    string
	b       *broker
	ready   list
	timed   timed
	held    int
	delayed int
	names   map[string]*item // messages with a name; nil of a queue without timers
	changed chan struct{}    // closed at the next change; nil if no receiver waits
}

// put appends a new message, or keeps it until its delay is over.
func (q *queue) put(it *item, now time.Time, delay time.Duration) {
	it.queue = q
	if delay <= 0 {
		q.append(it, now)
		return
	}
	q.b.seq++
	it.seq = q.b.seq
	q.delayed++
	q.schedule(it, now.Add(delay))
	q.wake() // waiting receivers have to reset their timers
}

func (q *queue) append(it *item, now time.Time) {
	q.b.seq++
	it.seq = q.b.seq
	it.since = now
	q.ready.append(it)
	if it.ttl > 0 {
		it.expires = now.Add(it.ttl)
		q.schedule(it, it.expires)
	}
	q.wake()
}

// restore makes a delivered message ready again, at its former place, or discards it if it has
// expired meanwhile.
func (q *queue) restore(it *item, now time.Time) {
	q.reclaim(it)
	if !it.expires.IsZero() {
		if !it.expires.After(now) {
			q.unname(it)
			return
		}
		q.schedule(it, it.expires)
	}
	it.since = now
	q.ready.restore(it)
	q.wake()
}

// postpone makes a delivered message ready after a delay. The message expires no later for that.
func (q *queue) postpone(it *item, now time.Time, delay time.Duration) {
	if delay <= 0 || !it.expires.IsZero() {
		q.restore(it, now)
		return
	}
	q.reclaim(it)
	q.delayed++
	it.deferred = true
	q.schedule(it, now.Add(delay))
	q.wake()
}

// hasten makes the deferred messages among those with the given numbers ready.
func (q *queue) hasten(handles []string, now time.Time) {
	q.advance()
	wanted := make(map[string]bool, len(handles))
	for _, handle := range handles {
		wanted[handle] = true
	}
	for _, it := range q.timed {
		if it.deferred && wanted[strconv.FormatUint(it.seq, 10)] {
			it.due = now
		}
	}
	heap.Init(&q.timed)
	q.advance()
	q.wake()
}

// deliver assigns the first ready message, which must exist, to d.
func (q *queue) deliver(d *delivery) {
	it := q.ready.first
	q.ready.remove(it)
	q.unschedule(it)
	q.forget(it)
	q.held++
	it.holder = d
	it.attempts++
	d.item = it
	d.attempts = it.attempts
	d.conn.held.append(it)
}

// reclaim takes a message from its delivery.
func (q *queue) reclaim(it *item) {
	it.list.remove(it)
	q.unschedule(it)
	q.held--
	it.holder = nil
}

// end removes a message that is being handled.
func (q *queue) end(it *item) {
	q.reclaim(it)
	q.unname(it)
}

// discard removes a message that is not being handled.
func (q *queue) discard(it *item) {
	if it.list != nil {
		it.list.remove(it)
	} else {
		q.delayed--
	}
	q.unschedule(it)
	q.forget(it)
	q.unname(it)
}

// forget ends the time in which the message can be cancelled by its receipt.
func (q *queue) forget(it *item) {
	delete(q.b.receipts, it.receipt)
	it.receipt = ""
}

// vacate removes the message with that name, also a delivered one, whose delivery has then lost its
// lease.
func (q *queue) vacate(name string) {
	switch it := q.names[name]; {
	case it == nil:
	case it.holder != nil:
		q.end(it)
	default:
		q.discard(it)
	}
}

// unname forgets the name of a message that leaves the queue.
func (q *queue) unname(it *item) {
	if it.name != "" {
		delete(q.names, it.name)
		it.name = ""
	}
}

// advance carries out everything that is due.
func (q *queue) advance() {
	if len(q.timed) == 0 {
		return
	}
	now := time.Now()
	for len(q.timed) > 0 && !q.timed[0].due.After(now) {
		q.elapse(q.timed[0], now)
	}
}

func (q *queue) elapse(it *item, now time.Time) {
	switch {
	case it.holder != nil: // the lease ran out
		q.restore(it, now)
	case it.list != nil: // not received within its TTL
		q.discard(it)
	default: // the delay is over
		q.unschedule(it)
		q.delayed--
		it.deferred = false
		q.append(it, it.due)
	}
}

// wake makes waiting receivers check the queue again.
func (q *queue) wake() {
	if q.changed != nil {
		close(q.changed)
		q.changed = nil
	}
}

// wait returns a channel that is closed at the next change.
func (q *queue) wait() <-chan struct{} {
	if q.changed == nil {
		q.changed = make(chan struct{})
	}
	return q.changed
}

func (q *queue) schedule(it *item, due time.Time) {
	it.due = due
	heap.Push(&q.timed, it)
}

func (q *queue) unschedule(it *item) {
	if it.heapIndex > 0 {
		heap.Remove(&q.timed, it.heapIndex-1)
	}
}

// list is a doubly linked list of items, ordered by seq as long as only new items are
// appended. An item is in one list at most.
type list struct {
	first, last *item
	len         int
}

func (l *list) append(it *item) { l.insert(it, l.last) }

// restore inserts an item by its seq. Returned items are older than most of the list, so the search
// is short.
func (l *list) restore(it *item) {
	var after *item
	for next := l.first; next != nil && next.seq < it.seq; next = next.next {
		after = next
	}
	l.insert(it, after)
}

// insert inserts an item after another one, or first if that is nil.
func (l *list) insert(it, after *item) {
	it.list = l
	it.prev = after
	if after == nil {
		it.next, l.first = l.first, it
	} else {
		it.next, after.next = after.next, it
	}
	if it.next == nil {
		l.last = it
	} else {
		it.next.prev = it
	}
	l.len++
}

// within returns how many of the first items, up to limit, have at most maxBytes bytes in total: at
// least 1 if there is one.
func (l *list) within(limit int, maxBytes int64) int {
	n := 0
	for it := l.first; it != nil && n < limit; it = it.next {
		if maxBytes -= int64(len(it.message.Body) + it.message.Headers.Size()); maxBytes < 0 && n > 0 {
			break
		}
		n++
	}
	return n
}

func (l *list) remove(it *item) {
	if it.prev == nil {
		l.first = it.next
	} else {
		it.prev.next = it.next
	}
	if it.next == nil {
		l.last = it.prev
	} else {
		it.next.prev = it.prev
	}
	it.list, it.prev, it.next = nil, nil, nil
	l.len--
}

// timed is a heap of items by due time, and by seq among equal ones.
type timed []*item

func (h timed) Len() int { return len(h) }

func (h timed) Less(i, j int) bool {
	if c := h[i].due.Compare(h[j].due); c != 0 {
		return c < 0
	}
	return h[i].seq < h[j].seq
}

func (h timed) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapIndex, h[j].heapIndex = i+1, j+1
}

func (h *timed) Push(x any) {
	it := x.(*item) //nolint:errcheck // heap.Push is called with items only
	*h = append(*h, it)
	it.heapIndex = len(*h)
}

func (h *timed) Pop() any {
	last := len(*h) - 1
	it := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	it.heapIndex = 0
	return it
}
