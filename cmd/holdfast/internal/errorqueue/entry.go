// Package errorqueue lists the messages of an error queue, returns them to the queue that they
// failed in, and discards them.
package errorqueue

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/transport"
)

// Entry is the summary of a message in an error queue. Fields without a header are empty.
type Entry struct {
	ID       string    `json:"id"`
	Class    string    `json:"class,omitempty"`    // of the error
	Type     string    `json:"type,omitempty"`     // of the message
	Endpoint string    `json:"endpoint,omitempty"` // that it failed in
	Queue    string    `json:"failed_queue,omitempty"`
	FailedAt time.Time `json:"failed_at,omitzero"`
	Error    string    `json:"error,omitempty"`
	Attempts int       `json:"attempts,omitempty"`
	Returns  int       `json:"returns,omitempty"` // from the error queue so far
	Bytes    int       `json:"bytes"`             // of the body
	// Undecodable is the reason why the message could not be decoded.
	Undecodable string `json:"undecodable,omitempty"`

	types   []string // all enclosed ones
	stack   string
	control bool // a message between tools, as ServiceControl's acknowledgements, that is no failure
}

// Record is all of a message.
type Record struct {
	Entry
	NativeID string            `json:"native_id,omitempty"`
	Headers  header.Map        `json:"headers"`
	Native   map[string]string `json:"native,omitempty"`
	Body     []byte            `json:"body"` // base64 in JSON
}

// undecodableClass is the class of an undecodable message without another one.
const undecodableClass = "undecodable"

// EntryOf returns the entry of a message, from its headers.
func EntryOf(m *transport.Message) Entry {
	h := m.Headers
	e := Entry{
		ID:       m.ID,
		Class:    cmp.Or(h.Get(header.HoldfastFaultClass), h.Get(header.ExceptionType)),
		Endpoint: h.Get(header.ProcessingEndpoint),
		Queue:    h.Get(header.FailedQ),
		Error:    h.Get(header.ExceptionMessage),
		Returns:  fault.Returns(h),
		Bytes:    len(m.Body),
		types:    slices.Collect(header.TypeNames(h.Get(header.EnclosedMessageTypes))),
		stack:    h.Get(header.ExceptionStackTrace),
		control:  h.Get(header.ControlMessage) != "" && h.Get(header.FailedQ) == "",
	}
	if len(e.types) > 0 {
		e.Type = e.types[0]
	}
	e.FailedAt, _ = header.ParseTime(h.Get(header.TimeOfFailure)) // zero without one
	if n, err := strconv.Atoi(h.Get(header.HoldfastAttempts)); err == nil && n > 0 {
		e.Attempts = n
	}
	if m.Undecodable != nil {
		e.Undecodable = m.Undecodable.Error()
		e.Class = cmp.Or(e.Class, undecodableClass)
	}
	return e
}

// RecordOf returns the record of m, whose entry is e.
func RecordOf(m *transport.Message, e Entry) Record {
	return Record{Entry: e, NativeID: m.NativeID, Headers: m.Headers, Native: m.Native, Body: m.Body}
}
