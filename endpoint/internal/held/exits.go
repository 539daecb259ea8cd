package held

import (
	"sync"
	"time"
)

const (
	// exitsAtOnce bounds the messages that leave a room for another queue at once.
	exitsAtOnce = 16
	// silentFor is how long no further message is sent to a queue that did not answer.
	silentFor = time.Minute
)

// Exits are the queues to which messages leave a room. The zero value is ready. The methods are
// safe for concurrent use.
type Exits struct {
	begin  sync.Once
	tokens chan struct{}

	mu     sync.Mutex // guards silent
	silent map[string]time.Time
}

// Enter waits for the turn of a message to leave. The caller calls done when the message has left.
func (e *Exits) Enter() (done func()) {
	e.begin.Do(func() { e.tokens = make(chan struct{}, exitsAtOnce) })
	e.tokens <- struct{}{}
	return func() { <-e.tokens }
}

// NoAnswer records that a queue did not answer.
func (e *Exits) NoAnswer(queue string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.silent == nil {
		e.silent = map[string]time.Time{}
	}
	e.silent[queue] = time.Now()
}

// Answers reports whether a message may be sent to the queue: a stop does not wait once for each
// message.
func (e *Exits) Answers(queue string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	at, silent := e.silent[queue]
	return !silent || time.Since(at) > silentFor
}
