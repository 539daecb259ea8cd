package rabbitmq

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"
)

// sender is a channel that publishes, from its opening to its end. Declarations and accepted places
// are remembered for each channel anew, because queues and exchanges may have been deleted in the
// meantime.
type sender struct {
	ch       *amqp.Channel
	returned returned
	declared memo[string, []string] // types, by the first
	bound    memo[string, string]   // destinations of delays: those in the keys of messages, by those asked for
	accepted memo[route, struct{}]  // places that the broker accepts messages for

	wear   wear
	worn   chan struct{} // has an element when another channel is to replace this one
	failed <-chan *amqp.Error
	over   chan struct{} // closed when end is set
	end    error         // why it is over
}

// memo is a map that is written to in turn, and read without a lock.
type memo[K comparable, V any] struct{ entries atomic.Pointer[map[K]V] }

func (m *memo[K, V]) get(key K) (value V, ok bool) {
	if entries := m.entries.Load(); entries != nil {
		value, ok = (*entries)[key]
	}
	return value, ok
}

func (m *memo[K, V]) has(key K) bool {
	_, ok := m.get(key)
	return ok
}

func (m *memo[K, V]) set(key K, value V) {
	entries := make(map[K]V)
	if was := m.entries.Load(); was != nil {
		maps.Copy(entries, *was)
	}
	entries[key] = value
	m.entries.Store(&entries)
}

func (p *publisher) openSender() (*sender, error) {
	ch, err := p.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.Confirm(false); err != nil {
		return nil, err
	}
	s := &sender{ch: ch, worn: make(chan struct{}, 1), over: make(chan struct{}), failed: ch.NotifyClose(make(chan *amqp.Error, 1))}
	s.returned.notices = ch.NotifyReturn(make(chan amqp.Return, maxUnconfirmed))
	arrived := ch.NotifyReturn(make(chan amqp.Return))
	p.tasks.Go(func() { s.returned.collect(arrived) })
	return s, nil
}

func (s *sender) finish(e *amqp.Error) {
	s.end = lossOf(e, "channel")
	close(s.over)
}

// sender returns the open channel, which the caller releases. It waits while the broker has closed
// one and the next is not open yet.
func (p *publisher) sender(ctx context.Context) (*sender, error) {
	for {
		s, changed, _ := p.current.now()
		if s != nil && s.wear.use() {
			return s, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("rabbitmq: the broker has closed the channel for sending, and not opened another: %w",
				context.Cause(ctx))
		}
	}
}

// keepSending opens another channel each time the broker closes one, until the connection ends: an
// error of one message must not close the connection.
func (p *publisher) keepSending(by *sending, s *sender) {
	for {
		var e *amqp.Error
		select {
		case e = <-s.failed:
		case <-s.worn:
			s = p.replace(s)
			continue
		}
		if p.IsClosed() {
			s.finish(e)
			p.finished <- e
			return
		}
		p.current.set(nil, nil)
		s.finish(e)
		by.learnMaxBody(e)
		by.log.WarnContext(by.ctx, "the broker closed the channel for sending: the outcome of the messages in flight on it is "+
			"unknown, and another is opened", "err", lossOf(e, "channel"))
		next, err := p.openSender()
		if err != nil {
			p.brokerConn.close()
			p.finished <- <-p.closed
			return
		}
		s = next
		p.current.set(s, nil)
	}
}

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
