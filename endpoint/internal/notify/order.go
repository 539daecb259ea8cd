package notify

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/failurelog"
)

const (
	// Timeout bounds the wait for the functions.
	Timeout = 10 * time.Second
	// maxUnreturned bounds the calls that were given up.
	maxUnreturned = 100
)

// order keeps the notifications of one message in order.
type order struct {
	waiting atomic.Int32
	mu      sync.Mutex // guards the rest
	last    map[failurelog.Key]*Place
}

// Place is the place of an attempt in the order of the notifications of a message.
type Place struct {
	order  *order
	key    failurelog.Key
	before <-chan struct{} // closed when the place before has ended; nil for the first
	over   chan struct{}
}

// next returns the next place for key.
func (o *order) next(key failurelog.Key) *Place {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := &Place{order: o, key: key, over: make(chan struct{})}
	if last := o.last[key]; last != nil {
		p.before = last.over
	}
	if o.last == nil {
		o.last = map[failurelog.Key]*Place{}
	}
	o.last[key] = p
	return p
}

// Wait waits for the places before, for a limited time and in a limited number of attempts: a
// function that hangs must not stop all attempts for the sake of order.
func (p *Place) Wait() {
	if p.before == nil {
		return
	}
	defer p.order.waiting.Add(-1)
	if p.order.waiting.Add(1) > maxUnreturned {
		return
	}
	timeout := time.NewTimer(Timeout)
	defer timeout.Stop()
	select {
	case <-p.before:
	case <-timeout.C:
	}
}

// End ends the place: the next one may follow.
func (p *Place) End() {
	p.order.mu.Lock()
	defer p.order.mu.Unlock()
	close(p.over)
	if p.order.last[p.key] == p {
		delete(p.order.last, p.key)
	}
}
