package endpoint

import (
	"github.com/holdfast-go/holdfast/endpoint/internal/audit"
	"github.com/holdfast-go/holdfast/endpoint/internal/keylock"
	"github.com/holdfast-go/holdfast/endpoint/internal/outage"
	"github.com/holdfast-go/holdfast/endpoint/internal/quarantine"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/endpoint/internal/throttle"
	"github.com/holdfast-go/holdfast/internal/pump"
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
	exclusive  *quarantine.Message // nil outside quarantine
	mayWait    bool                // for its error queue, without a slot
	cleared    bool                // a suspect that the quarantine did not take
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
