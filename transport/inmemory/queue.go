package inmemory

import (
	"container/heap"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// broker is the state that the connections of a Transport share.
type broker struct {
	mu          sync.Mutex // guards everything here, in the queues and in their items
	queues      map[string]*queue
	subscribers map[string][]*queue // by message type, in the order they subscribed
	receipts    map[string]*item    // delayed messages that can still be cancelled
	inboxes     map[string]*inbox
	records     *records // nil until it is installed
	seq         uint64
}

func (b *broker) create(name string) *queue {
	if b.queues == nil {
		b.queues = map[string]*queue{}
		b.subscribers = map[string][]*queue{}
		b.receipts = map[string]*item{}
	}
	q := b.queues[name]
	if q == nil {
		q = &queue{name: name, b: b}
		b.queues[name] = q
	}
	return q
}

func (b *broker) find(name string) (*queue, error) {
	if q := b.queues[name]; q != nil {
		return q, nil
	}
	return nil, fmt.Errorf("inmemory: queue %q: %w", name, transport.ErrNoQueue)
}

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
