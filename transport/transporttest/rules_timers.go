package transporttest

import (
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var timerRules = []rule{
	newRule("timer-replaces", timerReplaces,
		"A message with a name replaces the one with that name that waits in the queue, and no other.", storing),
	newRule("timer-removed", timerRemoved,
		"An operation with a name and no message removes the message with that name. Where none waits, it does nothing.", storing),
	newRule("timer-leased", timerLeased,
		"A message with a name replaces one that a receiver has leased: that one is not delivered again.", storing),
	newRule("timer-order", timerOrder,
		"Operations with one name in one dispatch have their effect in their order.", storing),
	newRule("timer-names", timerNames,
		"Names are any text, compared bytewise. Each queue has names of its own.", storing),
	newRule("timer-tx", timerTx,
		"In a transaction of BeginStore, a message with a name is replaced or removed by the commit, and stays after a "+
			"rollback.", storing),
	newRule("timer-refused", timerRefused,
		"A queue without Timers refuses an operation with a name, and nothing is sent.", storing),
}

// timers installs a queue with Timers.
func (t *test) timers(c transport.Conn, s string) (queue string) {
	t.Helper()
	return t.install(c, transport.Queue{Name: t.name(s), Timers: true})
}

// named is a send of a message with a name.
func named(queue, name, id string) transport.Operation {
	op := to(queue, id)
	op.Name = name
	return op
}

// unnamed removes the message with a name.
func unnamed(queue, name string) transport.Operation {
	return transport.Operation{Queue: queue, Name: name}
}

// inAnHour is op, due in an hour.
func inAnHour(op transport.Operation) transport.Operation {
	op.After = time.Hour
	return op
}

// sendOps sends operations, which must be accepted.
func (t *test) sendOps(c transport.Conn, ops ...transport.Operation) {
	t.Helper()
	_, err := c.Dispatch(t.ctx(), ops)
	t.must("Dispatch", err)
}

func timerReplaces(t *test) {
	c := t.open()
	q := t.timers(c, "timers")
	t.sendOps(c, inAnHour(named(q, "a", "m-1")), named(q, "b", "m-2"), to(q, "m-3"))
	t.sendOps(c, named(q, "a", "m-4"))
	t.holds(c, q, "m-2", "m-3", "m-4")
	t.sendOps(c, named(q, "a", "m-5")) // the name is free again
	t.holds(c, q, "m-5")
}

func timerRemoved(t *test) {
	c := t.open()
	q := t.timers(c, "timers")
	t.sendOps(c, unnamed(q, "a"))
	t.sendOps(c, named(q, "a", "m-1"), named(q, "b", "m-2"))
	t.sendOps(c, unnamed(q, "a"))
	t.sendOps(c, unnamed(q, "a"))
	t.inOrder(t.receiver(c, q), "m-2")
	t.empty(c, q)
}

func timerLeased(t *test) {
	c := t.open()
	q := t.timers(c, "timers")
	r := t.receiver(c, q)
	t.sendOps(c, named(q, "a", "m-1"))
	d := t.one(r, "m-1")
	t.sendOps(c, named(q, "a", "m-2"))
	_ = d.Retry(t.ctx()) // its lease is lost
	t.inOrder(r, "m-2")
	t.empty(c, q)
}

func timerOrder(t *test) {
	c := t.open()
	q := t.timers(c, "timers")
	t.sendOps(c,
		named(q, "a", "m-1"), unnamed(q, "a"),
		named(q, "b", "m-2"), unnamed(q, "b"), named(q, "b", "m-3"),
		inAnHour(named(q, "c", "m-4")), named(q, "c", "m-5"))
	t.holds(c, q, "m-3", "m-5")
}

func timerNames(t *test) {
	c := t.open()
	q, other := t.timers(c, "timers"), t.timers(c, "others")
	names := []string{"a", "A", "a ", " a", "a%", "a_", "'", `"`, "a\x00", "a\x00b", "ü", "u\u0308", "\xff", strings.Repeat("x", 1200)}
	var ops []transport.Operation
	var ids []string
	for i, name := range names {
		id := "m-" + string(rune('a'+i))
		ops, ids = append(ops, named(q, name, id)), append(ids, id)
	}
	t.sendOps(c, ops...)
	t.sendOps(c, named(other, "a", "other"), unnamed(other, "ü"))
	t.sendOps(c, unnamed(q, "none"))
	t.holds(c, q, ids...)
	t.holds(c, other, "other")
}

func timerTx(t *test) {
	c := t.open()
	q := t.timers(c, "timers")
	store := as[transport.OutboxStore](t, c)
	t.sendOps(c, inAnHour(named(q, "a", "m-1")), named(q, "b", "m-2"))
	in := func(ops ...transport.Operation) transport.Tx {
		tx, err := store.BeginStore(t.ctx(), transport.OutboxEntry{Ops: ops})
		t.must("BeginStore", err)
		return tx
	}
	t.do("Rollback", in(named(q, "a", "m-3"), unnamed(q, "b")).Rollback)
	t.holds(c, q, "m-2")
	t.sendOps(c, inAnHour(named(q, "b", "m-2")))
	t.must("Complete", in(named(q, "a", "m-4")).Complete(t.ctx(), []transport.Operation{unnamed(q, "b"), named(q, "b", "m-5")}))
	t.holds(c, q, "m-4", "m-5")
}

func timerRefused(t *test) {
	c := t.open()
	q := t.queue(c, "plain")
	for _, op := range []transport.Operation{named(q, "a", "m-1"), unnamed(q, "a")} {
		if _, err := c.Dispatch(t.ctx(), []transport.Operation{op}); err == nil {
			t.Error("a queue without timers has accepted an operation with a name")
		}
	}
	t.empty(c, q)
}
