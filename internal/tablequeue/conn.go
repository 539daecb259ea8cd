package tablequeue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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
	_ transport.Warner               = (*Conn)(nil)
)

// Config configures the engine on a [Store].
type Config struct {
	// Lease is the time for which a claim lasts unless it is renewed. 0: 30 s.
	Lease time.Duration
	// Flushers is the number of batches that are written at once. 0: 2. It is 1 for a database with
	// a single writer.
	Flushers int
	// LeasedInserts reports whether the store inserts rows with a lease: those of a Record for a
	// queue that the Conn receives from.
	LeasedInserts bool
	// Env is the environment that the transport was opened in.
	Env transport.Env
}

// MaxBody is the largest body of a message in bytes.
const MaxBody = 64 << 20

const (
	maxUnits   = 200              // in one Flush
	maxReceive = 200              // rows in one Claim
	maxWait    = 10 * time.Second // for one answer of the database
	maxClose   = 2 * time.Second  // in Close, for requests in progress and for abandoning leases
)

// Conn is the engine. It implements [transport.Conn] and its optional interfaces. It is safe for
// concurrent use.
type Conn struct {
	store Store
	cfg   Config
	owner string // lease_owner of this Conn's claims, and of no other's
	units *batch.Batcher[*work]
	// detour writes the units for queues that would hold up a batch, or fail it.
	detour *batch.Batcher[*Unit]
	finds  *batch.Batcher[*find]
	works  sync.Pool // of *work
	subs   subscribers
	wakes  wakes

	ahead   atomic.Int64 // of this process's clock is the database's, in nanoseconds
	inboxes sync.Map     // the names of the inboxes that were used

	forgetsRecords atomic.Bool

	unusable unusable
	forwards forwards
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
	warnings atomic.Pointer[[]string]
	renewing sync.RWMutex  // held by renewals, and exclusively to prevent them for a moment
	receives atomic.Bool   // and so listens and sweeps
	written  chan struct{} // closed when Close has written the last rows
	ended    chan struct{} // closed when Close has ended
}

// Open returns a Conn on store, which it owns. It does no I/O.
func Open(store Store, cfg Config) *Conn {
	cfg.Lease, cfg.Flushers = cmp.Or(cfg.Lease, 30*time.Second), cmp.Or(cfg.Flushers, 2)
	c := &Conn{
		store: store, cfg: cfg, written: make(chan struct{}), ended: make(chan struct{}),
		owner: storable(fmt.Sprintf("%s/%s/%08x", cfg.Env.Endpoint, cfg.Env.Instance, rand.Uint32())),
	}
	c.units = batch.New(batch.Config[*work]{
		Flush: c.flush, Flushers: cfg.Flushers, MaxItems: maxUnits, Weight: (*work).size, MaxWeight: maxFlushBytes,
	})
	c.detour = batch.New(batch.Config[*Unit]{
		Flush: c.flushDetour, Flushers: 1, MaxItems: maxUnits, Weight: (*Unit).size, MaxWeight: maxFlushBytes,
	})
	c.finds = batch.New(batch.Config[*find]{Flush: c.findAll, Flushers: cfg.Flushers, MaxItems: maxFound})
	c.works.New = func() any { return new(work) }
	c.forwards.init(cfg.Env.Endpoint)
	c.work, c.cut = context.WithCancel(context.Background())
	c.life, c.closing = context.WithCancel(c.work)
	c.subs.load, c.subs.loading = c.subscriptions, make(chan struct{}, 1)
	if w, ok := c.wakes.init(store); ok {
		c.running.Go(func() { c.notify(w) })
	}
	return c
}

// Limits implements [transport.Conn].
func (c *Conn) Limits() transport.Limits {
	return transport.Limits{
		MaxBody: MaxBody, MaxDelay: transport.Unlimited, Lease: c.cfg.Lease, MaxReceive: maxReceive, ParallelReceive: 2,
		FreeRelease: true, Atomic: true,
	}
}

// OpenReceiver implements [transport.Conn].
func (c *Conn) OpenReceiver(ctx context.Context, opts transport.ReceiverOptions) (transport.Receiver, error) {
	opts.Queue = c.ShortName(opts.Queue)
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
	if err := c.compareClocks(ctx); err != nil {
		return nil, err
	}
	if _, again := c.queues.LoadOrStore(opts.Queue, nil); !again {
		c.moveDelayed(opts.Queue)
	}
	c.unusable.found()
	if c.receives.CompareAndSwap(false, true) {
		if w, ok := c.store.(Waker); ok {
			c.running.Go(func() { c.listen(w) })
		}
		sweeper, _ := c.store.(Sweeper)
		c.running.Go(func() { c.sweep(sweeper) })
	}
	r := &receiver{
		conn: c, queue: opts.Queue, woken: make(chan struct{}, 1), turn: make(chan struct{}, 1), done: make(chan struct{}),
	}
	r.direct.ready = make(chan struct{}, 1)
	r.rows.New = func() any { return new([]Claimed) }
	c.wakes.add(r)
	return r, nil
}

