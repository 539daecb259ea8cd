package transporttest

import (
	"context"
	"encoding/binary"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// outbox is an OutboxStore with an inbox and a queue of the rule's own.
type outbox struct {
	transport.OutboxStore
	t     *test
	conn  transport.Conn
	inbox string
	queue string
}

// outbox creates an inbox and a queue.
func (t *test) outbox(c transport.Conn) outbox {
	t.Helper()
	o := outbox{as[transport.OutboxStore](t, c), t, c, t.inbox(c, "handled"), t.queue(c, "outbox")}
	return o
}

// inbox creates an inbox and returns its name.
func (t *test) inbox(c transport.Conn, s string) string {
	t.Helper()
	name := t.name(s)
	t.must("Install", as[transport.Installer](t, c).Install(t.ctx(), transport.Plan{Inboxes: []string{name}}))
	return name
}

// over returns the same outbox over another connection.
func (o outbox) over(c transport.Conn) outbox {
	o.OutboxStore, o.conn = as[transport.OutboxStore](o.t, c), c
	return o
}

// key returns the nth key of a rule. Its checksum is over the largest signed number of 32 bits.
func key(n int) transport.HandledKey {
	k := transport.HandledKey{Sum: 0xfeedface}
	binary.BigEndian.PutUint64(k.ID[8:], uint64(n))
	return k
}

func keys(n int) (all []transport.HandledKey) {
	for i := range n {
		all = append(all, key(i))
	}
	return all
}

// entry is a key with a send of each id to the outbox's queue.
func (o outbox) entry(k transport.HandledKey, ids ...string) transport.OutboxEntry {
	return transport.OutboxEntry{Inbox: o.inbox, Key: &k, Ops: toAll(o.queue, ids)}
}

// store stores an entry, which must succeed.
func (o outbox) store(k transport.HandledKey, ids ...string) {
	o.t.Helper()
	o.t.must("Store", o.Store(o.t.ctx(), o.entry(k, ids...)))
}

// duplicate checks that a key is in the inbox already.
func (o outbox) duplicate(k transport.HandledKey) {
	o.t.Helper()
	o.t.fails("Store of a recorded key", o.Store(o.t.ctx(), o.entry(k, "duplicate")), transport.ErrAlreadyHandled)
}

// are checks the state of keys.
func (o outbox) are(want transport.HandledState, ks ...transport.HandledKey) {
	o.t.Helper()
	o.states(ks, slices.Repeat([]transport.HandledState{want}, len(ks)))
}

// states checks the state of each key, in one call.
func (o outbox) states(ks []transport.HandledKey, want []transport.HandledState) {
	o.t.Helper()
	got, err := o.FindHandled(o.t.ctx(), o.inbox, ks)
	o.t.must("FindHandled", err)
	if len(got) != len(want) {
		o.t.Fatalf("FindHandled of %d keys returned %d states", len(want), len(got))
	}
	for i := range want {
		if got[i] != want[i] {
			o.t.Errorf("key %d of %d is %s, want %s", i, len(want), stateNames[got[i]], stateNames[want[i]])
		}
	}
}

var stateNames = map[transport.HandledState]string{
	transport.NotHandled: "NotHandled", transport.Handled: "Handled", transport.HandledOther: "HandledOther",
}

// begin begins a transaction that must not fail.
func (o outbox) begin(e transport.OutboxEntry) transport.Tx {
	o.t.Helper()
	tx, err := o.BeginStore(o.t.ctx(), e)
	o.t.must("BeginStore", err)
	o.t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // where the rule has failed
	return tx
}

// inTx stores an entry in a transaction, and rolls a failed one back.
func (o outbox) inTx(ctx context.Context, e transport.OutboxEntry, write func(transport.Tx), more ...transport.Operation) error {
	tx, err := o.BeginStore(ctx, e)
	if err != nil {
		return err
	}
	write(tx)
	err = tx.Complete(ctx, more)
	o.t.ok("Rollback", tx.Rollback(ctx)) // after Complete it does nothing
	return err
}

func nothingWritten(transport.Tx) {}

// remembering opens the rule's transport with a time after which ids are removed from inboxes.
func (t *test) remembering(d time.Duration) transport.Conn {
	t.Helper()
	return t.openWith(transport.Env{Remember: d})
}
