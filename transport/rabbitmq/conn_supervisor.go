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

// pacer spaces attempts to connect. The pauses grow while the connections last no longer than the pause before them,
// and become short again when one does.
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

// connection is a connection to the broker, from its dial to its loss. A lost connection is never revived: everything
// that was opened on it ends with it, so a delivery cannot be settled over another connection than its own.
type connection interface {
	comparable
	lost() <-chan *amqp.Error // receives, or is closed, when the connection is lost
	lossReason(e *amqp.Error) error
	close() // waits for the connection's goroutines; may be called again
}

// supervisor keeps one connection open: it dials again whenever the connection is lost.
type supervisor[C connection] struct {
	name string // of the connection, in logs
	log  *slog.Logger
	dial func(ctx context.Context) (C, error)

	mu      sync.Mutex // guards the fields below
	open    C          // zero while there is none
	err     error      // why there is none
	changed chan struct{}
}

func supervise[C connection](name string, log *slog.Logger, dial func(context.Context) (C, error)) *supervisor[C] {
	return &supervisor[C]{name: name, log: log, dial: dial, changed: make(chan struct{})}
}

// run supervises the open connection c, and those that follow it, until ctx ends.
func (s *supervisor[C]) run(ctx context.Context, c C) {
	pace := newPacer()
	for {
		since := time.Now()
		select {
		case e := <-c.lost():
			err := fmt.Errorf("rabbitmq: not connected: %w", c.lossReason(e))
			s.down(err)
			s.log.WarnContext(ctx, "lost the connection to RabbitMQ: it is dialed again", "connection", s.name, "err", err)
			c.close()
		case <-ctx.Done():
			s.down(transport.ErrClosed)
			c.close()
			return
		}
		pace.lasted(time.Since(since))
		var ok bool
		if c, ok = s.redial(ctx, pace); !ok {
			s.down(transport.ErrClosed)
			return
		}
	}
}

func (s *supervisor[C]) redial(ctx context.Context, pace *pacer) (c C, ok bool) {
	for pace.wait(ctx) == nil {
		c, err := s.dial(ctx)
		if err == nil {
			s.up(c)
			s.log.InfoContext(ctx, "connected to RabbitMQ again", "connection", s.name)
			return c, true
		}
		s.down(err)
	}
	return c, false
}

// connectionLoss returns why a connection was lost.
func connectionLoss(e *amqp.Error) error {
	if e == nil {
		return errors.New("the connection was closed")
	}
	return plain(e)
}

func (s *supervisor[C]) up(c C) { s.change(c, nil) }

func (s *supervisor[C]) down(err error) {
	var none C
	s.change(none, err)
}

func (s *supervisor[C]) change(c C, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open, s.err = c, err
	close(s.changed)
	s.changed = make(chan struct{})
}

// now returns the open connection, or why there is none, and a channel that is closed when that changes.
func (s *supervisor[C]) now() (C, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open, s.changed, s.err
}

// connectWait is how long a send waits for a connection that is being dialed. Failing at once would use up the
// attempts of a message within milliseconds of a lost connection.
const connectWait = time.Second

// await returns the open connection. It waits up to connectWait for a lost one to be replaced.
func (s *supervisor[C]) await(ctx context.Context) (C, error) {
	c, changed, err := s.now()
	if err == nil || errors.Is(err, transport.ErrClosed) {
		return c, err
	}
	timeout := time.NewTimer(connectWait)
	defer timeout.Stop()
	for {
		select {
		case <-changed:
			if c, changed, err = s.now(); err == nil || errors.Is(err, transport.ErrClosed) {
				return c, err
			}
		case <-timeout.C:
			return c, err
		case <-ctx.Done():
			return c, fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		}
	}
}
