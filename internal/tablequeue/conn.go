package tablequeue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.Conn           = (*Conn)(nil)
	_ transport.Addresser      = (*Conn)(nil)
	_ transport.Clock          = (*Conn)(nil)
	_ transport.TxDispatcher   = (*Conn)(nil)
	_ transport.Checker        = (*Conn)(nil)
	_ transport.Canceler       = (*Conn)(nil)
	_ transport.Hastener       = (*Conn)(nil)
	_ transport.OutboxStore    = (*Conn)(nil)
	_ transport.InboxInspector = (*Conn)(nil)
	_ transport.StateInspector = (*Conn)(nil)
	_ transport.Browser        = (*Conn)(nil)
	_ transport.Purger         = (*Conn)(nil)
	_ transport.Installer      = (*Conn)(nil)
	_ transport.Subscriber     = (*Conn)(nil)
	_ transport.Inspector      = (*Conn)(nil)
	_ transport.Verifier       = (*Conn)(nil)
	_ transport.Remover        = (*Conn)(nil)
	_ transport.Satellites     = (*Conn)(nil)
	_ transport.HandOverer     = (*Conn)(nil)
	_ transport.Warner         = (*Conn)(nil)

	_ transport.SubscriptionVerifier = (*Conn)(nil)
)

// Conn is the engine. It implements [transport.Conn] and its optional interfaces. It is safe for
// concurrent use.
type Conn struct {
	*core
	*sender
	*settler
	*outbox
	*inboxes
	*records
	*browser
	*topology
	*forwards
	*foreignTables
	*sweeps

	unusable *unusable
	writer   *writer
	detour   *detour
	notifier *notifier
	receives atomic.Bool   // and so listens and sweeps
	ended    chan struct{} // closed when Close has ended
}

// Open returns a Conn on store, which it owns. It does no I/O.
func Open(store Store, cfg Config) *Conn {
	cfg.Lease, cfg.Flushers = cmp.Or(cfg.Lease, 30*time.Second), cmp.Or(cfg.Flushers, 2)
	c := newCore(store, cfg)
	unusable, subs, inboxes, records := new(unusable), newSubscribers(c), newInboxes(c), &records{core: c}
	forwards := newForwards(c, unusable)
	obstacles := &obstacles{core: c, unusable: unusable, forwards: forwards}
	detour := newDetour(obstacles)
	writer := newWriter(detour, forwards)
	encoder := &encoder{core: c, subs: subs, unusable: unusable, forwards: forwards, obstacles: obstacles}
	settler := &settler{
		core: c, encoder: encoder, writer: writer, unusable: unusable, obstacles: obstacles, records: records,
	}
	conn := &Conn{
		core:    c,
		sender:  &sender{core: c, encoder: encoder, writer: writer},
		settler: settler,
		outbox:  &outbox{core: c, inboxes: inboxes, encoder: encoder, writer: writer, settler: settler, records: records},
		inboxes: inboxes,
		records: records,
		browser: &browser{core: c, encoder: encoder, writer: writer},
		topology: &topology{
			core: c, subs: subs, unusable: unusable, forwards: forwards, inboxes: inboxes, records: records,
		},
		forwards:      forwards,
		foreignTables: &foreignTables{core: c},
		sweeps:        &sweeps{core: c, unusable: unusable, inboxes: inboxes},
		unusable:      unusable,
		writer:        writer,
		detour:        detour,
		notifier:      &notifier{core: c, subs: subs},
		ended:         make(chan struct{}),
	}
	if store.Waker != nil {
		c.running.Go(conn.notifier.notify)
	}
	return conn
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
	opts.Queue = c.shortName(opts.Queue)
	if err := c.store.Queues.Check(opts.Queue); err != nil {
		return nil, err
	}
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.calls.Done()
	if err := c.store.Topology.Exists(ctx, opts.Queue); err != nil {
		return nil, err
	}
	if err := c.compareClocks(ctx); err != nil {
		return nil, err
	}
	if _, again := c.received.LoadOrStore(opts.Queue, nil); !again {
		c.moveDelayed(opts.Queue)
	}
	c.unusable.found()
	if c.receives.CompareAndSwap(false, true) {
		if c.store.Waker != nil {
			c.running.Go(c.notifier.listen)
		}
		c.running.Go(c.sweep)
	}
	r := newReceiver(c.settler, opts.Queue)
	c.wakes.add(&r.arrivals)
	return r, nil
}

