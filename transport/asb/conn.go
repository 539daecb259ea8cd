package asb

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
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
	_ transport.Translator = (*conn)(nil)
)

// conn is an open namespace.
type conn struct {
	ns       *namespace
	naming   naming
	endpoint string
	instance string
	lease    time.Duration
	log      *slog.Logger
	admin    *administration
	sending  *supervisor
	locks    locks
	tasks    goroutines.Group // ends with Close

	ctx  context.Context //nolint:containedctx // ends with Close
	stop context.CancelCauseFunc

	mu        sync.Mutex // guards the fields below
	closed    bool
	senders   map[string]*sender
	receivers map[*receiver]struct{}
	own       []string // the endpoint's queues, as far as they are known

	limited sync.Once // of the warning about an emulator's limits
}

func openConn(ctx context.Context, ns *namespace, env transport.Env) (*conn, error) {
	c := &conn{
		ns: ns, naming: newNaming(&ns.Transport), endpoint: env.Endpoint, instance: env.Instance, log: env.Log(),
		own:     []string{env.Endpoint, env.Endpoint + quarantineSuffix},
		sending: newSupervisor(ns), senders: map[string]*sender{}, receivers: map[*receiver]struct{}{},
	}
	var err error
	if c.admin, err = newAdministration(ns); err != nil {
		return nil, err
	}
	c.ctx, c.stop = context.WithCancelCause(context.Background())
	if err := c.greet(ctx); err != nil {
		_ = c.Close() // never fails
		return nil, err
	}
	c.lease = c.lockDuration(ctx)
	return c, nil
}

// greet connects and authenticates. The service checks a credential for an entity: the endpoint's
// queue will do, even if it does not exist or the credential has no right to send to it.
func (c *conn) greet(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, dialTimeout, errNoReply)
	defer cancel()
	cl, err := c.sending.client(ctx)
	if err != nil {
		return err
	}
	on, over := joined(ctx, cl.ctx)
	defer over()
	queue, _ := c.naming.entity(c.endpoint) // "" if that is none
	sender, err := cl.NewSender(cmp.Or(c.ns.entity, queue, "holdfast"), nil)
	if err == nil {
		_, err = sender.NewMessageBatch(on, nil)
	}
	if own, ok := c.sending.throttle.try(); ok {
		own.end(err)
	}
	switch code := codeOf(err); {
	case err == nil, is[*amqp.Error](err), code == azservicebus.CodeNotFound, errors.Is(plain(err), errBusy),
		code == azservicebus.CodeUnauthorizedAccess && !strings.Contains(err.Error(), "rpc: "): // it refused the link only
		return nil
	}
	return wrap(cl.cause(ctx, err), "connect to %s", c.ns.Address)
}

// lockDuration returns how long messages of the endpoint's queue are locked, or defaultLock if it
// cannot be looked up: see mindLock.
func (c *conn) lockDuration(ctx context.Context) time.Duration {
	if c.ns.LockDuration > 0 {
		return c.ns.LockDuration
	}
	path, _, err := c.naming.queue(c.endpoint)
	if err != nil {
		return defaultLock
	}
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	found, err := c.admin.GetQueue(ctx, path, nil)
	if err != nil || found == nil {
		return defaultLock
	}
	return min(cmp.Or(parseDuration(valueOr(found.LockDuration, "")), defaultLock), defaultLock)
}

// Limits implements [transport.Conn].
func (c *conn) Limits() transport.Limits {
	return transport.Limits{
		MaxBody:         c.ns.MaxMessageSize - reserve,
		MaxHeaders:      maxProperty - perProperty,
		MaxDelay:        transport.Unlimited,
		Lease:           c.lease,
		MaxReceive:      maxReceive,
		ParallelReceive: c.ns.Links,
	}
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
	c.stop(transport.ErrClosed)
	for _, s := range senders {
		all.Go(s.close)
	}
	all.Go(c.sending.close)
	all.Wait()
	c.admin.http.CloseIdleConnections()
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

// joined returns a context that ends with ctx, and with other for its cause.
func joined(ctx, other context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	if other.Err() != nil {
		cancel(context.Cause(other)) // at once: AfterFunc calls in a goroutine
	}
	return ctx, func() { stop(); cancel(nil) }
}
