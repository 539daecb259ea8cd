package rabbitmq

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.Drainer = (*receiver)(nil)

// Drain implements [transport.Drainer]: before RabbitMQ 4.3, a released message has a higher delivery count.
func (r *receiver) Drain(ctx context.Context, limit int) []transport.Delivery {
	r.mu.Lock()
	r.draining = true
	s := r.session
	signal(r.poke)
	r.mu.Unlock()
	if s == nil {
		return nil
	}
	s.prefetch.awaitEnd(ctx)
	ds, _ := s.take(limit, math.MaxInt)
	return ds
}

// fit makes the consumers prefetch what is wanted of a window; last is when they are to end for good. It reports whether to
// call it again soon.
func (s *session) fit(window int, last bool, now time.Time) (later bool, err error) {
	want := 0
	if last {
		s.prefetch.close()
	} else { // otherwise what is prefetched is handled, or released when the consumers have ended
		want = s.prefetch.want(window, s.maxHold(), now)
		s.releaseExcess(window, now)
	}
	s.mu.Lock()
	s.acks.window, s.closing = want, last
	s.mu.Unlock()
	out, later := s.prefetch.excess(want, now)
	for _, c := range out {
		s.prefetch.cancel(c)
		if err := s.ch.Cancel(c.tag, false); err != nil {
			return false, fmt.Errorf("cancel a consumer: %w", plain(err))
		}
	}
	if c := s.prefetch.next(want, s.receiver.queue); c != nil {
		return later, s.consume(c)
	}
	return later, nil
}

// maxHold is how long the broker waits for a message to be settled; 0 is for ever.
func (s *session) maxHold() time.Duration {
	if s.receiver.hold == heldForever {
		return 0
	}
	return s.receiver.conn.maxHold
}

func (s *session) consume(c *consumer) error {
	if err := s.ch.Qos(c.share, 0, false); err != nil {
		return fmt.Errorf("set the prefetch count: %w", plain(err))
	}
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

// keep is the grace period of excess: how long messages beyond a smaller window are kept, which may soon be as large again.
// They are released then, for other instances to take, and because the broker would take them back in the end with all that is in handlers.
func (c *conn) keep() time.Duration {
	if c.limits.FreeRelease {
		return 0
	}
	return c.maxHold / 10
}

// releaseExcess releases what is prefetched beyond the window. It waits for the consumers to end, which would be
// sent the same messages again.
func (s *session) releaseExcess(window int, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 || !s.prefetch.idle() {
		return
	}
	room := window - (s.acks.open - len(s.waiting))
	s.release(func(i int, d *delivery) bool { return i >= room && now.Sub(d.since) >= s.receiver.conn.keep() })
}

// release returns the prefetched messages to the queue that are picked by their place. Called with mu held.
func (s *session) release(pick func(int, *delivery) bool) {
	kept := s.waiting[:0]
	for i, d := range s.waiting {
		if !pick(i, d) {
			kept = append(kept, d)
			continue
		}
		s.account(d)
		// One that cannot be released comes back with the loss of the channel.
		_ = s.ch.Nack(d.tag, false, true)
	}
	clear(s.waiting[len(kept):])
	s.waiting = kept
}
