package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/goroutines"
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
	_ transport.Checker    = (*conn)(nil)

	_ transport.ConnectionReporter = (*conn)(nil)
)

// conn is an open transport. Its parts share the core.
type conn struct {
	*core
	*sending
	*receivers
	*browser
	*inspector
	*exchanges
	*installer
	*verifier
}

// newConn returns the parts of a conn, which is not connected.
func newConn(c *core) *conn {
	all := &conn{core: c, inspector: &inspector{c}, exchanges: &exchanges{c}}
	delays, lifter := &delayQueues{c, all.exchanges}, &lifter{c}
	all.sending = &sending{core: c, exchanges: all.exchanges, delays: delays}
	all.receivers = &receivers{core: c, lifter: lifter, open: make(map[*receiver]struct{})}
	all.browser = &browser{c, all.sending}
	all.installer = &installer{core: c, exchanges: all.exchanges, delays: delays, lifter: lifter}
	all.verifier = &verifier{c, lifter}
	return all
}

func openConn(ctx context.Context, own *core) (*conn, error) {
	c := newConn(own)
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

// Close closes both connections, once the settlements are applied that were made before. The broker
// requeues unsettled messages at once.
func (c *conn) Close() error {
	wait := c.finish()
	// An error means that the connection is lost already.
	_ = backoff.Sleep(c.ctx, wait)
	c.cancel()
	c.tasks.Stop()
	return nil
}

// core is the broker as the parts of a conn use it, over two connections. A broker that runs out of
// memory or disk stops reading from connections that publish; acknowledgements still arrive over the
// other connection and free resources.
type core struct {
	schema

	dialer    *dialer
	maxHold   time.Duration
	translate func(*transport.Message) // nil for none
	limits    transport.Limits

	maxBody atomic.Int64 // of Limits, or less when the broker has refused a body

	publishing *supervisor[*publisher]

	ctx    context.Context //nolint:containedctx // of the conn's own goroutines; ends with Close
	cancel context.CancelFunc
}

// limitsOf returns the limits of the broker. MaxBody is its default, for the protocol does not name
// its setting.
func (c *core) limitsOf(frame int) transport.Limits {
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

func (c *core) Limits() transport.Limits { return c.limits }

// Translation implements [transport.Translator].
func (c *core) Translation() func(*transport.Message) { return c.translate }

// grace returns how long messages beyond a smaller window are kept, because the window may soon be
// as large again. After that they are released for other instances, and because the broker would
// requeue them in the end, with all messages that are in handlers.
func (c *core) grace() time.Duration {
	if c.limits.FreeRelease {
		return 0
	}
	return c.maxHold / 10
}

// receiveConn is the connection for receiving and for declaring.
type receiveConn struct {
	*brokerConn

	asking sync.Mutex    // held while asked is used
	asked  *amqp.Channel // for frequent questions; nil before the first
}

func (c *core) dialReceiving(ctx context.Context) (*receiveConn, error) {
	b, err := c.dial(ctx, "receiving")
	return &receiveConn{brokerConn: b}, err
}

// dial opens a connection, whose token is replaced before it expires.
func (c *core) dial(ctx context.Context, purpose string) (*brokerConn, error) {
	b, err := c.dialer.dial(ctx, purpose)
	if err != nil {
		return nil, err
	}
	if !b.login.expires.IsZero() {
		c.tasks.Go(func() { c.renewTokens(b, purpose) })
	}
	return b, nil
}

// renewTokens gives an open connection a new token before each expires. The broker closes a
// connection whose token has expired, which is then dialed again.
func (c *core) renewTokens(b *brokerConn, purpose string) {
	closed := b.NotifyClose(make(chan *amqp.Error, 1))
	login, failed := b.login, false
	for !login.expires.IsZero() {
		select {
		case <-time.After(max(minTokenPause, time.Until(login.expires)/4*3)):
		case <-closed: //nolint:errcheck // the supervisor logs it
			return
		case <-c.ctx.Done():
			return
		}
		next, err := c.replaceToken(b, login)
		if err != nil && !failed && !b.IsClosed() {
			c.log.WarnContext(c.ctx, "no new token for an open connection: the driver asks again until the token expires",
				"connection", purpose, "expires", login.expires, "err", err)
		}
		login, failed = next, err != nil
	}
}

// replaceToken returns the credentials that the connection has afterwards.
func (c *core) replaceToken(b *brokerConn, has Credentials) (Credentials, error) {
	next, err := c.dialer.ask(c.ctx)
	if err != nil {
		return has, err
	}
	if next.secret == has.secret {
		return next, nil
	}
	if err := b.UpdateSecret(next.secret, "the token expires"); err != nil {
		return has, wrap(err, "replace the token of a connection")
	}
	return next, nil
}

// channels opens channels for declarations and questions on the receiving connection.
type channels struct {
	log       *slog.Logger
	receiving *supervisor[*receiveConn]
	tasks     goroutines.Group
}

// request calls f with the receiving connection, for a request that has the same effect if it is
// made twice. It calls f again, if need be on the next connection, as long as the failure is
// momentary.
func (c *channels) request(ctx context.Context, f func(*receiveConn) error) error {
	var again repetition
	failed := false
	for {
		in, err := c.receiving.await(ctx)
		if err == nil {
			err = c.call(ctx, func() error { return f(in) })
			if !isMomentary(err, in.brokerConn) {
				return err
			}
			failed = true
		}
		if !failed || errors.Is(err, transport.ErrClosed) || !again.again(ctx) {
			return err
		}
	}
}

// onChannel runs f as a request with a channel of its own on the receiving connection. A refused
// declaration closes the channel.
func (c *channels) onChannel(ctx context.Context, f func(*amqp.Channel) error) error {
	return c.request(ctx, func(in *receiveConn) error { return withChannel(in.brokerConn, f) })
}

// ask is onChannel with a channel that is kept, for frequent questions.
func (c *channels) ask(ctx context.Context, f func(*amqp.Channel) error) error {
	return c.request(ctx, func(in *receiveConn) (err error) {
		in.asking.Lock()
		defer in.asking.Unlock()
		if in.asked == nil || in.asked.IsClosed() { // by a refusal
			if in.asked, err = in.Channel(); err != nil {
				return wrap(err, "open a channel")
			}
		}
		return f(in.asked)
	})
}

func withChannel(conn *brokerConn, f func(*amqp.Channel) error) error {
	ch, err := conn.Channel()
	if err != nil {
		return wrap(err, "open a channel")
	}
	defer ch.Close() //nolint:errcheck // closed already when f failed
	return f(ch)
}

// call runs f, a request to the broker without a context, and stops waiting for it when ctx ends.
// The loss of the connection ends f.
func (c *channels) call(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	if !c.tasks.Go(func() { done <- f() }) {
		return transport.ErrClosed
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// repeatFor is how long after its first failure a request is repeated.
const repeatFor = 2 * dialTimeout

// repetition paces the attempts at a request. The zero value is ready for the first failure. It is
// not safe for concurrent use.
type repetition struct {
	pause backoff.Backoff
	until time.Time
}

// again waits for the next attempt. It reports false if there is none, because repeatFor has passed
// or ctx has ended.
func (r *repetition) again(ctx context.Context) bool {
	if r.until.IsZero() {
		r.until = time.Now().Add(repeatFor)
		r.pause = backoff.Backoff{Min: 100 * time.Millisecond, Max: 2 * time.Second}
	}
	return time.Now().Before(r.until) && r.pause.Wait(ctx) == nil
}

// isMomentary reports whether a request on a connection has failed for the state of the broker or
// of the connection at that moment, so that the same request may succeed later. An answer about the
// request itself is not momentary.
func isMomentary(err error, conn *brokerConn) bool {
	var broker *amqp.Error
	var network *net.OpError
	switch {
	case err == nil, errors.Is(err, transport.ErrClosed):
		return false
	case !errors.As(err, &broker) || !broker.Server:
		// The library may report only that the connection is closed. A connection whose write has
		// failed is closed soon.
		return errors.As(err, &network) || conn.IsClosed()
	}
	switch broker.Code {
	case amqp.InternalError: // for example a queue that cannot be started, or a metadata store without an answer
		return true
	case amqp.ConnectionForced: // a node that stops
		return true
	case amqp.NotFound: // of a queue that exists
		return strings.Contains(broker.Reason, "due to timeout") || strings.Contains(broker.Reason, "down or inaccessible")
	}
	return false
}
