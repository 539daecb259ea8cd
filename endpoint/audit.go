package endpoint

import (
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// withAudit is ops and, where there is an audit queue, a copy of the message for it.
// acknowledged tells that ServiceControl is told of the success already.
func (in *incoming) withAudit(ops []transport.Operation, acknowledged bool) []transport.Operation {
	if in.e.cfg.AuditQueue == "" {
		return ops
	}
	headers := in.auditHeaders(time.Now())
	if acknowledged {
		headers.Set(header.RetryAcknowledged, "True") // so that it does not tell itself again
	}
	op := in.copyTo(in.e.cfg.AuditQueue, headers, 0)
	op.TTL = in.e.cfg.AuditExpireAfter
	return slices.Concat(ops, []transport.Operation{op})
}

// auditHeaders are the message's own, and who processed it when.
func (in *incoming) auditHeaders(now time.Time) header.Map {
	received := in.original.Headers
	var h header.Map
	h.Reserve(received.Len() + 9)
	for name, value := range received.All() {
		h.Set(name, value)
	}
	h.Set(header.ProcessingStarted, header.FormatTime(in.started))
	h.Set(header.ProcessingEnded, header.FormatTime(now))
	h.Set(header.ProcessingEndpoint, in.e.host.Endpoint)
	h.Set(header.ProcessingMachine, in.e.host.Machine)
	h.Set(header.HostID, in.e.host.HostID)
	h.Set(header.HostDisplayName, in.e.host.DisplayName)
	return h
}
