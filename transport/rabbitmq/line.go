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

// pacer spaces attempts to connect. The pauses grow while what was connected does not
// outlast them, and start small again when it does.
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

// wire is one connection, from its dial to its loss. It is never revived: what was
// opened from it dies with it, so that a settle can only reach the connection its
// delivery came over.
type wire interface {
	comparable
	ended() <-chan *amqp.Error // yields, or is closed, when the connection is lost
	reason(*amqp.Error) error  // of the loss
	close()                    // waits for the wire's goroutines; may be called again
}

// line is a connection that is dialled again whenever it is lost.
type line[W wire] struct {
	name string // what the connection is for, in logs
	log  *slog.Logger
	dial func(ctx context.Context) (W, error)

	mu      sync.Mutex // guards what follows
	wire    W          // zero while there is none
	err     error      // why there is none
	changed chan struct{}
}

func newLine[W wire](name string, log *slog.Logger, dial func(context.Context) (W, error)) *line[W] {
	return &line[W]{name: name, log: log, dial: dial, changed: make(chan struct{})}
}

// run keeps the line up until ctx ends. It starts with a wire that is up.
func (l *line[W]) run(ctx context.Context, w W) {
	pace := newPacer()
	for {
		since := time.Now()
		select {
		case e := <-w.ended():
			l.lose(ctx, w.reason(e))
			w.close()
		case <-ctx.Done():
			l.down(transport.ErrClosed)
			w.close()
			return
		}
		pace.lasted(time.Since(since))
		var ok bool
		if w, ok = l.redial(ctx, pace); !ok {
			l.down(transport.ErrClosed)
			return
		}
	}
}

func (l *line[W]) redial(ctx context.Context, pace *pacer) (W, bool) {
	for pace.wait(ctx) == nil {
		w, err := l.dial(ctx)
		if err == nil {
			l.up(w)
			l.log.InfoContext(ctx, "connected to RabbitMQ again", "connection", l.name)
			return w, true
		}
		l.down(err)
	}
	var none W
	return none, false
}

// connectionLoss is why a connection was lost, from what the client library says.
func connectionLoss(e *amqp.Error) error {
	if e == nil {
		return errors.New("the connection was closed")
	}
	return plain(e)
}

func (l *line[W]) lose(ctx context.Context, err error) {
	l.down(fmt.Errorf("rabbitmq: not connected: %w", err))
	l.log.WarnContext(ctx, "lost the connection to RabbitMQ", "connection", l.name, "err", err)
}

func (l *line[W]) up(w W) { l.change(w, nil) }

func (l *line[W]) down(err error) {
	var none W
	l.change(none, err)
}

func (l *line[W]) change(w W, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wire, l.err = w, err
	close(l.changed)
	l.changed = make(chan struct{})
}

// now is the wire, or why there is none, and a channel closed when that changes.
func (l *line[W]) now() (W, <-chan struct{}, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wire, l.changed, l.err
}

// within is the wire, waiting up to d for a lost one to come back.
func (l *line[W]) within(ctx context.Context, d time.Duration) (W, error) {
	w, changed, err := l.now()
	if err == nil || errors.Is(err, transport.ErrClosed) {
		return w, err
	}
	patience := time.NewTimer(d)
	defer patience.Stop()
	for {
		select {
		case <-changed:
			if w, changed, err = l.now(); err == nil || errors.Is(err, transport.ErrClosed) {
				return w, err
			}
		case <-patience.C:
			return w, err
		case <-ctx.Done():
			return w, fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		}
	}
}
