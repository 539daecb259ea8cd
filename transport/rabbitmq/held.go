package rabbitmq

import (
	"context"
	"time"
)

// warnOfHolds tells of deliveries that have been held for 80 % of the time after which the broker
// closes the channel and hands all of its messages out again.
func (s *session) warnOfHolds(ctx context.Context, now time.Time) {
	most := s.receiver.conn.limits.MaxHold
	s.mu.Lock()
	defer s.mu.Unlock()
	for d := s.acks.oldest; d != nil && now.Sub(d.since) >= most/10*8; d = d.next {
		if d.warned {
			continue
		}
		d.warned = true
		s.receiver.conn.log.WarnContext(ctx, "a message is held for long: soon the broker will take it and all others of its channel back",
			"queue", s.receiver.queue, "message", d.message.ID, "held", now.Sub(d.since), "most", most)
	}
}
