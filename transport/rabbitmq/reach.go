package rabbitmq

// What the broker has sent ahead no other instance can take, and each counts an attempt when the process
// dies; messages that are handled fast need many under way nevertheless. So a session asks for a
// part of its window, its reach, and for more when handlers run out of messages with most of that in hand.

// fullReach is the largest window that is asked for at once.
const fullReach = 32

// reachIn is how much of a window of n to ask the broker for.
func (s *session) reachIn(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.short {
		s.short = false
		s.reach *= 2
	}
	s.reach = max(s.reach, n/4, fullReach)
	return min(s.reach, n)
}

// runShort notes that less is there than is wanted, and has the reach grow unless part of it is still to come.
// Called with mu held.
func (s *session) runShort(window int) {
	inHand := s.acks.open + len(s.acks.pending)
	if !s.short && s.reach < window && inHand >= s.reach/4*3 {
		s.short = true
		signal(s.receiver.poke)
	}
}
