package rabbitmq

import "time"

// A window that becomes smaller leaves a surplus: what the broker has sent ahead for the larger one, and goes on
// sending as it is settled. It should go back, for others to take, and because the broker would take it back in the
// end with all that is in hand. Where that counts as an attempt it is borne for a while, for the window may soon be
// as large again. Cancelling a consumer costs the same: a quorum queue takes back what is on its way.

// patience is how long a surplus is borne.
func (s *session) patience() time.Duration {
	c := s.receiver.conn
	if c.limits.FreeRelease {
		return 0
	}
	return c.maxHold / 10
}

// bear tells whether consumers that may send so many more than the window has room for are left
// alone for now. A window of one has to stop between messages, and bears none. Called with mu held.
func (s *session) bear(surplus int, now time.Time) bool {
	switch {
	case surplus <= 0:
		s.narrow = time.Time{}
		return false
	case s.closing || s.shares() == 1:
		return false
	case s.narrow.IsZero():
		s.narrow = now
	}
	return now.Sub(s.narrow) < s.patience()
}

// giveBack returns what is prefetched beyond the window n. It waits for the consumers to end, which would be
// sent the same messages again.
func (s *session) giveBack(n int, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sending() {
		return
	}
	kept := s.waiting[:0]
	room := n - (s.acks.open - len(s.waiting))
	for i, d := range s.waiting {
		if i < room || now.Sub(d.since) < s.patience() {
			kept = append(kept, d)
			continue
		}
		s.account(d)
		// One that cannot be given back comes back with the loss of the channel.
		_ = s.ch.Nack(d.tag, false, true)
	}
	clear(s.waiting[len(kept):])
	s.waiting = kept
}
