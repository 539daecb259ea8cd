package rabbitmq

import (
	"sync"
	"sync/atomic"
)

const (
	// wornAfter is how many messages are published on a channel after one that the broker does not
	// answer, before another channel replaces it: the client library keeps about 50 bytes for each
	// confirm behind a missing one.
	wornAfter = 20_000
	// maxWorn is how many replaced channels wait for answers. Of more the first one is closed.
	maxWorn = 8
)

// wear replaces a channel on which publishes stay without an answer. A replaced channel is closed
// when nothing waits for an answer on it. The zero value is that of a new channel. It is safe for
// concurrent use.
type wear struct {
	first     atomic.Uint64 // the tag of a publish without an answer
	abandoned atomic.Int64  // publishes without an answer whose callers have stopped to wait

	mu       sync.Mutex // guards the rest
	users    int        // batches, and abandoned publishes
	replaced bool
}

// use reserves the channel for a batch, unless the channel is replaced and about to be closed.
func (w *wear) use() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.replaced && w.users == 0 {
		return false
	}
	w.users++
	return true
}

// release ends a use. It reports whether the channel is to be closed.
func (w *wear) release() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.users--
	return w.replaced && w.users == 0
}

// replace notes that another channel has replaced this one. It reports whether the channel is to be
// closed.
func (w *wear) replace() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.replaced = true
	return w.users == 0
}

// isReplaced reports whether another channel has replaced this one.
func (w *wear) isReplaced() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.replaced
}

// abandon counts an abandoned publish.
func (w *wear) abandon(tag uint64) {
	if w.abandoned.Add(1) == 1 {
		w.first.Store(tag)
	}
}

// isWorn reports, once in wornAfter publishes, whether the channel is to be replaced.
func (w *wear) isWorn(tag uint64) bool {
	if w.abandoned.Load() == 0 {
		return false
	}
	first := w.first.Load()
	return tag >= first+wornAfter && w.first.CompareAndSwap(first, tag)
}

// wearOut asks for another channel in the place of this one.
func (s *sender) wearOut() {
	select {
	case s.worn <- struct{}{}:
	default:
	}
}

// release ends the use of a channel by a batch or an abandoned publish.
func (p *publisher) release(s *sender) {
	if s.wear.release() {
		p.tasks.Go(s.close)
	}
}

func (s *sender) close() { _ = s.ch.Close() } // an error means that the connection has ended

// replace opens another channel for s, and closes s when nothing uses it any more. If none can be
// opened, s goes on.
func (p *publisher) replace(s *sender) *sender {
	next, err := p.openSender()
	if err != nil {
		return s
	}
	p.current.set(next, nil)
	if !p.tasks.Go(func() { s.finish(<-s.failed) }) { // the connection has ended
		s.finish(<-s.failed)
	}
	if p.worn = append(p.worn, s); len(p.worn) > maxWorn {
		oldest := p.worn[0]
		p.worn = p.worn[1:]
		p.tasks.Go(oldest.close)
	}
	if s.wear.replace() {
		p.tasks.Go(s.close)
	}
	return next
}
