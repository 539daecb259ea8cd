package transporttest

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// faulty is a driver with a fault: inmemory, with some functions replaced. A nil function is
// inmemory's.
type faulty struct {
	*inmemory.Transport

	open     func(ctx context.Context) (transport.Conn, error)
	limits   func(transport.Limits) transport.Limits
	close    func(c *faultyConn) error
	dispatch func(ctx context.Context, c *faultyConn, ops []transport.Operation) ([]transport.Receipt, error)

	dispatchIn func(ctx context.Context, c *faultyConn, tx any, ops []transport.Operation) ([]transport.Receipt, error)

	install     func(ctx context.Context, c *faultyConn, plan transport.Plan) error
	subscribe   func(ctx context.Context, c *faultyConn, queue string, types []string) error
	unsubscribe func(ctx context.Context, c *faultyConn, queue string, types []string) error
	cancel      func(ctx context.Context, c *faultyConn, receipt string) error
	browse      func(ctx context.Context, c *faultyConn, queue string) (transport.Cursor, error)
	purge       func(ctx context.Context, c *faultyConn, queue string) (int64, error)
	verify      func(ctx context.Context, c *faultyConn, plan transport.Plan) ([]transport.Finding, error)
	verifySubs  func(found []transport.Finding) []transport.Finding
	remove      func(ctx context.Context, c *faultyConn, queues []string) error
	address     func(queue string) string
	shortName   func(address string) string
	inspect     func(stats []transport.QueueStats, err error) ([]transport.QueueStats, error)

	openReceiver  func(ctx context.Context, c *faultyConn, queue string) (transport.Receiver, error)
	receive       func(ctx context.Context, r *faultyReceiver, limit int) ([]transport.Delivery, error)
	receiveBytes  func(ctx context.Context, r *faultyReceiver, limit int, maxBytes int64) ([]transport.Delivery, error)
	window        func(r *faultyReceiver, n int)
	closeReceiver func(r *faultyReceiver) error
	renew         func(ctx context.Context, r *faultyReceiver, ds []transport.Delivery) []error

	user        func(*transport.Message) // of Harness.Translate
	translation func(user func(*transport.Message)) func(*transport.Message)

	message      func(m *transport.Message) *transport.Message
	attempt      func(d *faultyDelivery) transport.Attempt
	settle       func(ctx context.Context, verb string, d *faultyDelivery, sound func(context.Context) error) error
	completeWith func(ctx context.Context, d *faultyDelivery, ops []transport.Operation) error
	commit       func(ctx context.Context, tx *faultyTx, ops []transport.Operation) error
	rollback     func(ctx context.Context, tx *faultyTx) error

	check    func(c *faultyConn, op *transport.Operation) error
	deferFor func(ctx context.Context, d *faultyDelivery, after time.Duration) (string, error)
	hasten   func(ctx context.Context, c *faultyConn, queue string, handles []string) error

	wire func(w *wire)

	outboxFaults
	states stateFaults

	joins    atomic.Int64 // operations of users' transactions
	receipts sync.Map     // inmemory's by those of DispatchIn

	firstInbox atomic.Pointer[string] // of installNoting
}

// sound has the capabilities of inmemory's connections.
type sound interface {
	transport.Conn
	transport.Installer
	transport.Verifier
	transport.SubscriptionVerifier
	transport.Remover
	transport.Subscriber
	transport.Canceler
	transport.Inspector
	transport.Browser
	transport.Purger
	transport.OutboxStore
	transport.InboxInspector
	transport.StateInspector
	transport.Hastener
	transport.Checker
}

func (f *faulty) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	if f.open != nil {
		return f.open(ctx)
	}
	c, err := f.Transport.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	return &faultyConn{sound: c.(sound), f: f}, nil
}

type faultyConn struct {
	sound
	f *faulty

	mu  sync.Mutex // guards out
	out []*faultyDelivery
}

// unsettled returns the unsettled deliveries.
func (c *faultyConn) unsettled() (ds []*faultyDelivery) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.out {
		if !d.isSettled() {
			ds = append(ds, d)
		}
	}
	return ds
}

