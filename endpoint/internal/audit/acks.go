package audit

import (
	"errors"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

const (
	// ackQueueThere and ackQueueMissing are for how long the answer of a look is used.
	ackQueueThere   = time.Minute
	ackQueueMissing = 10 * time.Second
)

// ackQueue remembers whether the queue that ServiceControl named last is missing, so that the
// broker is not asked for every message. The zero value knows no queue.
type ackQueue struct {
	mu    sync.Mutex // guards the rest; held during a look, so that there is one at a time
	name  string
	there bool // the queue exists, or the answer is not known
	until time.Time
}

// exists reports whether the queue exists or may exist: from memory, or by calling look. Only
// [transport.ErrNoQueue] says that there is none: the endpoint may have the right to send to a
// queue, and not to inspect it.
func (q *ackQueue) exists(name string, look func() error) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.name == name && time.Now().Before(q.until) {
		return q.there
	}
	err := look()
	valid := ackQueueMissing // also where the broker did not answer
	if err == nil {
		valid = ackQueueThere
	}
	q.name, q.there, q.until = name, !errors.Is(err, transport.ErrNoQueue), time.Now().Add(valid)
	return q.there
}

// forget makes the next message look again. It is called after a failed send: the queue may be
// deleted.
func (q *ackQueue) forget() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.until = time.Time{}
}

// missing records that a queue that seemed to exist does not.
func (q *ackQueue) missing(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.name, q.there, q.until = name, false, time.Now().Add(ackQueueMissing)
}
