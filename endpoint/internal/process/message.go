package process

import (
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/audit"
	"github.com/holdfast-go/holdfast/endpoint/internal/keylock"
	"github.com/holdfast-go/holdfast/endpoint/internal/notify"
	"github.com/holdfast-go/holdfast/endpoint/internal/outage"
	"github.com/holdfast-go/holdfast/endpoint/internal/overdue"
	"github.com/holdfast-go/holdfast/endpoint/internal/quarantine"
	"github.com/holdfast-go/holdfast/endpoint/internal/recovery"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/endpoint/internal/throttle"
	"github.com/holdfast-go/holdfast/endpoint/internal/typelimit"
	"github.com/holdfast-go/holdfast/endpoint/internal/work"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
)

// Message is a delivery in process, with the state of all attempts. A Message is not safe for
// concurrent use.
type Message struct {
	settle.Delivery
	*Shared

	Attempts Attempts
	Keys     keylock.Held

	first      overdue.Call // of Translate, and of the first attempt
	turn       throttle.Turn
	conflicts  conflicts
	impediment outage.Impediment
	exclusive  *quarantine.Message // nil outside quarantine
	attempts   int                 // begun
	mayWait    bool                // for the error queue, without a slot
	cleared    bool                // a suspect that the quarantine did not take
	audit      audit.Message
}

// Attempts makes the attempts at a message.
type Attempts interface {
	// NewAttempt returns the next attempt. Each attempt has a new session, because a goroutine that
	// outlives an attempt may still use the session.
	NewAttempt() *Attempt
}

// Attempt is an attempt at a message: received, decoded, handled and settled. Of, Unit and Receive
// are set before the attempt begins.
type Attempt struct {
	*Message

	Of   recovery.Attempt // the endpoint's part of the attempt
	Unit *work.Unit       // of the handlers
	// Running is the call of the program's functions in the attempt. Each attempt has a new call,
	// because a goroutine that outlives an attempt may still use the call. Nil of an attempt that
	// is not made, for example at a message that only moves.
	Running     *overdue.Call
	Receive     pipeline.Receive
	Dispatch    pipeline.Dispatch
	Limit       typelimit.Place
	RecoveredBy *recovery.Recovery // nil unless the attempt has failed

	keysEnded way // how the message returns, if its wait has ended without the keys

	audited audit.Copied // set if there are audit copies
}

// maxConflicts bounds the attempts at a delivery whose transaction lost a conflict.
const maxConflicts = 10

// conflicts counts the lost conflicts of a delivery. A lost conflict uses up no retry.
type conflicts struct {
	n     int
	pause backoff.Backoff // jittered, so that two transactions do not meet again
}

// next counts a conflict, and returns the pause before the next attempt.
func (c *conflicts) next() time.Duration {
	if c.n++; c.n == 1 {
		c.pause = backoff.Backoff{Min: 5 * time.Millisecond, Max: 200 * time.Millisecond}
	}
	return c.pause.Next()
}

// Begin sets the fields of the delivery. arrivals is the order of keys in the queue; nil without
// keys, and in quarantine.
func (m *Message) Begin(
	s *Shared, d transport.Delivery, slot *pump.Slot, queue string, arrivals *keylock.Arrivals,
) {
	m.Shared = s
	m.Delivery.Settler, m.Received, m.Slot, m.Queue = &s.Settler, d, slot, queue
	m.Original, m.ID = settle.OriginalOf(d.Message())
	m.audit.Delivery, m.audit.Auditor = &m.Delivery, &s.Auditor
	m.Keys.Locks, m.Keys.Arrivals = s.Locks, arrivals
	m.watch(&m.first)
}

// watch has the call tell the watch of the slot. If the messages behind wait for the keys, the watch
// tells the message that the call is late.
func (m *Message) watch(call *overdue.Call) *overdue.Call {
	if call.Slot = m.Slot; m.Keys.Arrivals != nil {
		call.Observer = m
	}
	return call
}

// begin returns the next attempt, with a call.
func (m *Message) begin() *Attempt {
	a := m.Attempts.NewAttempt()
	if m.attempts++; m.attempts == 1 {
		a.Running = &m.first
	} else {
		a.Running = m.watch(new(overdue.Call))
	}
	return a
}

// Late implements [overdue.Observer]: if the call of a message is late, the messages behind take
// keys before the message.
func (m *Message) Late() { m.Keys.Arrivals.Overtake(m.Slot) }

// Report implements [notify.Reporter].
func (m *Message) Report(p *notify.Place, f func()) {
	m.Keys.GiveUp(m.Slot)
	settled := func() {
		if m.Over() {
			m.Slot.Settled()
		}
	}
	if m.exclusive != nil {
		settled = nil
	}
	m.Notifier.Report(p, settled, f)
}

// newRecovery returns a recovery of the message.
func (m *Message) newRecovery() *recovery.Recovery {
	return &recovery.Recovery{Failed: recovery.Failed{
		Shared: &m.Recovery, Delivery: &m.Delivery, Reporter: m,
		Audit: &m.audit, Exclusive: m.exclusive, MayWait: m.mayWait,
	}}
}