func (c *faultyConn) Limits() transport.Limits {
	l := c.sound.Limits()
	if c.f.limits != nil {
		l = c.f.limits(l)
	}
	return l
}

func (c *faultyConn) Close() error {
	if c.f.close != nil {
		return c.f.close(c)
	}
	return c.sound.Close()
}

func (c *faultyConn) Dispatch(ctx context.Context, ops []transport.Operation) ([]transport.Receipt, error) {
	if c.f.dispatch != nil {
		return c.f.dispatch(ctx, c, ops)
	}
	return c.sound.Dispatch(ctx, ops)
}

func (c *faultyConn) Install(ctx context.Context, plan transport.Plan) error {
	if c.f.install != nil {
		return c.f.install(ctx, c, plan)
	}
	return c.sound.Install(ctx, plan)
}

func (c *faultyConn) Verify(ctx context.Context, plan transport.Plan) ([]transport.Finding, error) {
	if c.f.verify != nil {
		return c.f.verify(ctx, c, plan)
	}
	return c.sound.Verify(ctx, plan)
}

func (c *faultyConn) VerifySubscriptions(
	ctx context.Context, queue string, types []string,
) ([]transport.Finding, error) {
	found, err := c.sound.VerifySubscriptions(ctx, queue, types)
	if c.f.verifySubs != nil {
		found = c.f.verifySubs(found)
	}
	return found, err
}

func (c *faultyConn) Remove(ctx context.Context, queues ...string) error {
	if c.f.remove != nil {
		return c.f.remove(ctx, c, queues)
	}
	return c.sound.Remove(ctx, queues...)
}

func (c *faultyConn) Subscribe(ctx context.Context, queue string, types []string) error {
	if c.f.subscribe != nil {
		return c.f.subscribe(ctx, c, queue, types)
	}
	return c.sound.Subscribe(ctx, queue, types)
}

func (c *faultyConn) Unsubscribe(ctx context.Context, queue string, types []string) error {
	if c.f.unsubscribe != nil {
		return c.f.unsubscribe(ctx, c, queue, types)
	}
	return c.sound.Unsubscribe(ctx, queue, types)
}

func (c *faultyConn) Cancel(ctx context.Context, receipt string) error {
	if c.f.cancel != nil {
		return c.f.cancel(ctx, c, receipt)
	}
	return c.sound.Cancel(ctx, c.f.receiptOf(receipt))
}

func (c *faultyConn) Browse(ctx context.Context, queue string) (transport.Cursor, error) {
	if c.f.browse != nil {
		return c.f.browse(ctx, c, queue)
	}
	return c.sound.Browse(ctx, queue)
}

func (c *faultyConn) Purge(ctx context.Context, queue string) (int64, error) {
	if c.f.purge != nil {
		return c.f.purge(ctx, c, queue)
	}
	return c.sound.Purge(ctx, queue)
}

func (c *faultyConn) Translation() func(*transport.Message) {
	if c.f.translation != nil {
		return c.f.translation(c.f.user)
	}
	return c.f.user
}

func (c *faultyConn) Address(queue string) string {
	if c.f.address != nil {
		return c.f.address(queue)
	}
	return queue
}

func (c *faultyConn) ShortName(address string) string {
	if c.f.shortName != nil {
		return c.f.shortName(address)
	}
	return address
}

func (c *faultyConn) Inspect(ctx context.Context, queues ...string) ([]transport.QueueStats, error) {
	queues = slices.Clone(queues)
	for i := range queues {
		queues[i] = c.ShortName(queues[i])
	}
	stats, err := c.sound.Inspect(ctx, queues...)
	if c.f.inspect != nil {
		return c.f.inspect(stats, err)
	}
	return stats, err
}

