package transporttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// wire is a transport whose broker is behind a connection that can be broken, and that
// connection. Its faults are set before it is used.
type wire struct {
	broker *inmemory.Transport

	once     bool // a lost connection is never replaced
	adopting bool // a delivery of a lost connection settles the newer delivery
	hanging  bool // Dispatch waits for the broker, whatever its context says
	lying    bool // Dispatch succeeds when it does not reach the broker
	fading   bool // Dispatch over a connection that was cut succeeds the first time
	deaf     bool // Receive over a silent connection does not see its context end
	leaking  bool // Close leaves behind what waits for the broker
	dropping bool // what is out when a connection ends is lost
	tearing  bool // Store over a connection that was cut sends the messages without the key
	boasting bool // a receiver always says that it listens
	hopeful  bool // a delivery of a lost connection does not say so
	denying  bool // a Store whose answer is lost is said to be refused

	mu       sync.Mutex // guards what follows
	refusing bool
	resumed  chan struct{} // closed by Resume; nil while nothing is paused
	back     chan struct{} // closed by Resume; nil while nothing is refused
	conns    []*remoteConn
}

var (
	errAway = errors.New("the broker is away")
	errCut  = errors.New("the connection was cut")
)

func (w *wire) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	if err := w.pass(ctx); err != nil {
		return nil, err
	}
	inner, err := w.broker.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	c := &remoteConn{w: w, inner: inner, limits: inner.Limits()}
	c.limits.Atomic = false
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns = append(w.conns, c)
	return c, nil
}

func (w *wire) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		c.cut()
	}
}

func (w *wire) Refuse() {
	w.mu.Lock()
	w.refusing = true
	w.back = make(chan struct{})
	w.mu.Unlock()
	w.Cut()
}

func (w *wire) Pause() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.resumed = make(chan struct{})
}

func (w *wire) Resume() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refusing = false
	for _, c := range []*chan struct{}{&w.resumed, &w.back} {
		if *c != nil {
			close(*c)
			*c = nil
		}
	}
}

// waits are closed by Resume: where the connection is silent, where the broker is away.
func (w *wire) waits() (silent, away chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.resumed, w.back
}

// pass is one way through the wire.
func (w *wire) pass(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	silent, away := w.waits()
	if away != nil {
		return errAway
	}
	if silent == nil {
		return nil
	}
	select {
	case <-silent:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, ctx.Err())
	}
}

type remoteConn struct {
	w      *wire
	limits transport.Limits

	mu     sync.Mutex // guards what follows
	inner  transport.Conn
	closed bool
	lost   bool
	out    []transport.Delivery
}

func (c *remoteConn) Limits() transport.Limits { return c.limits }

func (c *remoteConn) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner == nil {
		return
	}
	if c.w.dropping {
		for _, d := range c.out {
			_ = d.Complete(context.Background()) // unless it is settled
		}
	}
	_ = c.inner.Close() // which never fails
	c.inner, c.lost = nil, true
}

// use is the connection, dialled again where it was cut.
func (c *remoteConn) use(ctx context.Context) (transport.Conn, error) {
	if err := c.w.pass(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, transport.ErrClosed
	case c.inner != nil:
		return c.inner, nil
	case c.w.once && c.lost:
		return nil, errCut
	}
	inner, err := c.w.broker.Open(ctx, transport.Env{})
	if err == nil {
		c.inner, c.out = inner, nil
	}
	return inner, err
}

func (c *remoteConn) isCut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inner == nil
}

func (c *remoteConn) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

func (c *remoteConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if _, away := c.w.waits(); away != nil && c.w.leaking {
		go func() { <-away }()
	}
	if c.inner != nil {
		return c.inner.Close()
	}
	return nil
}

func (c *remoteConn) Dispatch(ctx context.Context, ops []transport.Operation) ([]transport.Receipt, error) {
	silent, away := c.w.waits()
	if (silent != nil || away != nil) && c.w.lying {
		return nil, nil
	}
	if away != nil && c.w.hanging {
		<-away
	}
	faded := c.w.fading && c.isCut()
	inner, err := c.use(ctx)
	if err != nil {
		return nil, transport.FailAll(len(ops), err)
	}
	if faded {
		return nil, nil
	}
	receipts, err := inner.Dispatch(ctx, ops)
	if errors.Is(err, transport.ErrClosed) && !c.isClosed() {
		err = transport.FailAll(len(ops), errCut)
	}
	return receipts, err
}

