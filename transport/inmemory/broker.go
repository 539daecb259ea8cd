package inmemory

import (
	"fmt"
	"slices"
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

// missing adds the operations whose queue does not exist to the failed ones, and those with a name
// for a queue without timers.
func (b *broker) missing(ops []transport.Operation, failed failures) failures {
	for i := range ops {
		if ops[i].Queue == "" || failed.has(i) {
			continue
		}
		q, err := b.find(ops[i].Queue)
		if err == nil && ops[i].Name != "" && q.names == nil {
			err = fmt.Errorf("inmemory: queue %q has no timers: install it with Queue.Timers", q.name)
		}
		if err != nil {
			failed = append(failed, transport.OpError{Index: i, Err: err})
		}
	}
	return failed
}

// destinations returns the queues that are subscribed to any of the types, each once.
func (b *broker) destinations(types []string) []*queue {
	if len(types) == 1 {
		return b.subscribers[types[0]]
	}
	var found []*queue
	for _, name := range types {
		for _, q := range b.subscribers[name] {
			if !slices.Contains(found, q) {
				found = append(found, q)
			}
		}
	}
	return found
}

func (b *broker) createInbox(name string) {
	if b.inboxes == nil {
		b.inboxes = map[string]*inbox{}
	}
	if b.inboxes[name] == nil {
		b.inboxes[name] = &inbox{handled: map[[16]byte]handled{}}
	}
}

func (b *broker) createRecords() {
	if b.records == nil {
		b.records = &records{byID: map[transport.RecordID]*record{}}
	}
}

// table returns the table without the records that are old enough. The broker is locked.
func (b *broker) table() (*records, error) {
	if b.records == nil {
		return nil, fmt.Errorf("inmemory: table of records: %w", transport.ErrNoQueue)
	}
	b.records.forget(time.Now())
	return b.records, nil
}

func (b *broker) remove(name string) {
	q := b.queues[name]
	if q == nil {
		return
	}
	delete(b.queues, name)
	for of := range b.subscribers {
		b.unsubscribe(name, of)
	}
	for _, it := range q.timed {
		q.forget(it)
	}
	q.wake()
}

func (b *broker) unsubscribe(name, of string) {
	if subscribed := b.subscribers[of]; subscribed != nil {
		b.subscribers[of] = slices.DeleteFunc(subscribed, func(q *queue) bool { return q.name == name })
	}
}
