package rabbitmq

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.Conn       = (*conn)(nil)
	_ transport.Installer  = (*conn)(nil)
	_ transport.Verifier   = (*conn)(nil)
	_ transport.Remover    = (*conn)(nil)
	_ transport.Subscriber = (*conn)(nil)
	_ transport.Inspector  = (*conn)(nil)
	_ transport.Purger     = (*conn)(nil)
	_ transport.Browser    = (*conn)(nil)
	_ transport.Satellites = (*conn)(nil)
	_ transport.Blocker    = (*conn)(nil)
	_ transport.Warner     = (*conn)(nil)
	_ transport.Translator = (*conn)(nil)

	_ transport.ConnectionReporter = (*conn)(nil)
)

// conn holds two connections to the broker. A broker that runs out of memory or disk stops reading
// from connections that publish; acknowledgements still arrive over the other one and free
// resources.
type conn struct {
	schema

	dialer    *dialer
	maxHold   time.Duration
	translate func(*transport.Message) // nil for none
	limits    transport.Limits

	maxBody atomic.Int64 // of Limits, or less when the broker has refused a body

	publishing *supervisor[*publisher]

	ctx    context.Context //nolint:containedctx // of the conn's own goroutines; ends with Close
	cancel context.CancelFunc

	redelivered redelivered

	mu        sync.Mutex // guards receivers
	receivers map[*receiver]struct{}
}

func openConn(ctx context.Context, c *conn) (*conn, error) {
	c.receivers = make(map[*receiver]struct{})
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.receiving = &supervisor[*receiveConn]{name: "receiving", log: c.log, dial: c.dialReceiving}
	c.publishing = &supervisor[*publisher]{name: "sending", log: c.log, dial: c.dialPublisher}

	in, err := c.dialReceiving(ctx)
	if err != nil {
		c.cancel()
		return nil, err
	}
	out, err := c.dialPublisher(ctx)
	if err != nil {
		c.cancel()
		in.close()
		c.tasks.Stop()
		return nil, err
	}
	text, _ := in.Properties["version"].(string)
	// A version that cannot be read stays 0, which stands for the oldest behavior.
	_, _ = fmt.Sscanf(text, "%d.%d", &c.version.major, &c.version.minor)
	c.limits = c.limitsOf(in.Config.FrameSize)
	c.maxBody.Store(int64(c.limits.MaxBody))
	c.receiving.set(in, nil)
	c.publishing.set(out, nil)
	c.tasks.Go(func() { c.receiving.run(c.ctx, in) })
	c.tasks.Go(func() { c.publishing.run(c.ctx, out) })
	return c, nil
}

// limitsOf returns the limits of the broker. MaxBody is its default, for the protocol does not name
// its setting.
func (c *conn) limitsOf(frame int) transport.Limits {
	l := transport.Limits{
		MaxBody: 128 << 20, MaxDelay: delays.Max(), Prefetch: true, MaxHold: c.maxHold,
		FreeRelease: c.queueType == Quorum && c.version.atLeast(release43),
	}
	if c.version.atLeast(release40) {
		l.MaxBody = 16 << 20
	}
	if frame > 0 {
		// Encoding takes six more bytes for each header, and properties share the frame.
		l.MaxHeaders = frame - frameReserve
	}
	return l
}

// frameReserve is left for properties and for the encoding of about a thousand headers.
const frameReserve = 8 << 10

func (c *conn) Limits() transport.Limits { return c.limits }

// Close closes both connections, once the settlements are applied that were made before. The broker
// requeues unsettled messages at once.
func (c *conn) Close() error {
	var wait time.Duration
	c.mu.Lock()
	for r := range c.receivers {
		if ch := r.enter(phaseEnded); ch != nil {
			ch.finish()
			wait = max(wait, ch.unapplied())
		}
	}
	c.mu.Unlock()
	// An error means that the connection is lost already.
	_ = backoff.Sleep(c.ctx, wait)
	c.cancel()
	c.tasks.Stop()
	return nil
}

// receiveConn is the connection for receiving and for declaring.
type receiveConn struct {
	*brokerConn

	asking sync.Mutex    // held while asked is used
	asked  *amqp.Channel // for frequent questions; nil before the first
}

func (c *conn) dialReceiving(ctx context.Context) (*receiveConn, error) {
	b, err := c.dial(ctx, "receiving")
	return &receiveConn{brokerConn: b}, err
}
