package tablequeue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/internal/batch"
	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.Conn         = (*Conn)(nil)
	_ transport.Installer    = (*Conn)(nil)
	_ transport.Subscriber   = (*Conn)(nil)
	_ transport.TxDispatcher = (*Conn)(nil)
	_ transport.Canceler     = (*Conn)(nil)
	_ transport.Inspector    = (*Conn)(nil)
	_ transport.Verifier     = (*Conn)(nil)
	_ transport.Remover      = (*Conn)(nil)

	_ transport.SubscriptionVerifier = (*Conn)(nil)
)

// Config configures the engine on a [Store].
type Config struct {
	// Lease is the time for which a claim lasts unless it is renewed. 0: 30 s.
	Lease time.Duration
	// MaxBody is the largest body in bytes. 0: 64 MiB.
	MaxBody int
	// Flushers is the number of batches that are written at once. 0: 2. It is 1 for a database with a single writer.
	Flushers int
	// Poll is the longest pause between two polls of an empty queue without a [Waker]. 0: 500 ms.
	Poll time.Duration
	// Env is the environment that the transport was opened in.
	Env transport.Env
}

const (
	defaultLease   = 30 * time.Second
	defaultMaxBody = 64 << 20
	defaultPoll    = 500 * time.Millisecond

	maxUnits   = 200              // in one Flush
	maxReceive = 200              // rows in one Claim
	maxWait    = 10 * time.Second // for one answer of the database
	maxClose   = 2 * time.Second  // in Close, for requests in progress and for abandoning leases
)

// Conn is the engine. It implements [transport.Conn] and its optional interfaces. It is safe for concurrent use.
type Conn struct {
	store Store
	cfg   Config
	owner string // lease_owner of this Conn's claims, and of no other's
	units *batch.Batcher[*work]
	works sync.Pool // of *work
	subs  subscribers
	wakes wakes

	unusable unusable
	warned   sync.Map // the subscribers' queues for which a warning was logged

	life    context.Context //nolint:containedctx // ends when Close begins; for the Conn's own goroutines
	closing context.CancelFunc
	work    context.Context //nolint:containedctx // ends maxClose later; for requests in progress
	cut     context.CancelFunc
	running sync.WaitGroup // the Conn's own goroutines

	mu       sync.RWMutex // guards closed and adding to calls
	closed   bool
	calls    sync.WaitGroup // uses of the store, except by units
	queues   sync.Map       // the names of the queues that were received from
	renewing sync.RWMutex   // held by renewals, and exclusively to prevent them for a moment
	receives atomic.Bool    // and so listens and sweeps
	written  chan struct{}  // closed when Close has written the last rows
	ended    chan struct{}  // closed when Close has ended
}

// Open returns a Conn on store, which it owns. It does no I/O.
func Open(store Store, cfg Config) *Conn {
	cfg.Lease = orDefault(cfg.Lease, defaultLease)
	cfg.MaxBody = orDefault(cfg.MaxBody, defaultMaxBody)
	cfg.Flushers = orDefault(cfg.Flushers, 2)
	cfg.Poll = orDefault(cfg.Poll, defaultPoll)
	c := &Conn{
		store:   store,
		cfg:     cfg,
		owner:   storable(fmt.Sprintf("%s/%s/%08x", cfg.Env.Endpoint, cfg.Env.Instance, rand.Uint32())),
		written: make(chan struct{}),
		ended:   make(chan struct{}),
	}
	c.units = batch.New(batch.Config[*work]{
		Flush: c.flush, Flushers: cfg.Flushers, MaxItems: maxUnits, Weight: (*work).size, MaxWeight: maxFlushBytes,
	})
	c.works.New = func() any { return new(work) }
	c.work, c.cut = context.WithCancel(context.Background())
	c.life, c.closing = context.WithCancel(c.work)
	c.subs.init(c.subscriptions)
	if w, ok := c.wakes.init(store); ok {
		c.running.Go(func() { c.notify(w) })
	}
	return c
}

func orDefault[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// Limits implements [transport.Conn].
func (c *Conn) Limits() transport.Limits {
	_, atomic := c.store.(Transactor)
	return transport.Limits{
		MaxBody:         c.cfg.MaxBody,
		MaxDelay:        transport.Unlimited,
		Lease:           c.cfg.Lease,
		MaxReceive:      maxReceive,
		ParallelReceive: 2,
		FreeRelease:     true,
		Atomic:          atomic,
	}
}

// OpenReceiver implements [transport.Conn].
func (c *Conn) OpenReceiver(ctx context.Context, opts transport.ReceiverOptions) (transport.Receiver, error) {
	if err := c.store.Check(opts.Queue); err != nil {
		return nil, err
	}
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.calls.Done()
	if err := c.store.Exists(ctx, opts.Queue); err != nil {
		return nil, err
	}
	c.queues.Store(opts.Queue, nil)
	c.unusable.found()
	if c.receives.CompareAndSwap(false, true) {
		if w, ok := c.store.(Waker); ok {
			c.running.Go(func() { c.listen(w) })
		}
		if s, ok := c.store.(Sweeper); ok {
			c.running.Go(func() { c.sweep(s) })
		}
	}
	return newReceiver(c, opts.Queue), nil
}

// Close implements [transport.Conn]. It finishes the settling and sending in progress, and makes the rows that are
// still leased visible. It waits some seconds for a database that does not answer.
func (c *Conn) Close() error {
	c.mu.Lock()
	already := c.closed
	c.closed = true
	c.mu.Unlock()
	if already {
		<-c.ended
		return nil
	}
	defer close(c.ended)
	c.closing()
	defer time.AfterFunc(maxClose, c.cut).Stop()
	defer c.cut()
	c.calls.Wait()
	c.units.Close()
	err := c.abandon()
	close(c.written)
	c.running.Wait()
	return errors.Join(err, c.store.Close())
}

// enter counts a call that uses the store; the caller calls c.calls.Done after it.
func (c *Conn) enter() error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closed {
		return transport.ErrClosed
	}
	c.calls.Add(1)
	return nil
}

// abandon makes the rows visible that were claimed and not settled.
func (c *Conn) abandon() error {
	ctx, cancel := context.WithTimeout(context.Background(), maxClose)
	defer cancel()
	var errs []error
	c.queues.Range(func(queue, _ any) bool {
		errs = append(errs, c.abandonQueue(ctx, queue.(string))) //nolint:errcheck // its keys are names
		c.wakes.announce(queue.(string))                         //nolint:errcheck // its keys are names
		return true
	})
	return errors.Join(errs...)
}

// abandonQueue tries twice: connections that were idle for long may be dead.
func (c *Conn) abandonQueue(ctx context.Context, queue string) (err error) {
	for range 3 {
		err = c.store.Abandon(ctx, queue, c.owner, c.cfg.Lease)
		if err == nil || errors.Is(err, transport.ErrNoQueue) {
			return nil
		}
	}
	return err
}
