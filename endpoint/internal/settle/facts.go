package settle

import (
	"maps"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// Facts returns the message and everything about its failure that is known without counting.
func (d *Delivery) Facts(err error) recoverability.Failure {
	now := time.Now()
	m, attempt := SharedCopy(d.Original), d.Received.Attempt()
	return recoverability.Failure{
		Err: err, MessageID: d.ID, Type: FirstType(m.Headers), Queue: d.Queue,
		Headers: m.Headers, Body: m.Body, Native: m.Native,
		Attempt: attempt.N, AttemptExact: attempt.Exact, Immediate: attempt.N + fault.UsedRetries(m.Headers),
		Delayed:      fault.DelayedRetries(m.Headers),
		Inline:       d.Inline,
		FirstFailure: fault.FirstFailure(m.Headers, now), Now: now,
		Instance: d.Instance, History: fault.ParseHistory(m.Headers.Get(header.HoldfastHistory)),
		Config: *d.Config,
	}
}

// SharedCopy returns a copy of a message for the user's code, which may change it. Copies to the
// error queue, to the audit queue and for later are made of the original. The headers are copied on
// write.
func SharedCopy(m *transport.Message) *transport.Message {
	c := *m
	c.Headers, c.Body, c.Native = m.Headers.CopyOnWrite(), slices.Clone(m.Body), maps.Clone(m.Native)
	return &c
}