// Close implements [transport.Conn]. It finishes the settling and sending in progress, and makes
// the rows that are still leased visible. It waits some seconds for a database that does not
// answer.
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
	c.detour.Close()
	c.finds.Close()
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

// call runs fn unless the Conn is closed or a name of queues is impossible. Close waits for it, and
// cancels it after a while: without an end of ctx it could wait for a silent server for ever.
func (c *Conn) call(ctx context.Context, queues []string, fn func(context.Context) error) error {
	var errs []error
	for _, q := range queues {
		errs = append(errs, c.store.Check(q))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := c.enter(); err != nil {
		return err
	}
	defer c.calls.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.work, cancel)()
	return fn(ctx)
}

// ask is [Conn.call] of a function with an answer.
func ask[T any](ctx context.Context, c *Conn, queues []string, fn func(context.Context) (T, error)) (v T, err error) {
	err = c.call(ctx, queues, func(ctx context.Context) (err error) {
		v, err = fn(ctx)
		return err
	})
	return v, err
}

// again calls fn, once more after each conflict.
func (c *Conn) again(fn func() error) (err error) {
	for range conflicts {
		if err = fn(); err == nil || c.store.Classify(err) != Conflict {
			break
		}
	}
	return err
}

// abandonTries is the largest number of tries to abandon the leases of a queue. After an outage
// each connection of a pool may be dead, and a try discards one connection.
const abandonTries = 100

// abandon makes the rows visible that were claimed and not settled.
func (c *Conn) abandon() error {
	ctx, cancel := context.WithTimeout(context.Background(), maxClose)
	defer cancel()
	var errs []error
	c.queues.Range(func(queue, _ any) bool {
		var err error
		for range abandonTries {
			err = c.store.Abandon(ctx, queue.(string), c.owner, c.cfg.Lease) //nolint:errcheck // its keys are names
			if errors.Is(err, transport.ErrNoQueue) {
				err = nil
			}
			if err == nil {
				break
			}
		}
		errs = append(errs, err)
		c.wakes.announce(queue.(string)) //nolint:errcheck // its keys are names
		return true
	})
	return errors.Join(errs...)
}

var _ transport.Addresser = (*Conn)(nil)

// Address implements [transport.Addresser]. It is the name of the queue unless the store is a
// [transport.Addresser].
func (c *Conn) Address(queue string) string {
	if a, ok := c.store.(transport.Addresser); ok {
		return a.Address(queue)
	}
	return queue
}

// ShortName implements [transport.Addresser]. Every method of the Conn that takes a queue calls it
// first, so that the store and the Conn's own tables know one name of each queue.
func (c *Conn) ShortName(address string) string {
	if a, ok := c.store.(transport.Addresser); ok {
		return a.ShortName(address)
	}
	return address
}

func (c *Conn) shortNames(addresses []string) []string {
	names := slices.Clone(addresses)
	for i := range names {
		names[i] = c.ShortName(names[i])
	}
	return names
}

// shortPlan returns plan with the short names of its queues.
func (c *Conn) shortPlan(plan transport.Plan) transport.Plan {
	plan.Queues = slices.Clone(plan.Queues)
	for i := range plan.Queues {
		plan.Queues[i].Name = c.ShortName(plan.Queues[i].Name)
	}
	return plan
}

var _ transport.Clock = (*Conn)(nil)

// Timed is implemented by a [Store] whose database may run on another machine. Without it the clock
// of this process is that of the database.
type Timed interface {
	// Now returns the time of the database.
	Now(ctx context.Context) (time.Time, error)
}

// Now implements [transport.Clock]. The difference to the clock of this process is measured when
// the Conn begins to receive, and with each sweep.
func (c *Conn) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// compareClocks measures how far the database's clock is ahead of that of this process. The
// database reads its clock between the question and the answer.
func (c *Conn) compareClocks(ctx context.Context) error {
	store, ok := c.store.(Timed)
	if !ok {
		return nil
	}
	asked := time.Now()
	now, err := store.Now(ctx)
	if err == nil {
		c.ahead.Store(int64(now.Sub(asked.Add(time.Since(asked) / 2))))
	}
	return err
}
