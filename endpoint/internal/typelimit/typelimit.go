// Package typelimit bounds how many messages of one type are processed at once.
package typelimit

import (
	"context"
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast/internal/pump"
)

// Limiter bounds the messages of one type. A message that waits frees its slot, and gets the next
// one that is free when it is admitted: that of the message that it waited for, as a rule. A
// Limiter is safe for concurrent use.
type Limiter struct {
	mu      sync.Mutex // guards the rest
	room    int
	waiting []*waiter
}

type waiter struct {
	slot    *pump.Slot
	entered chan struct{} // closed when the message may be processed, and has a slot
}

// New returns a limiter for at most n messages at once.
func New(n int) *Limiter { return &Limiter{room: n} }

// Enter returns nil when one more message may be processed. When ctx ends first it returns the
// cause, and the message has no slot.
func (l *Limiter) Enter(ctx context.Context, slot *pump.Slot) error {
	l.mu.Lock()
	if l.room > 0 {
		l.room--
		l.mu.Unlock()
		return nil
	}
	w := &waiter{slot, make(chan struct{})}
	l.waiting = append(l.waiting, w)
	slot.Wait() // under the lock: before Leave requests a slot
	l.mu.Unlock()
	select {
	case <-w.entered:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	i := slices.Index(l.waiting, w)
	if i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	l.mu.Unlock()
	if i < 0 { // it was admitted already: the next one is
		slot.Withdraw()
		l.Leave()
	}
	return context.Cause(ctx)
}

// Leave admits the message that waits longest. It is called before the leaving message frees its
// slot.
func (l *Limiter) Leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		l.room++
		return
	}
	w := l.waiting[0]
	l.waiting = slices.Delete(l.waiting, 0, 1)
	w.slot.Request(w.entered)
}
