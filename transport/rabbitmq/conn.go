package rabbitmq

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.Conn       = (*conn)(nil)
	_ transport.Installer  = (*conn)(nil)
	_ transport.Subscriber = (*conn)(nil)
	_ transport.Inspector  = (*conn)(nil)
	_ transport.Satellites = (*conn)(nil)
	_ transport.Blocker    = (*conn)(nil)
)

// conn holds two lines to the broker. A broker that runs out of memory or disk stops
// reading from connections that publish; on the other one, acknowledgements still get
// through and make room.
type conn struct {
	dialer    *dialer
	queueType QueueType
	topology  topology
	backstop  backstop
	maxHold   time.Duration
	translate func(*transport.Message) // nil: as it came
	log       *slog.Logger

	management *management
	limits     transport.Limits
	version    version // of the broker

	learnedMaxBody atomic.Int64 // 0 until the broker refused a body

	receiving  *line[*consuming]
	publishing *line[*publisher]

	ctx    context.Context //nolint:containedctx // of the conn's own goroutines; ends with Close
	cancel context.CancelFunc
	tasks  tasks

	processed processed

	mu        sync.Mutex // guards receivers
	receivers map[*receiver]struct{}
}

// openConn connects what is configured.
func openConn(ctx context.Context, c *conn) (*conn, error) {
	c.receivers = make(map[*receiver]struct{})
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.receiving = newLine("receiving", c.log, c.dialConsuming)
	c.publishing = newLine("sending", c.log, c.dialPublisher)

	in, err := c.dialConsuming(ctx)
	if err != nil {
		c.cancel()
		return nil, err
	}
	out, err := c.dialPublisher(ctx)
	if err != nil {
		c.cancel()
		in.close()
		return nil, err
	}
	c.version = versionOf(in.conn)
	c.limits = limitsOf(in.conn, c.queueType)
	c.limits.MaxHold = c.maxHold
	c.receiving.up(in)
	c.publishing.up(out)
	c.tasks.start(func() { c.receiving.run(c.ctx, in) })
	c.tasks.start(func() { c.publishing.run(c.ctx, out) })
	return c, nil
}

// limitsOf is what a broker accepts. How large a message may be it does not tell:
// these are its defaults.
func limitsOf(c *amqp.Connection, queueType QueueType) transport.Limits {
	v := versionOf(c)
	l := transport.Limits{
		MaxBody:     128 << 20,
		MaxDelay:    delays.Max(),
		Prefetch:    true,
		FreeRelease: queueType == Quorum && v.atLeast(release43),
	}
	if v.atLeast(release40) {
		l.MaxBody = 16 << 20
	}
	if frame := c.Config.FrameSize; frame > 0 {
		// Every header takes six bytes more on the wire, and properties share the frame.
		l.MaxHeaders = frame - frameReserve
	}
	return l
}

// frameReserve is left for properties and for the encoding of about a thousand headers.
const frameReserve = 8 << 10

func (c *conn) Limits() transport.Limits { return c.limits }

// Close ends both connections. The broker gives back what is not settled at once.
func (c *conn) Close() error {
	c.mu.Lock()
	for r := range c.receivers {
		r.finish()
	}
	c.mu.Unlock()
	c.cancel()
	c.tasks.stop()
	return nil
}

// consuming is one connection that receives, from its dial to its loss.
type consuming struct {
	conn   *amqp.Connection
	frames *frameReader
	lost   chan *amqp.Error

	asking sync.Mutex    // held while ask is used
	asked  *amqp.Channel // for what is asked again and again; nil before
}

func (c *conn) dialConsuming(ctx context.Context) (*consuming, error) {
	conn, l, err := c.dialer.dial(ctx, "receiving")
	if err != nil {
		return nil, err
	}
	return &consuming{conn: conn, frames: l.in, lost: conn.NotifyClose(make(chan *amqp.Error, 1))}, nil
}

func (c *consuming) ended() <-chan *amqp.Error { return c.lost }

func (c *consuming) reason(e *amqp.Error) error { return c.frames.lossReason(e) }

func (c *consuming) close() { hangUp(c.conn) }

// tasks are the goroutines of a conn.
type tasks struct {
	mu      sync.Mutex // guards stopped, and Add against Wait
	stopped bool
	wg      sync.WaitGroup
}

// start runs f in a goroutine, unless stop has been called.
func (t *tasks) start(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return false
	}
	t.wg.Go(f)
	return true
}

// stop lets nothing start any more and waits for what runs.
func (t *tasks) stop() {
	t.mu.Lock()
	t.stopped = true
	t.mu.Unlock()
	t.wg.Wait()
}

// call runs f, which asks the broker something and knows no context, and stops
// waiting for it when ctx ends. A connection that is lost or closed ends f.
func (c *conn) call(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	if !c.tasks.start(func() { done <- f() }) {
		return transport.ErrClosed
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// connectPatience is how long a send waits for a connection that is being dialled
// again. Failing at once instead would burn a message's attempts within
// milliseconds of a lost connection.
const connectPatience = time.Second
