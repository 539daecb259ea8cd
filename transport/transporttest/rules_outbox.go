package transporttest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var outboxRules = []rule{
	newRule("store-both", storeBoth,
		"Store records the key and sends the operations, unchanged and in order. A Store without operations records the "+
			"key.", storing),
	newRule("store-without-key", storeWithoutKey,
		"Store without a key sends the operations each time, and needs no inbox.", storing),
	newRule("store-delayed", storeDelayed,
		"A delayed operation of Store arrives when it is due, and not earlier.", storing, delays),
	newRule("store-refused", storeRefused,
		"Store with a refused operation sends nothing, names the operation in a DispatchError, and does not record the "+
			"key.", storing),
	newRule("store-too-large", storeTooLarge,
		"Store with a message that is too large sends nothing and does not record the key.", storing, boundBody),
	newRule("store-many", storeMany,
		"If many calls of Store run concurrently, those with a refused operation or a recorded key fail, and each of the "+
			"others stores its messages once.", storing),
	newRule("store-keeps-nothing", storeKeepsNothing,
		"After Store has returned, the caller may change the key, the operations and their messages.", storing),
	newRule("store-closed", storeClosed,
		"After Close, FindHandled, Store and BeginStore fail with ErrClosed.", storing),
	newRule("store-ended", storeEnded,
		"A Store whose context has ended reports correctly: nothing is stored if it fails, unless it fails with "+
			"ErrOutcomeUnknown.", storing),
	newRule("store-cut", storeCut,
		"If the connection is cut during a Store, both the key and the messages are stored or neither. After any error but "+
			"ErrOutcomeUnknown it is neither.", storing, breaking),
}

func storeBoth(t *test) {
	o := t.outbox(t.open())
	want := message("m-2")
	e := o.entry(key(1), "m-1", "replaced", "m-3")
	e.Ops[1].Message = want
	t.must("Store", o.Store(t.ctx(), e))
	o.are(transport.Handled, key(1))
	o.store(key(2))
	o.are(transport.Handled, key(2))
	o.store(key(3), "m-4")
	ds := t.inOrder(t.receiver(o.conn, o.queue), "m-1", "m-2", "m-3", "m-4")
	t.sameMessage(ds[1].Message(), want)
	t.empty(o.conn, o.queue)
}

func storeWithoutKey(t *test) {
	o := t.outbox(t.open())
	for _, inbox := range []string{"", t.name("missing"), o.inbox} {
		e := transport.OutboxEntry{Inbox: inbox, Ops: toAll(o.queue, []string{"m"})}
		t.must("Store", o.Store(t.ctx(), e))
		t.must("a transaction", o.inTx(t.ctx(), e, nothingWritten))
	}
	t.must("Store of nothing", o.Store(t.ctx(), transport.OutboxEntry{}))
	t.holds(o.conn, o.queue, "m", "m", "m", "m", "m", "m")
}

func storeDelayed(t *test) {
	o := t.outbox(t.open())
	r := t.receiver(o.conn, o.queue)
	op, due := delayed(to(o.queue, "m"))
	e := o.entry(key(1))
	e.Ops = []transport.Operation{op}
	t.must("Store", o.Store(t.ctx(), e))
	t.arrives(r, due)
	t.empty(o.conn, o.queue)
}

func storeRefused(t *test) {
	o := t.outbox(t.open())
	e := o.entry(key(1), "m-1", "m-2", "m-3")
	e.Ops[1].Queue = t.name("missing")
	err := o.Store(t.ctx(), e)
	t.failedOps(err, 3, 1)
	t.fails("Store", err, transport.ErrNoQueue)
	o.are(transport.NotHandled, key(1))
	t.empty(o.conn, o.queue)
	o.store(key(1), "m")
	t.holds(o.conn, o.queue, "m")
}

func storeTooLarge(t *test) {
	o := t.outbox(t.open())
	e := o.entry(key(1), "m-1", "large")
	e.Ops[1].Message.Body = make([]byte, o.conn.Limits().MaxBody+1)
	err := o.Store(t.ctx(), e)
	t.failedOps(err, 2, 1)
	t.fails("Store", err, transport.ErrTooLarge)
	o.are(transport.NotHandled, key(1))
	t.empty(o.conn, o.queue)
}

