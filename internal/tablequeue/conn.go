package tablequeue

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

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
