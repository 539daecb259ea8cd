package otel

import (
	"go.opentelemetry.io/otel/attribute"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/transport"
)

// job returns the attributes of a message that is a job, by which its runs are found.
func job(m *transport.Message) (attrs []attribute.KeyValue) {
	id := m.Headers.Get(header.HoldfastJob)
	if id == "" || id != m.ID { // a job has the id of its message
		return nil
	}
	attrs = append(attrs, keyJob.String(errtree.Cut(id, maxID)))
	if name := m.Headers.Get(header.HoldfastJobSchedule); name != "" {
		attrs = append(attrs, keySchedule.String(errtree.Cut(name, maxID)),
			keyDue.String(errtree.Cut(m.Headers.Get(header.HoldfastJobDue), maxID)))
	}
	return attrs
}
