package rabbitmq

import (
	"context"

	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.Drainer = (*receiver)(nil)

// Drain implements [transport.Drainer]: before RabbitMQ 4.3, what is given back has one attempt more.
func (r *receiver) Drain(ctx context.Context) []transport.Delivery {
	r.mu.Lock()
	r.draining = true
	s := r.session
	signal(r.poke)
	r.mu.Unlock()
	if s == nil {
		return nil
	}
	return s.drain(ctx)
}

// drain waits for the consumers to end, and hands over what they were sent.
func (s *session) drain(ctx context.Context) []transport.Delivery {
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changed.Broadcast()
	})
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.ended == nil && s.sending() && ctx.Err() == nil {
		s.changed.Wait()
	}
	ds := make([]transport.Delivery, len(s.waiting))
	for i, d := range s.waiting {
		d.handed = true
		ds[i] = d
	}
	s.waiting = nil
	return ds
}
