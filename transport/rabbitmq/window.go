package rabbitmq

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// consumer is a share of the window: what the broker sends a consumer ahead cannot
// be changed, so that a window grows by another consumer.
type consumer struct {
	tag       string
	share     int
	open      int  // deliveries not settled
	cancelled bool // by us
	drained   bool // no more deliveries are to come
}

// maxConsumers is how many shares a window may have before it gets a single one again.
const maxConsumers = 10

// maxWindow is all that they can be sent ahead.
const maxWindow = maxConsumers * math.MaxUint16

// reachIn is how much of a window of n to ask the broker for.
func (s *session) reachIn(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reach.of(n)
}

// fit makes the shares of the window add up to n; last is when there are to be none any more. What a cancelled
// consumer still has open counts: its share is given out again as that is settled.
func (s *session) fit(n int, last bool, now time.Time) error {
	n = min(n, maxWindow)
	s.mu.Lock()
	s.closing = last
	s.mu.Unlock()
	if !last { // else it is handed over, or goes back when the consumers have ended
		s.giveBack(n, now)
	}
	for _, c := range s.excess(n, now) {
		if err := s.cancel(c); err != nil {
			return err
		}
	}
	if share := s.free(n); share > 0 {
		return s.consume(share)
	}
	return nil
}

// excess takes out the consumers to be cancelled before the shares can add up to n.
func (s *session) excess(n int, now time.Time) []*consumer {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acks.window = n
	total := s.shares()
	borne := s.bear(total-n, now)
	if borne || n == total || n > total && len(s.consumers) < maxConsumers {
		return nil
	}
	out := s.consumers
	s.consumers = nil
	s.leaving = append(s.leaving, out...)
	return out
}

func (s *session) shares() int {
	total := 0
	for _, c := range s.consumers {
		total += c.share
	}
	return total
}

// free is the share for a new consumer: all that is left of n, but not in crumbs.
func (s *session) free(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := 0
	s.leaving = slices.DeleteFunc(s.leaving, func(c *consumer) bool { return c.drained && c.open == 0 })
	for _, c := range s.leaving {
		if c.drained {
			held += c.open
		} else {
			held += c.share
		}
	}
	free := min(n-s.shares()-held, math.MaxUint16)
	if free <= 0 || held > 0 && free < max(1, n/4) {
		return 0
	}
	return free
}

func (s *session) cancel(c *consumer) error {
	s.mu.Lock()
	c.cancelled = true
	s.mu.Unlock()
	if err := s.ch.Cancel(c.tag, false); err != nil {
		return fmt.Errorf("cancel a consumer: %w", plain(err))
	}
	return nil
}

func (s *session) consume(share int) error {
	if err := s.ch.Qos(share, 0, false); err != nil {
		return fmt.Errorf("set the prefetch count: %w", plain(err))
	}
	s.mu.Lock()
	s.count++
	c := &consumer{tag: consumerTag(s.count, s.receiver.queue), share: share}
	s.consumers = append(s.consumers, c)
	s.mu.Unlock()
	in, err := s.ch.Consume(s.receiver.queue, c.tag, false, false, false, false, s.receiver.consumeArguments())
	if err != nil {
		s.receiver.learn(err)
		return plain(err)
	}
	if !s.receiver.conn.tasks.start(func() { s.collect(c, in) }) {
		return transport.ErrClosed
	}
	return nil
}
