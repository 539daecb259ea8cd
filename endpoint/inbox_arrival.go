package endpoint

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/panics"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/transport"
)

// Messages that arrive together are looked for in the inbox by one request, before they wait for a
// handler. An attempt that finds no answer, or an old one, asks for itself. In either case the
// commit fails where another process has handled the message meanwhile.

const (
	// lookAge is how long the state of a message that waits for a handler is good. Another process
	// may handle a copy.
	lookAge = time.Second
	// arrivalTimeout bounds a request for messages that have arrived, and arrivalPause is the time
	// without any after a failure.
	arrivalTimeout = time.Second
	arrivalPause   = time.Second
)

// look is what was found in the inbox when a message arrived.
type look struct {
	key   transport.HandledKey
	state transport.HandledState
	at    time.Time
	begun int64 // attempts that had begun
}

// arrived returns the function that looks for the messages that have arrived in a queue; nil
// without an inbox.
func (b *inbox) arrived(queue string) arrivedFunc {
	if b == nil {
		return nil
	}
	return func(ctx context.Context, arrived []pump.Slot) { b.lookForAll(ctx, queue, arrived) }
}

// lookForAll attaches a look to each message that has an id. Where the database does not answer it
// attaches none: the attempts find that out.
func (b *inbox) lookForAll(ctx context.Context, queue string, arrived []pump.Slot) {
	now := time.Now()
	if now.UnixNano() < b.pausing.Load() {
		return
	}
	looks, keys := make([]look, 0, len(arrived)), make([]transport.HandledKey, 0, len(arrived))
	slots := make([]*pump.Slot, 0, len(arrived))
	begun := b.begun.count()
	for i := range arrived {
		m, id := settle.OriginalOf(arrived[i].Delivery().Message())
		if settle.IsNamed(id) && m.Undecodable == nil {
			key := b.keyOf(m, queue, id)
			looks, keys = append(looks, look{key: key, at: now, begun: begun}), append(keys, key)
			slots = append(slots, &arrived[i])
		}
	}
	if len(keys) == 0 {
		return
	}
	if b.find(ctx, keys, looks) != nil {
		b.pausing.Store(time.Now().Add(arrivalPause).UnixNano())
		return
	}
	for i, s := range slots {
		s.Attach(&looks[i])
	}
}

// find sets the state of each look. A panic of the driver must not end the process: it is an error
// here, and again in the attempts.
func (b *inbox) find(ctx context.Context, keys []transport.HandledKey, looks []look) (err error) {
	defer panics.Catch(&err)
	ctx, cancel := context.WithTimeout(ctx, arrivalTimeout)
	defer cancel()
	states, err := b.store.FindHandled(ctx, b.name, keys)
	if err != nil {
		return err
	}
	for i := range looks {
		looks[i].state = states[i]
	}
	return nil
}

// begun are the keys of the attempts that began last. Without it a message would be taken for new
// although this process has handled a copy between the look and the attempt.
type begun struct {
	mu          sync.Mutex // guards the rest
	n           int64
	now, before map[[16]byte]struct{}
}

// generation is the number of keys that are remembered at least.
const generation = 1024

// count returns the number of attempts that have begun.
func (b *begun) count() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.n
}

// isFirst adds an attempt at the message with that key. It reports whether no other of the message
// has begun since n attempts had begun; false if it does not know.
func (b *begun) isFirst(key [16]byte, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, isNow := b.now[key]
	_, wasBefore := b.before[key]
	known := b.n-n < generation
	if len(b.now) >= generation {
		b.now, b.before = b.before, b.now
		clear(b.now)
	}
	if b.now == nil {
		b.now = make(map[[16]byte]struct{}, generation)
	}
	b.now[key] = struct{}{}
	b.n++
	return known && !isNow && !wasBefore
}
