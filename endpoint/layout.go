package endpoint

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// layout derives the queues and tables of an endpoint from the configuration.
type layout struct {
	cfg   *Config
	types *registry
}

// records returns the kinds of records of the handlers.
func (l layout) records() []string { return slices.Sorted(maps.Keys(l.types.kinds)) }

// plan returns the needs of the endpoint at the broker.
func (l layout) plan() transport.Plan {
	plan := transport.Plan{Delays: true}
	for _, queue := range l.queues() {
		plan.Queues = append(plan.Queues, transport.Queue{Name: queue})
	}
	for _, queue := range l.givenUpTo() {
		plan.Queues = append(plan.Queues, transport.Queue{Name: queue, Shared: true})
	}
	if queue := l.quarantineQueue(); queue != "" {
		plan.Queues = append(plan.Queues, transport.Queue{Name: queue, Counted: true})
	}
	if l.cfg.Transactions == SendsAtomicWithReceive {
		stored := l.databasePlan()
		plan.Queues = append(plan.Queues, stored.Queues...)
		plan.Inboxes, plan.Records = stored.Inboxes, stored.Records
	}
	for _, t := range l.types.all {
		if t.kind == kindEvent {
			plan.Types = append(plan.Types, t.types)
		}
	}
	return plan
}

// quarantineQueue returns the name of the endpoint's quarantine, or "".
func (l layout) quarantineQueue() string {
	if l.cfg.SendOnly || l.cfg.Transactions == None || l.cfg.Recoverability.Quarantine.After == None {
		return ""
	}
	return l.cfg.Name + quarantineSuffix
}

// databasePlan returns the needs of the endpoint in the database of the outbox, or without an
// outbox in the transport's own database.
func (l layout) databasePlan() transport.Plan {
	plan := transport.Plan{Queues: []transport.Queue{{Name: l.cfg.Name + outboxSuffix, Timers: true}}, Records: l.records()}
	if l.cfg.Remember > 0 && !l.cfg.SendOnly {
		plan.Inboxes = []string{l.cfg.Name + inboxSuffix}
	}
	return plan
}

// queues returns the input queues of the endpoint.
func (l layout) queues() []string {
	switch own := l.cfg.instanceQueue(); {
	case l.cfg.SendOnly:
		return nil
	case own != "":
		return []string{l.cfg.Name, own}
	}
	return []string{l.cfg.Name}
}

// givenUpTo are the error queues and the audit queue.
func (l layout) givenUpTo() []string {
	if l.cfg.SendOnly && l.cfg.Outbox == nil { // without either no message of the endpoint can fail
		return nil
	}
	queues := l.cfg.Recoverability.ErrorQueues()
	if l.cfg.AuditQueue != "" {
		queues = append(queues, l.cfg.AuditQueue)
	}
	return queues
}

// longestAttempt returns the longest time that an attempt at a message of one of the types may
// take, without types of any; 0 where there is no limit.
func (l layout) longestAttempt(types []string) (longest time.Duration) {
	for _, t := range l.types.all {
		of := func(name string) bool { return slices.Contains(types, name) }
		if len(types) > 0 && !slices.ContainsFunc(t.types, of) {
			continue
		}
		longest = max(longest, cmp.Or(t.timeout, time.Duration(len(l.types.calls[t.at]))*l.cfg.HandlerTimeout))
	}
	return longest
}