func (c *remoteConn) Install(ctx context.Context, plan transport.Plan) error {
	inner, err := c.use(ctx)
	if err != nil {
		return err
	}
	return inner.(transport.Installer).Install(ctx, plan)
}

func (c *remoteConn) OpenReceiver(ctx context.Context, opts transport.ReceiverOptions) (transport.Receiver, error) {
	inner, err := c.use(ctx)
	if err != nil {
		return nil, err
	}
	r, err := inner.OpenReceiver(ctx, opts)
	if err != nil {
		return nil, err
	}
	return &remoteReceiver{conn: c, queue: opts.Queue, of: inner, inner: r}, nil
}

type remoteReceiver struct {
	conn  *remoteConn
	queue string

	mu     sync.Mutex // guards what follows
	of     transport.Conn
	inner  transport.Receiver
	closed bool
	away   bool // the last Receive failed
}

func (r *remoteReceiver) Window(int) {}

// Listening says that the last Receive reached the broker, whose connection is still there.
func (r *remoteReceiver) Listening() bool {
	cut := r.conn.isCut()
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.away && !cut || r.conn.w.boasting
}

func (r *remoteReceiver) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return r.inner.Close()
}

// use is the receiver, opened again where its connection was cut.
func (r *remoteReceiver) use(ctx context.Context) (transport.Receiver, error) {
	conn, err := r.conn.use(ctx)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of != conn && !r.closed {
		r.of = conn
		r.inner, err = conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: r.queue})
	}
	return r.inner, err
}

func (r *remoteReceiver) Receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	if silent, _ := r.conn.w.waits(); silent != nil && r.conn.w.deaf {
		<-silent
	}
	inner, err := r.use(ctx)
	r.mu.Lock()
	r.away = err != nil
	r.mu.Unlock()
	if err != nil {
		return nil, err
	}
	ds, err := inner.Receive(ctx, limit)
	r.mu.Lock()
	closed := r.closed
	r.mu.Unlock()
	if errors.Is(err, transport.ErrClosed) && !closed && !r.conn.isClosed() {
		return nil, errCut
	}
	r.conn.mu.Lock()
	defer r.conn.mu.Unlock()
	r.conn.out = append(r.conn.out, ds...)
	for i, d := range ds {
		ds[i] = &remoteDelivery{Delivery: d, conn: r.conn}
	}
	return ds, err
}

type remoteDelivery struct {
	transport.Delivery
	conn *remoteConn
	over atomic.Bool // it is settled
}

// Lost reports that the connection of the delivery was replaced, or is not yet.
func (d *remoteDelivery) Lost() bool {
	if d.over.Load() || d.conn.w.hopeful {
		return false
	}
	d.conn.mu.Lock()
	defer d.conn.mu.Unlock()
	return !slices.Contains(d.conn.out, d.Delivery) || d.conn.inner == nil
}

func (d *remoteDelivery) Complete(ctx context.Context) error {
	return d.settle(ctx, d.Delivery.Complete)
}

func (d *remoteDelivery) Retry(ctx context.Context) error { return d.settle(ctx, d.Delivery.Retry) }

func (d *remoteDelivery) Release(ctx context.Context) error { return d.settle(ctx, d.Delivery.Release) }

func (d *remoteDelivery) settle(ctx context.Context, verb func(context.Context) error) error {
	if err := d.conn.w.pass(ctx); err != nil {
		return err
	}
	err := verb(ctx)
	if err == nil {
		d.over.Store(true)
	}
	if !errors.Is(err, transport.ErrClosed) || d.conn.isClosed() {
		return err
	}
	d.conn.mu.Lock()
	defer d.conn.mu.Unlock()
	for _, newer := range d.conn.out {
		if d.conn.w.adopting && newer.Message().ID == d.Message().ID {
			_ = newer.Complete(ctx) // unless it is settled
		}
	}
	return transport.ErrLeaseLost
}