func storeMany(t *test) {
	o := t.outbox(t.open())
	missing := t.name("missing")
	all := keys(60)
	for _, k := range all[:21] {
		o.store(k)
	}
	var want []string
	var wg sync.WaitGroup
	for i, id := range ids("m", len(all)) {
		e, err := o.entry(all[i], id, id+" too"), error(nil)
		switch {
		case i < 21:
			err = transport.ErrAlreadyHandled
		case i < 42:
			e.Ops[1].Queue, err = missing, transport.ErrNoQueue
		default:
			want = append(want, id, id+" too")
		}
		wg.Go(func() { t.fails("Store", o.Store(t.ctx(), e), err) })
	}
	wg.Wait()
	o.are(transport.Handled, all[:21]...)
	o.are(transport.NotHandled, all[21:42]...)
	o.are(transport.Handled, all[42:]...)
	t.holds(o.conn, o.queue, want...)
}

func storeKeepsNothing(t *test) {
	o := t.outbox(t.open())
	e := o.entry(key(1), "m")
	m := e.Ops[0].Message
	want := copyOf(m)
	t.must("Store", o.Store(t.ctx(), e))
	*e.Key = key(2)
	m.ID = "changed"
	clear(m.Body)
	m.Headers.Set("Kit.Name", "changed")
	e.Ops[0] = to(o.queue, "another")
	t.complete(t.whole(t.receiver(o.conn, o.queue), want))
	o.states(keys(3)[1:], []transport.HandledState{transport.Handled, transport.NotHandled})
	t.empty(o.conn, o.queue)
}

func storeClosed(t *test) {
	o := t.outbox(t.open())
	o.store(key(2)) // so that the driver knows the inbox
	e := o.entry(key(1), "m")
	t.close(o.conn)
	_, err := o.FindHandled(t.ctx(), o.inbox, keys(1))
	t.fails("FindHandled", err, transport.ErrClosed)
	t.fails("Store", o.Store(t.ctx(), e), transport.ErrClosed)
	_, err = o.BeginStore(t.ctx(), e)
	t.fails("BeginStore", err, transport.ErrClosed)
	o = o.over(t.open())
	o.are(transport.NotHandled, key(1))
	t.empty(o.conn, o.queue)
}

func storeEnded(t *test) {
	o := t.outbox(t.open())
	want := ids("m", 10)
	for i, id := range want {
		err := o.Store(ended(), o.entry(key(i), id))
		switch again := o.Store(t.ctx(), o.entry(key(i), id)); {
		case err == nil:
			t.fails("Store after one that succeeded", again, transport.ErrAlreadyHandled)
		case !errors.Is(err, transport.ErrOutcomeUnknown):
			t.ok("Store after one that failed", again)
		case !errors.Is(again, transport.ErrAlreadyHandled):
			t.ok("Store after one with an unknown outcome", again)
		}
	}
	o.are(transport.Handled, keys(len(want))...)
	t.holds(o.conn, o.queue, want...)
}

func storeCut(t *test) {
	c, link := t.broken()
	o := t.outbox(c)
	want := ids("m", 40)
	var wg sync.WaitGroup
	var next atomic.Int64
	for range 4 {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(want); i = int(next.Add(1)) - 1 {
				if i%8 == 3 {
					wg.Go(func() {
						t.pass(time.Duration(i/8) * 700 * time.Microsecond)
						link.Cut()
					})
				}
				t.ok("Store", o.untilStored(key(i), want[i]))
			}
		})
	}
	wg.Wait()
	o = o.over(t.open())
	o.are(transport.Handled, keys(len(want))...)
	t.holds(o.conn, o.queue, want...)
}

// untilStored repeats Store while it fails. Then the key is recorded, or was recorded by a call
// with an unknown outcome.
func (o outbox) untilStored(k transport.HandledKey, id string) error {
	var failed []error
	unknown := false
	for ctx := o.t.ctx(); ; {
		err := o.Store(ctx, o.entry(k, id))
		switch {
		case err == nil, unknown && errors.Is(err, transport.ErrAlreadyHandled):
			return nil
		case errors.Is(err, transport.ErrAlreadyHandled), ctx.Err() != nil:
			return fmt.Errorf("%w, after the failures %v, none with an unknown outcome", err, failed)
		}
		failed = append(failed, err)
		unknown = unknown || errors.Is(err, transport.ErrOutcomeUnknown)
		o.t.pass(time.Millisecond)
	}
}