func (c *faultyConn) OpenReceiver(ctx context.Context, opts transport.ReceiverOptions) (transport.Receiver, error) {
	var r transport.Receiver
	var err error
	if c.f.openReceiver != nil {
		r, err = c.f.openReceiver(ctx, c, opts.Queue)
	} else {
		r, err = c.sound.OpenReceiver(ctx, opts)
	}
	if err != nil {
		return nil, err
	}
	own := &faultyReceiver{Receiver: r, conn: c, f: c.f, queue: opts.Queue}
	if c.Limits().Lease > 0 {
		return faultyRenewer{own}, nil
	}
	return own, nil
}

type faultyReceiver struct {
	transport.Receiver
	conn  *faultyConn
	f     *faulty
	queue string

	mu     sync.Mutex // guards closed
	closed bool
}

func (r *faultyReceiver) Receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	if r.f.receive != nil {
		return r.f.receive(ctx, r, limit)
	}
	return r.soundly(ctx, limit)
}

func (r *faultyReceiver) ReceiveBytes(ctx context.Context, limit int, maxBytes int64) ([]transport.Delivery, error) {
	if r.f.receiveBytes != nil {
		return r.f.receiveBytes(ctx, r, limit, maxBytes)
	}
	return r.soundlyWithin(ctx, limit, maxBytes)
}

// soundly receives without a fault.
func (r *faultyReceiver) soundly(ctx context.Context, limit int) ([]transport.Delivery, error) {
	return r.soundlyWithin(ctx, limit, math.MaxInt64)
}

func (r *faultyReceiver) soundlyWithin(ctx context.Context, limit int, maxBytes int64) ([]transport.Delivery, error) {
	ds, err := r.Receiver.(transport.ByteReceiver).ReceiveBytes(ctx, limit, maxBytes)
	r.conn.mu.Lock()
	defer r.conn.mu.Unlock()
	for i, d := range ds {
		own := &faultyDelivery{whole: d.(whole), receiver: r, ctx: ctx}
		ds[i] = own
		r.conn.out = append(r.conn.out, own)
	}
	return ds, err
}

func (r *faultyReceiver) Window(n int) {
	if r.f.window != nil {
		r.f.window(r, n)
	}
}

func (r *faultyReceiver) Close() error {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	if r.f.closeReceiver != nil {
		return r.f.closeReceiver(r)
	}
	return r.Receiver.Close()
}

func (r *faultyReceiver) isClosed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed
}

type faultyRenewer struct{ *faultyReceiver }

func (r faultyRenewer) Renew(ctx context.Context, ds []transport.Delivery) []error {
	if r.f.renew != nil {
		return r.f.renew(ctx, r.faultyReceiver, ds)
	}
	return r.renewSoundly(ctx, ds)
}

func (r *faultyReceiver) renewSoundly(ctx context.Context, ds []transport.Delivery) []error {
	inner := make([]transport.Delivery, len(ds))
	for i, d := range ds {
		inner[i] = d.(*faultyDelivery).whole
	}
	return r.Receiver.(transport.Renewer).Renew(ctx, inner)
}

// whole has the capabilities of inmemory's deliveries.
type whole interface {
	transport.Delivery
	transport.Completer
	transport.Transactor
	transport.DeadLetterer
	transport.HandledRecorder
	transport.Deferrer
}

type faultyDelivery struct {
	whole
	receiver *faultyReceiver
	ctx      context.Context //nolint:containedctx // some faults are to remember it

	mu      sync.Mutex // guards what follows
	settled bool
	changed *transport.Message
}

func (d *faultyDelivery) id() string { return d.whole.Message().ID }

func (d *faultyDelivery) isSettled() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.settled
}

