package rabbitmq

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"strconv"
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
func (p *publisher) keepSending(c *conn, s *sender) {
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
		c.learnMaxBody(e)
		c.log.WarnContext(c.ctx, "the broker closed the channel for sending: the outcome of the messages in flight on it is "+
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

// tooLarge matches the broker's refusal of a body larger than its max_message_size.
var tooLarge = regexp.MustCompile(`^PRECONDITION_FAILED - message size \d+ .*max size (\d+)$`)

// learnMaxBody reads the largest body that the broker takes from its refusal of one, which ended
// the channel: larger ones are refused before they are sent.
func (c *conn) learnMaxBody(e *amqp.Error) {
	if e == nil {
		return
	}
	if m := tooLarge.FindStringSubmatch(e.Reason); m != nil {
		if size, err := strconv.Atoi(m[1]); err == nil && size > 0 {
			c.maxBody.Store(int64(min(size, c.limits.MaxBody)))
		}
	}
}
