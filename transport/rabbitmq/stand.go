package rabbitmq

import "slices"

// halt has the consumers cancelled, until stand has returned. It is false where they are still those
// of a larger window, which sent ahead as it is.
func (s *session) halt() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shares() > 1 {
		return false
	}
	s.halts++
	return true
}

func (s *session) standing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.halts > 0
}

// stand returns when the broker sends nothing more. Cancelled after the delivery in hand is settled, a
// consumer may have the next under way, and the broker would count that as handed out.
func (s *session) stand() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.ended == nil && s.sending() {
		s.changed.Wait()
	}
	s.halts--
	signal(s.receiver.poke)
}

// sending tells whether there is a consumer that the broker may send to. Called with mu held.
func (s *session) sending() bool {
	return len(s.consumers) > 0 || slices.ContainsFunc(s.leaving, func(c *consumer) bool { return !c.drained })
}
