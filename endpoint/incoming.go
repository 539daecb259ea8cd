package endpoint

import (
	"maps"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/audit"
	"github.com/holdfast-go/holdfast/endpoint/internal/keylock"
	"github.com/holdfast-go/holdfast/endpoint/internal/outage"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/endpoint/internal/throttle"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// incoming is a delivery in process: everything that its attempts share. The first attempt is
// allocated with the delivery. Each further attempt is new, with a new session, because a goroutine
// that outlives an attempt may still use the session.
type incoming struct {
	settle.Delivery

	e    *Endpoint
	live *live
	road *road // its guards; nil in the driver's own queues

	turn       throttle.Turn
	keys       keylock.Held
	keysEnded  way // how the message returns, if its wait has ended without the keys
	conflicts  conflicts
	impediment outage.Impediment
	exclusive  *exclusive // nil outside quarantine
	mayWait    bool       // for its error queue, without a slot
	cleared    bool       // a suspect that the quarantine did not take
	inline     int        // retries within this delivery
	audit      audit.Message
	first      attempt
}

func (l *live) newIncoming(d transport.Delivery, slot *pump.Slot, queue string) *incoming {
	in := &incoming{e: l.e, live: l}
	in.Settler, in.Received, in.Slot, in.Queue = &l.settler, d, slot, queue
	in.Original, in.ID = settle.OriginalOf(d.Message())
	in.audit.Delivery, in.audit.Auditor = &in.Delivery, &l.auditor
	in.keys.Locks = l.keys
	return in
}

// facts returns the message and everything about its failure that is known without counting.
func (in *incoming) facts(err error) recoverability.Failure {
	now := time.Now()
	m, attempt := sharedCopy(in.Original), in.Received.Attempt()
	return recoverability.Failure{
		Err: err, MessageID: in.ID, Type: settle.FirstType(m.Headers), Queue: in.Queue,
		Headers: m.Headers, Body: m.Body, Native: m.Native,
		Attempt: attempt.N, AttemptExact: attempt.Exact, Immediate: attempt.N + fault.UsedRetries(m.Headers),
		Delayed:      fault.DelayedRetries(m.Headers),
		Inline:       in.inline,
		FirstFailure: fault.FirstFailure(m.Headers, now), Now: now,
		Instance: in.e.cfg.Instance, History: fault.ParseHistory(m.Headers.Get(header.HoldfastHistory)),
		Config: in.live.recoverability,
	}
}

// sharedCopy returns a copy of a message for the user's code, which may change it. Copies to the
// error queue, to the audit queue and for later are made of the original. The headers are copied on
// write.
func sharedCopy(m *transport.Message) *transport.Message {
	c := *m
	c.Headers, c.Body, c.Native = m.Headers.CopyOnWrite(), slices.Clone(m.Body), maps.Clone(m.Native)
	return &c
}
