package asb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
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
	_ transport.Checker    = (*conn)(nil)

	_ transport.DerivedSubscriber    = (*conn)(nil)
	_ transport.SubscriptionVerifier = (*conn)(nil)
)

// conn is an open namespace. Its parts share the core.
type conn struct {
	*core
	*senders
	*receivers
	*browser
	*inspector
	*installer
	*subscriptions
	*verifier
}

func newConn(ns *namespace, env transport.Env) (*conn, error) {
	c := &core{
		ns: ns, naming: newNaming(&ns.Transport), endpoint: env.Endpoint, instance: env.Instance,
		log: env.Log(), sending: newSupervisor(ns),
	}
	var err error
	if c.admin, err = newAdministration(ns); err != nil {
		return nil, err
	}
	c.ctx, c.stop = context.WithCancelCause(context.Background())
	all := &conn{
		core: c, senders: &senders{core: c, open: map[string]*sender{}},
		receivers: &receivers{
			core: c, open: map[*receiver]struct{}{},
			own: []string{env.Endpoint, env.Endpoint + quarantineSuffix},
		},
	}
	all.receivers.senders = all.senders
	all.browser = &browser{all.receivers}
	all.inspector = &inspector{c, all.receivers}
	all.installer = &installer{c, all.senders, all.receivers}
	all.subscriptions = &subscriptions{c, all.senders, all.installer}
	all.verifier = &verifier{c, all.subscriptions}
	return all, nil
}

func openConn(ctx context.Context, ns *namespace, env transport.Env) (*conn, error) {
	c, err := newConn(ns, env)
	if err != nil {
		return nil, err
	}
	if err := c.greet(ctx); err != nil {
		_ = c.Close() // never fails
		return nil, err
	}
	c.lease = c.lockDuration(ctx)
	return c, nil
}

// Close implements [transport.Conn].
func (c *conn) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	c.receivers.close()
	c.stop(transport.ErrClosed)
	var all sync.WaitGroup
	all.Go(c.senders.close)
	all.Go(c.sending.close)
	all.Wait()
	c.admin.http.CloseIdleConnections()
	c.tasks.Stop()
	return nil
}

// core is the namespace as the parts of a conn use it.
type core struct {
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

	ctx    context.Context //nolint:containedctx // ends with Close
	stop   context.CancelCauseFunc
	closed atomic.Bool // since Close began

	limited sync.Once // of the warning about an emulator's limits
}

