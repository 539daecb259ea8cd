package rabbitmq

import (
	"context"
	"math"

	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.Drainer = (*receiver)(nil)

// Drain implements [transport.Drainer]: before RabbitMQ 4.3, what is given back has one attempt more.
func (r *receiver) Drain(ctx context.Context, limit int) []transport.Delivery {
	r.mu.Lock()
	r.draining = true
	s := r.session
	signal(r.poke)
	r.mu.Unlock()
	if s == nil {
		return nil
	}
	s.awaitEnd(ctx)
	ds, _ := s.take(limit, math.MaxInt)
	return ds
}

// awaitEnd waits for the consumers to end.
func (s *session) awaitEnd(ctx context.Context) {
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
}
