package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

// pacer spaces attempts to connect. The pauses grow while the connections last no longer than the
// pause before them, and become short again when one does.
type pacer struct {
	backoff backoff.Backoff
	last    time.Duration
}

func newPacer() *pacer {
	return &pacer{backoff: backoff.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}}
}

func (p *pacer) lasted(d time.Duration) {
	if d > p.last {
		p.backoff.Reset()
	}
}

func (p *pacer) wait(ctx context.Context) error {
	p.last = p.backoff.Next()
	return backoff.Sleep(ctx, p.last)
}

// slot holds what is open at the moment.
type slot[T any] struct {
	mu      sync.Mutex // guards the fields below
	open    T          // zero while there is none
	err     error      // why there is none
	changed chan struct{}
}

func (s *slot[T]) set(open T, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open, s.err = open, err
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// now returns what is open, or why there is nothing, and a channel that is closed when that
// changes.
func (s *slot[T]) now() (T, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.open, s.changed, s.err
}

// connection is a connection to the broker, from its dial to its loss. A lost connection is never
// revived: everything that was opened on it ends with it, so a delivery cannot be settled over
// another connection than its own.
type connection interface {
	lost() <-chan *amqp.Error // receives, or is closed, when the connection is lost
	lossReason(e *amqp.Error) error
	close() // waits for the connection's goroutines; may be called again
}

// supervisor keeps one connection open: it dials again whenever the connection is lost.
type supervisor[C connection] struct {
	slot[C]
	name string // of the connection, in logs
	log  *slog.Logger
	dial func(ctx context.Context) (C, error)
}

// run supervises the open connection c, and those that follow it, until ctx ends.
func (s *supervisor[C]) run(ctx context.Context, c C) {
	var none C
	pace := newPacer()
	for ok := true; ok; c, ok = s.redial(ctx, pace) {
		since := time.Now()
		select {
		case e := <-c.lost():
			err := fmt.Errorf("rabbitmq: not connected: %w", c.lossReason(e))
			s.set(none, err)
			s.log.WarnContext(ctx, "lost the connection to RabbitMQ: it is dialed again", "connection", s.name, "err", err)
			c.close()
		case <-ctx.Done():
			s.set(none, transport.ErrClosed)
			c.close()
			return
		}
		pace.lasted(time.Since(since))
	}
	s.set(none, transport.ErrClosed)
}

func (s *supervisor[C]) redial(ctx context.Context, pace *pacer) (c C, ok bool) {
	for pace.wait(ctx) == nil {
		c, err := s.dial(ctx)
		if err == nil {
			s.set(c, nil)
			s.log.InfoContext(ctx, "connected to RabbitMQ again", "connection", s.name)
			return c, true
		}
		var none C
		s.set(none, err)
	}
	return c, false
}

// connectWait is how long a send waits for a connection that is being dialed. Failing at once would
// use up the attempts of a message within milliseconds of a lost connection.
const connectWait = time.Second

// await returns the open connection. It waits up to connectWait for a lost one to be replaced.
func (s *supervisor[C]) await(ctx context.Context) (C, error) {
	var timeout <-chan time.Time
	for {
		c, changed, err := s.now()
		if err == nil || errors.Is(err, transport.ErrClosed) {
			return c, err
		}
		if timeout == nil {
			timeout = time.After(connectWait)
		}
		select {
		case <-changed:
		case <-timeout:
			return c, err
		case <-ctx.Done():
			return c, fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		}
	}
}