func (d *faultyDelivery) Message() *transport.Message {
	if d.receiver.f.message == nil {
		return d.whole.Message()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.changed == nil {
		d.changed = d.receiver.f.message(copyOf(d.whole.Message()))
	}
	return d.changed
}

// Hold implements [transport.Holder]. A window of inmemory has no effect anyway.
func (d *faultyDelivery) Hold() (until time.Time) { return time.Time{} }

func (d *faultyDelivery) Attempt() transport.Attempt {
	if d.receiver.f.attempt != nil {
		return d.receiver.f.attempt(d)
	}
	return d.whole.Attempt()
}

func (d *faultyDelivery) settle(ctx context.Context, verb string, sound func(context.Context) error) error {
	var err error
	if d.receiver.f.settle != nil {
		err = d.receiver.f.settle(ctx, verb, d, sound)
	} else {
		err = sound(ctx)
	}
	if err == nil {
		d.mu.Lock()
		d.settled = true
		d.mu.Unlock()
	}
	return err
}

func (d *faultyDelivery) Complete(ctx context.Context) error {
	return d.settle(ctx, "Complete", d.whole.Complete)
}

func (d *faultyDelivery) Retry(ctx context.Context) error {
	return d.settle(ctx, "Retry", d.whole.Retry)
}

func (d *faultyDelivery) Release(ctx context.Context) error {
	return d.settle(ctx, "Release", d.whole.Release)
}

func (d *faultyDelivery) DeadLetter(ctx context.Context, reason string) error {
	return d.settle(ctx, "DeadLetter", func(ctx context.Context) error { return d.whole.DeadLetter(ctx, reason) })
}

func (d *faultyDelivery) CompleteWith(ctx context.Context, ops []transport.Operation) error {
	return d.settle(ctx, "CompleteWith", func(ctx context.Context) error {
		if d.receiver.f.completeWith != nil {
			return d.receiver.f.completeWith(ctx, d, ops)
		}
		return d.whole.CompleteWith(ctx, ops)
	})
}

func (d *faultyDelivery) Begin(ctx context.Context) (transport.Tx, error) {
	tx, err := d.whole.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &faultyTx{Tx: tx, d: d}, nil
}

type faultyTx struct {
	transport.Tx
	d *faultyDelivery
}

func (t *faultyTx) Complete(ctx context.Context, ops []transport.Operation) error {
	if t.d.receiver.f.commit != nil {
		return t.d.receiver.f.commit(ctx, t, ops)
	}
	return t.Tx.Complete(ctx, ops)
}

func (t *faultyTx) Rollback(ctx context.Context) error {
	if t.d.receiver.f.rollback != nil {
		return t.d.receiver.f.rollback(ctx, t)
	}
	return t.Tx.Rollback(ctx)
}

// faultyHarness gives rules a driver with a fault.
func faultyHarness(change func(*faulty)) Harness {
	open := func(lease time.Duration) func(testing.TB) transport.Transport {
		return func(testing.TB) transport.Transport {
			f := &faulty{Transport: &inmemory.Transport{Lease: lease}}
			change(f)
			return f
		}
	}
	remote := func() *wire {
		f := &faulty{Transport: &inmemory.Transport{}}
		change(f)
		w := &wire{broker: &inmemory.Transport{}}
		if f.wire != nil {
			f.wire(w)
		}
		return w
	}
	return Harness{
		Open:       open(time.Minute),
		ShortLease: open(time.Second),
		Break: func(testing.TB) (transport.Transport, Link) {
			w := remote()
			return w, w
		},
		Restart: func(testing.TB) (transport.Transport, func()) {
			w := remote()
			return w, func() {
				w.Refuse()
				<-time.After(50 * time.Millisecond)
				w.Resume()
			}
		},
		Begin: func(testing.TB, transport.Transport) UserTx {
			tx := &batchTx{}
			return UserTx{Tx: tx, Commit: tx.Commit, Rollback: tx.Rollback}
		},
		Translate: func(t testing.TB, user func(*transport.Message)) transport.Transport {
			f := open(time.Minute)(t).(*faulty)
			f.user = user
			return f
		},
		Write: writeOnCommit,
		Sweep: func(testing.TB, transport.Transport, string) {},
		// A broker in memory has no limit: a mutant has to lose messages for the lack of its own
		// care.
		LimitDeliveries: func(testing.TB, transport.Transport, string, int) {},
		PutUndecodable: func(t testing.TB, tr transport.Transport, queue string) {
			m := &transport.Message{ID: "foreign", Undecodable: errNothing}
			if err := tr.(*faulty).Put(queue, m); err != nil {
				t.Error(err)
			}
		},
	}
}