// Close implements [transport.Conn]. It finishes the settling and sending in progress, and makes
// the rows that are still leased visible. It waits some seconds for a database that does not
// answer.
func (c *Conn) Close() error {
	c.entering.Lock()
	already := c.closed
	c.closed = true
	c.entering.Unlock()
	if already {
		<-c.ended
		return nil
	}
	defer close(c.ended)
	c.closing()
	defer time.AfterFunc(maxClose, c.cut).Stop()
	defer c.cut()
	c.calls.Wait()
	c.writer.units.Close()
	c.detour.units.Close()
	c.finds.Close()
	err := c.abandon()
	close(c.written)
	c.running.Wait()
	return errors.Join(err, c.store.Close())
}

// abandonTries is the largest number of tries to abandon the leases of a queue. After an outage
// each connection of a pool may be dead, and a try discards one connection.
const abandonTries = 100

// abandon makes the rows visible that were claimed and not settled.
func (c *Conn) abandon() error {
	ctx, cancel := context.WithTimeout(context.Background(), maxClose)
	defer cancel()
	var errs []error
	c.received.Range(func(queue, _ any) bool {
		var err error
		for range abandonTries {
			err = c.store.Queues.Abandon(ctx, queue.(string), c.owner, c.cfg.Lease) //nolint:errcheck // its keys are names
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

// Address implements [transport.Addresser]. It is the name of the queue if the store has no
// Addresser.
func (c *Conn) Address(queue string) string { return c.address(queue) }

// ShortName implements [transport.Addresser].
func (c *Conn) ShortName(address string) string { return c.shortName(address) }

// Now implements [transport.Clock]. The difference to the clock of this process is measured when
// the Conn begins to receive, and with each sweep.
func (c *Conn) Now() time.Time { return c.now() }

// notifyEvery is the least time between two notifications to other processes.
const notifyEvery = 50 * time.Millisecond

// notifier exchanges notifications of new rows with other processes.
type notifier struct {
	*core

	subs *subscribers
}

// notify notifies other processes of new rows until the Conn is closed, and then once more. A
// notification that fails is not repeated: other processes poll.
func (n *notifier) notify() {
	for n.life.Err() == nil {
		select {
		case <-n.wakes.signal:
			n.notifyOnce()
			_ = backoff.Sleep(n.life, notifyEvery)
		case <-n.life.Done():
		}
	}
	<-n.written
	n.notifyOnce()
}

func (n *notifier) notifyOnce() {
	queues := n.wakes.takePending()
	if len(queues) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = n.store.Waker.Notify(ctx, queues)
}

// heard handles a notification of another process.
func (n *notifier) heard(queue string) {
	if queue == subscriptionsChanged {
		n.subs.forget()
		return
	}
	n.wakes.heard(queue)
}

// listen wakes receivers on notifications of other processes, until the Conn is closed.
func (n *notifier) listen() {
	pause := backoff.Backoff{Min: 100 * time.Millisecond, Max: 10 * time.Second}
	for {
		err := n.store.Waker.Listen(n.life, func() {
			pause.Reset()
			n.wakes.hearing.Store(true)
			n.wakes.wakeAll() // to find earlier rows
		}, n.heard)
		broke := n.wakes.hearing.Swap(false)
		if n.life.Err() != nil {
			return
		}
		if broke {
			n.cfg.Env.Log().WarnContext(n.life, "the connection for notifications broke: receivers poll until it is back", "error", err)
			n.wakes.wakeAll() // to poll more often
		}
		if pause.Wait(n.life) != nil {
			return
		}
	}
}

const (
	maxUnits      = 200              // in one Flush
	maxFlushBytes = 16 << 20         // headers and bodies in one Flush, unless one unit alone has more
	maxReceive    = 200              // rows in one Claim
	maxWait       = 10 * time.Second // for one answer of the database
	maxClose      = 2 * time.Second  // in Close, for requests in progress and for abandoning leases
	conflicts     = 5                // times that a batch is tried after a conflict

	// A server that restarts ends all connections, which is noticed when one is used: a batch may
	// meet as many as the pool has.
	reconnects   = 2           // times that a batch is tried again
	maxReconnect = time.Second // after this time it is not
)

// directLease is the longest lease of a direct row. It is renewed as those of claimed rows are, but
// it begins with the insert. When this process ends, another one receives the row after that time.
const directLease = 10 * time.Second

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

// core has the state that the parts of a [Conn] share. Each part embeds the same core. No method of
// core is exported: a part exports only the methods that the part declares.
type core struct {
	store Store
	cfg   Config
	owner string // lease_owner of this Conn's claims, and of no other's
	wakes wakes

	ahead    atomic.Int64 // of this process's clock is the database's, in nanoseconds
	received sync.Map     // the names of the queues that were received from

	life    context.Context //nolint:containedctx // ends when Close begins; for the Conn's own goroutines
	closing context.CancelFunc
	work    context.Context //nolint:containedctx // ends maxClose later; for requests in progress
	cut     context.CancelFunc
	running sync.WaitGroup // the Conn's own goroutines

	entering sync.RWMutex // guards closed and adding to calls
	closed   bool
	calls    sync.WaitGroup // uses of the store, except by units
	written  chan struct{}  // closed when Close has written the last rows
}

func newCore(store Store, cfg Config) *core {
	c := &core{
		store: store, cfg: cfg, written: make(chan struct{}),
		owner: storable(fmt.Sprintf("%s/%s/%08x", cfg.Env.Endpoint, cfg.Env.Instance, rand.Uint32())),
	}
	c.wakes.init(store.Waker)
	c.work, c.cut = context.WithCancel(context.Background())
	c.life, c.closing = context.WithCancel(c.work)
	return c
}

// enter counts a call that uses the store; the caller calls c.calls.Done after it.
func (c *core) enter() error {
	c.entering.RLock()
	defer c.entering.RUnlock()
	if c.closed {
		return transport.ErrClosed
	}
	c.calls.Add(1)
	return nil
}

// call runs fn unless the Conn is closed or a name of queues is impossible. Close waits for it, and
// cancels it after a while: without an end of ctx it could wait for a silent server for ever.
func (c *core) call(ctx context.Context, queues []string, fn func(context.Context) error) error {
	var errs []error
	for _, q := range queues {
		errs = append(errs, c.store.Queues.Check(q))
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

// ask is [core.call] of a function with an answer.
func ask[T any](ctx context.Context, c *core, queues []string, fn func(context.Context) (T, error)) (v T, err error) {
	err = c.call(ctx, queues, func(ctx context.Context) (err error) {
		v, err = fn(ctx)
		return err
	})
	return v, err
}

// again calls fn, once more after each conflict.
func (c *core) again(fn func() error) (err error) {
	for range conflicts {
		if err = fn(); err == nil || c.store.Classify(err) != Conflict {
			break
		}
	}
	return err
}

// writeOnce writes units by flush: again after a conflict, or on connections that the server had
// ended.
func (c *core) writeOnce(units []*Unit, flush func(context.Context, []*Unit) error) error {
	pause := backoff.Backoff{Min: 2 * time.Millisecond, Max: 50 * time.Millisecond}
	began := time.Now()
	for try := 1; ; try++ {
		ctx, cancel := context.WithTimeout(c.work, maxWait)
		err := flush(ctx, units)
		cancel()
		if err == nil {
			return nil
		}
		forgetResults(units)
		switch c.store.Classify(err) {
		case Conflict:
			if try == conflicts {
				return err
			}
		case Unavailable:
			if try > reconnects || time.Since(began) > maxReconnect {
				return err
			}
		case Failed, Refused, Locked, Impeded, Unknown:
			return err
		}
		_ = pause.Wait(c.work)
	}
}

// forgetResults clears the results of units that were rolled back: the seqs of rows, which are no
// receipts, and lost leases and known keys.
func forgetResults(units []*Unit) {
	for _, u := range units {
		u.Lost, u.Handled = false, false
		for i := range u.Rows {
			u.Rows[i].Seq = 0
		}
	}
}

// verdict returns err with the error of package transport that its class means.
func (c *core) verdict(err error) error {
	switch c.store.Classify(err) {
	case Unknown:
		return fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, err)
	case Unavailable, Impeded:
		return fmt.Errorf("%w: %w", transport.ErrUnreachable, err)
	case Failed, Refused, Conflict, Locked:
	}
	return err
}

// unreachable returns err, of a call that has written no message, with [transport.ErrUnreachable]
// where the call may succeed later.
func (c *core) unreachable(err error) error {
	switch c.store.Classify(err) {
	case Unavailable, Impeded, Unknown, Locked:
		return fmt.Errorf("%w: %w", transport.ErrUnreachable, err)
	case Failed, Refused, Conflict:
	}
	return err
}

// complete completes u in tx. The endpoint bounds it by ctx.
func (c *core) complete(ctx context.Context, tx StoreTx, u *Unit) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.calls.Done()
	err := tx.Complete(ctx, u)
	if err != nil && c.store.Classify(err) == Conflict {
		err = fmt.Errorf("%w: %w", transport.ErrConflict, err)
	}
	return err
}

// conflict reports whether err, of a statement in tx or of its completion, is one after which the
// same transaction may succeed.
func (c *core) conflict(tx StoreTx, err error) bool {
	if _, again := errors.AsType[*outdatedError](err); again {
		return true
	}
	if b, ok := tx.(Breakable); ok && b.Broken() || errors.Is(err, transport.ErrConflict) {
		return true
	}
	class := c.store.Classify(err)
	return class == Conflict || class == Locked
}

// outdatedError is the error of a transaction that sent to a queue whose table is not as it was
// known to be: that of a subscriber is gone, or one turned out to be foreign. The next transaction
// is prepared with the new knowledge.
type outdatedError struct{ error }

func (e *outdatedError) Unwrap() error { return e.error }

// Timed is the part of a [Store] whose database may run on another machine.
type Timed interface {
	// Now returns the time of the database.
	Now(ctx context.Context) (time.Time, error)
}

// now returns the time of the database. The difference to the clock of this process is measured when
// the Conn begins to receive, and with each sweep.
func (c *core) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// compareClocks measures how far the database's clock is ahead of that of this process. The
// database reads its clock between the question and the answer.
func (c *core) compareClocks(ctx context.Context) error {
	if c.store.Timed == nil {
		return nil
	}
	asked := time.Now()
	now, err := c.store.Timed.Now(ctx)
	if err == nil {
		c.ahead.Store(int64(now.Sub(asked.Add(time.Since(asked) / 2))))
	}
	return err
}

// address returns the address of a queue: the name of the queue if the store has no Addresser.
func (c *core) address(queue string) string {
	if c.store.Addresser != nil {
		return c.store.Addresser.Address(queue)
	}
	return queue
}

// shortName returns the name of the queue with an address. Every method of the Conn that takes a
// queue calls it first, so that the store and the Conn's own tables know one name of each queue.
func (c *core) shortName(address string) string {
	if c.store.Addresser != nil {
		return c.store.Addresser.ShortName(address)
	}
	return address
}

func (c *core) shortNames(addresses []string) []string {
	names := slices.Clone(addresses)
	for i := range names {
		names[i] = c.shortName(names[i])
	}
	return names
}

// shortPlan returns plan with the short names of its queues.
func (c *core) shortPlan(plan transport.Plan) transport.Plan {
	plan.Queues = slices.Clone(plan.Queues)
	for i := range plan.Queues {
		plan.Queues[i].Name = c.shortName(plan.Queues[i].Name)
	}
	return plan
}

// isForeign reports whether queue is known to be foreign.
func (c *core) isForeign(queue string) bool {
	return c.store.Foreign != nil && c.store.Foreign.Foreign(queue)
}

// delaysForeign reports whether row is delayed and its queue is known to be foreign.
func (c *core) delaysForeign(row *Row) bool {
	return (row.After > 0 || !row.At.IsZero()) && c.isForeign(row.Queue)
}

func (c *core) directLease() time.Duration { return min(c.cfg.Lease, directLease) }

// storable returns id as text that every database can store. A receiver uses the id in the headers.
func storable(id string) string {
	if utf8.ValidString(id) && strings.IndexByte(id, 0) < 0 {
		return id
	}
	return strings.ReplaceAll(strings.ToValidUTF8(id, "\ufffd"), "\x00", "\ufffd")
}