// greet connects and authenticates. The service checks a credential for an entity: the endpoint's
// queue will do, even if it does not exist or the credential has no right to send to it.
func (c *core) greet(ctx context.Context) error {
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
func (c *core) lockDuration(ctx context.Context) time.Duration {
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
func (c *core) Limits() transport.Limits {
	return transport.Limits{
		MaxBody:         c.ns.MaxMessageSize - reserve,
		MaxHeaders:      maxProperty - perProperty,
		MaxDelay:        transport.Unlimited,
		Lease:           c.lease,
		MaxReceive:      maxReceive,
		ParallelReceive: c.ns.Links,
	}
}

func (c *core) isClosed() bool { return c.closed.Load() }

// orClosed returns ErrClosed for an error that closing the conn may have caused, else err.
func (c *core) orClosed(err error) error {
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

// Translation implements [transport.Translator].
func (c *core) Translation() func(*transport.Message) { return c.ns.Translate }

var _ transport.Addresser = (*conn)(nil)

// Address implements [transport.Addresser]: the path of the queue, with the hierarchy in front.
func (c *core) Address(queue string) string {
	path, dead, err := c.naming.queue(queue)
	if err != nil {
		return queue
	}
	if dead {
		path += deadLetters
	}
	return path
}

// ShortName implements [transport.Addresser]: the path of the queue without the hierarchy.
func (c *core) ShortName(address string) string {
	name := c.naming.short(address)
	if name == address {
		return address
	}
	if _, _, err := c.naming.queue(address); err != nil {
		return address
	}
	return name
}

// short returns a name or path without the hierarchy; with it, where the rest begins with the
// hierarchy again, and would be read as another path.
func (n naming) short(path string) string {
	if name, ok := strings.CutPrefix(path, n.prefix); ok && !strings.HasPrefix(name, n.prefix) {
		return name
	}
	return path
}

// exists returns an error unless a queue exists. It browses a message, which needs no right to
// manage.
func (c *core) exists(ctx context.Context, path string) error {
	return c.peek(ctx, func(cl *client) (*azservicebus.Receiver, error) { return cl.NewReceiverForQueue(path, nil) })
}

// subscribed returns an error unless a subscription exists. One that forwards cannot be received
// from: the broker's refusal differs from that of a missing one.
func (c *core) subscribed(ctx context.Context, topic, name string) error {
	err := c.peek(ctx, func(cl *client) (*azservicebus.Receiver, error) {
		return cl.NewReceiverForSubscription(topic, name, nil)
	})
	if err != nil && refused(err) && !errors.Is(plain(err), transport.ErrNoQueue) {
		return nil
	}
	return err
}

func (c *core) peek(ctx context.Context, open func(*client) (*azservicebus.Receiver, error)) error {
	ctx, cancel := joined(ctx, c.ctx)
	defer cancel()
	var r *azservicebus.Receiver
	_, err := c.sending.browse(ctx, func(cl *client) (_ *azservicebus.Receiver, err error) {
		r, err = open(cl)
		return r, err
	}, 0, 1)
	if r != nil {
		within, cancel := context.WithTimeout(c.ctx, closeTimeout)
		defer cancel()
		_ = r.Close(within) // an error leaves it to the client
	}
	if there(err) {
		return nil
	}
	return err
}

// emulatorDeliveryCount is the highest delivery limit that Microsoft's emulator accepts. It also
// limits the size of a queue or topic, to 100 MB, which is its default.
// https://learn.microsoft.com/azure/service-bus-messaging/overview-emulator
const emulatorDeliveryCount = 10

// lower changes settings to those that an emulator accepts: it lowers the delivery limit, and
// leaves the size to the emulator. Either pointer may be nil.
func (c *core) lower(ctx context.Context, deliveries, size **int32) {
	if deliveries != nil && **deliveries > emulatorDeliveryCount {
		*deliveries = new(int32(emulatorDeliveryCount))
		c.warnEmulator(ctx)
	}
	if size != nil {
		*size = nil
	}
}

// warnEmulator logs the limits of an emulator once.
func (c *core) warnEmulator(ctx context.Context) {
	c.limited.Do(func() {
		c.log.WarnContext(ctx, "the emulator limits deliveries: a message that a process crashes with, or whose lock expires, so often becomes a dead letter, perhaps before its retries are over",
			"max delivery count", emulatorDeliveryCount, "advice", "use the emulator for development only; it also deletes messages after 1 h, and accepts 50 queues and topics, 100 MB each, and 10 connections")
	})
}

// emulated reports whether a delivery limit is the emulator's highest, which Install sets there.
func (c *core) emulated(deliveries int32) bool {
	return c.ns.insecure && deliveries == emulatorDeliveryCount
}

// published returns the topics that messages of these types are published to.
func (c *core) published(types [][]string) (topics []string) {
	for _, own := range types {
		if len(own) > 0 {
			topics = append(topics, c.ns.Topology.publishTo(own).topic)
		}
	}
	slices.Sort(topics)
	return slices.Compact(topics)
}

// unfit returns the settings of a queue that keep an endpoint from working with it.
func (c *core) unfit(q transport.Queue, p *admin.QueueProperties) (settings []string) {
	if p.RequiresSession != nil && *p.RequiresSession {
		settings = append(settings, "requires message sessions, so the endpoint cannot receive from it: create it without")
	}
	if to := valueOr(p.ForwardTo, ""); to != "" {
		settings = append(settings, "forwards its messages to "+to)
	}
	if s := valueOr(p.Status, admin.EntityStatusActive); s != admin.EntityStatusActive {
		settings = append(settings, "is "+string(s))
	}
	if limit := c.lowLimit(q, p); limit != "" {
		settings = append(settings, limit)
	}
	return settings
}

// lowLimit returns the delivery limit of a queue as text if it is too low.
func (c *core) lowLimit(q transport.Queue, p *admin.QueueProperties) string {
	most := valueOr(p.MaxDeliveryCount, math.MaxInt32)
	switch {
	case most >= fewDeliveries, c.emulated(most):
		return ""
	case q.Shared:
		return fmt.Sprintf("dead-letters messages after %d deliveries, and a tool that takes a message out of it counts as a delivery of those "+
			"in front: set its MaxDeliveryCount to %d", most, math.MaxInt32)
	}
	return fmt.Sprintf("dead-letters messages after %d deliveries, perhaps before their retries are over: set its MaxDeliveryCount to %d",
		most, defaultDeliveryCount)
}

// fewDeliveries is a delivery limit that an endpoint's own counting may reach.
const fewDeliveries = defaultDeliveryCount / 4

func valueOr[T any](p *T, other T) T {
	if p == nil {
		return other
	}
	return *p
}
