package asb

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/go-amqp"

	"github.com/holdfast-go/holdfast/internal/goroutines"
	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.Conn       = (*conn)(nil)
	_ transport.Installer  = (*conn)(nil)
	_ transport.Verifier   = (*conn)(nil)
	_ transport.Remover    = (*conn)(nil)
	_ transport.Subscriber = (*conn)(nil)
	_ transport.Canceler   = (*conn)(nil)
	_ transport.Inspector  = (*conn)(nil)
	_ transport.Satellites = (*conn)(nil)
	_ transport.Browser    = (*conn)(nil)
)

// conn is an open namespace.
type conn struct {
	config   Transport
	ns       *namespace
	naming   naming
	sizes    sizes
	endpoint string
	instance string
	lease    time.Duration
	log      *slog.Logger
	admin    *administration
	sending  *supervisor
	locks    locks
	tasks    goroutines.Group // ends with Close

	ctx  context.Context //nolint:containedctx // ends with Close
	stop context.CancelFunc

	mu        sync.Mutex // guards the fields below
	closed    bool
	senders   map[string]*sender
	receivers map[*receiver]struct{}
	installed []string // the endpoint's own queues
	dropped   map[string]bool

	limited sync.Once // of the warning about an emulator's limits
}

func openConn(ctx context.Context, t *Transport, ns *namespace, env transport.Env) (*conn, error) {
	c := &conn{
		config: *t, ns: ns, naming: newNaming(t), sizes: newSizes(t.MaxMessageSize),
		endpoint: env.Endpoint, instance: env.Instance, log: env.Log(), sending: newSupervisor(ns),
		senders: map[string]*sender{}, receivers: map[*receiver]struct{}{}, dropped: map[string]bool{},
	}
	var err error
	if c.admin, err = newAdministration(ns); err != nil {
		return nil, err
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	if err := c.greet(ctx); err != nil {
		_ = c.Close() // never fails
		return nil, err
	}
	c.lease = c.lockDuration(ctx)
	return c, nil
}

// greet connects and authenticates. The service checks a credential for an entity: the endpoint's queue will do, even
// if it does not exist or the credential has no right to send to it.
func (c *conn) greet(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, dialTimeout, errNoReply)
	defer cancel()
	cl, err := c.sending.client(ctx)
	if err != nil {
		return err
	}
	on, over := cl.on(ctx)
	defer over()
	sender, err := cl.NewSender(c.greeted(), nil)
	if err == nil {
		_, err = sender.NewMessageBatch(on, nil)
	}
	if own, ok := c.sending.throttle.try(); ok {
		own.end(err)
	}
	var attach *amqp.Error
	var e *azservicebus.Error
	switch {
	case err == nil, ofLink(err), errors.As(err, &attach), errors.As(err, &e) && e.Code == azservicebus.CodeNotFound, errors.Is(plain(err), errBusy):
		return nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	default:
		err = cl.lostIn(ctx, err)
	}
	return wrap(err, "connect to %s", c.ns.address)
}

// greeted returns an entity for which the credential may be valid.
func (c *conn) greeted() string {
	if c.ns.entity != "" {
		return c.ns.entity
	}
	if path, err := c.naming.entity(c.endpoint); err == nil {
		return path
	}
	return "holdfast"
}

// lockDuration returns how long messages of the endpoint's queue are locked.
func (c *conn) lockDuration(ctx context.Context) time.Duration {
	if c.config.LockDuration > 0 {
		return c.config.LockDuration
	}
	if c.endpoint == "" {
		return defaultLock
	}
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	if lock, err := c.lockOf(ctx, c.endpoint); err == nil && lock > 0 {
		return min(lock, defaultLock)
	}
	return defaultLock // see shortLocks
}

// Limits implements [transport.Conn].
func (c *conn) Limits() transport.Limits {
	return transport.Limits{
		MaxBody:         c.sizes.body,
		MaxHeaders:      maxProperty - perProperty,
		MaxDelay:        transport.Unlimited,
		Lease:           c.lease,
		MaxReceive:      maxReceive,
		ParallelReceive: c.links(),
	}
}

func (c *conn) links() int {
	if c.config.Links > 0 {
		return c.config.Links
	}
	return defaultLinks
}

// Close implements [transport.Conn].
func (c *conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	receivers := c.receivers
	c.receivers = nil
	senders := c.senders
	c.mu.Unlock()

	var all sync.WaitGroup
	for r := range receivers {
		all.Go(r.shut)
	}
	all.Wait()
	c.stop()
	for _, s := range senders {
		all.Go(s.close)
	}
	all.Go(c.sending.close)
	all.Wait()
	c.admin.close()
	c.tasks.Stop()
	return nil
}

func (c *conn) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// orClosed returns ErrClosed for an error that closing the conn may have caused, else err.
func (c *conn) orClosed(err error) error {
	if err != nil && c.isClosed() {
		return transport.ErrClosed
	}
	return err
}

// until returns a context that ends with ctx and with the conn.
func (c *conn) until(ctx context.Context) (context.Context, context.CancelFunc) {
	return joined(ctx, c.ctx, transport.ErrClosed)
}

// joined returns a context that ends with ctx, and with other for the cause.
func joined(ctx, other context.Context, cause error) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(cause) })
	return ctx, func() { stop(); cancel(nil) }
}
