package inmemory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.Conn       = (*conn)(nil)
	_ transport.Installer  = (*conn)(nil)
	_ transport.Verifier   = (*conn)(nil)
	_ transport.Remover    = (*conn)(nil)
	_ transport.Subscriber = (*conn)(nil)
	_ transport.Inspector  = (*conn)(nil)
	_ transport.Browser    = (*conn)(nil)
	_ transport.Purger     = (*conn)(nil)
	_ transport.Canceler   = (*conn)(nil)
	_ transport.Hastener   = (*conn)(nil)
	_ transport.Checker    = (*conn)(nil)
	_ transport.Satellites = (*conn)(nil)

	_ transport.SubscriptionVerifier = (*conn)(nil)
)

// conn is an open transport. Its parts share the core.
type conn struct {
	*core
	*sender
	*topology
	*browser
	*inboxStore
	*recordStore
}

// core is the transport as the parts of a conn use it.
type core struct {
	t *Transport
	b *broker

	remember time.Duration // Env.Remember

	// Guarded by b.mu.
	closed    bool
	receivers map[*receiver]bool
	held      list // messages of its unsettled deliveries
}

func newConn(t *Transport, env transport.Env) *conn {
	c := &core{t: t, b: &t.broker, remember: env.Remember, receivers: map[*receiver]bool{}}
	s := &sender{c}
	return &conn{
		core: c, sender: s, topology: &topology{c}, browser: &browser{c, s},
		inboxStore: &inboxStore{c}, recordStore: &recordStore{c},
	}
}

func (c *core) Limits() transport.Limits {
	l := transport.Limits{
		MaxBody:     c.t.MaxBody,
		MaxHeaders:  c.t.MaxHeaders,
		Lease:       c.t.Lease,
		MaxReceive:  c.t.MaxReceive,
		FreeRelease: c.t.offers(FreeRelease),
		Atomic:      c.t.offers(Transactor),
	}
	if c.t.offers(Delay) {
		l.MaxDelay = c.t.MaxDelay
		if l.MaxDelay == 0 {
			l.MaxDelay = transport.Unlimited
		}
	}
	return l
}

func (c *conn) OpenReceiver(
	ctx context.Context, opts transport.ReceiverOptions,
) (opened transport.Receiver, err error) {
	err = c.call(ctx, "OpenReceiver", opts.Queue, func() error {
		if _, err := c.b.find(opts.Queue); err != nil {
			return err
		}
		r := &receiver{conn: c, queue: opts.Queue, done: make(chan struct{})}
		c.receivers[r] = true
		opened = withoutReceiver(r, c.t.Lease > 0, c.t.Without)
		return nil
	})
	return opened, err
}

// Close returns unsettled messages to the front of their queues, with an attempt used up.
func (c *conn) Close() error {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	if c.closed {
		return nil
	}
	if c.b.records != nil {
		c.b.records.freeAll(c.core)
	}
	c.closed = true
	for r := range c.receivers {
		r.stop()
	}
	now := time.Now()
	for c.held.last != nil {
		it := c.held.last
		it.queue.restore(it, now)
	}
	return nil
}

func (c *conn) Satellites(ctx context.Context) (found []transport.Satellite, err error) {
	for _, s := range c.t.Satellites {
		if refused := c.t.refuse(ctx, "Satellites", s.Queue); refused != nil {
			err = errors.Join(err, refused)
			continue
		}
		found = append(found, s)
	}
	return found, err
}

// call calls f with the broker locked, unless the call is refused or c is closed.
func (c *core) call(ctx context.Context, verb, object string, f func() error) error {
	if err := c.t.refuse(ctx, verb, object); err != nil {
		return err
	}
	return c.locked(f)
}

// locked calls f with the broker locked, unless c is closed.
func (c *core) locked(f func() error) error {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	if c.closed {
		return transport.ErrClosed
	}
	return f()
}

// inbox returns the inbox without the ids that are too old. The broker is locked.
func (c *core) inbox(name string) (*inbox, error) {
	in := c.b.inboxes[name]
	if in == nil {
		return nil, fmt.Errorf("inmemory: inbox %q: %w", name, transport.ErrNoQueue)
	}
	if c.remember > 0 {
		in.forgetBefore(time.Now().Add(-c.remember))
	}
	return in, nil
}
