package settle

import (
	"cmp"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/failurelog"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/transport"
)

// numberedID begins the id of a message that has only the broker's number. Copies keep the id. The
// broker may give another message the same number when its database is restored, or when the queue
// is created anew.
const numberedID = "native:"

// IsNamed reports whether the sender has given the message its id, so that each other message has
// another id.
func IsNamed(id string) bool {
	return id != "" && !strings.HasPrefix(id, numberedID) && !transport.IsContentID(id)
}

// OriginalOf returns a received message as the sender made the message, and its id. A packed
// message is unpacked, whoever has returned it.
func OriginalOf(received *transport.Message) (m *transport.Message, id string) {
	m = received
	if _, packed := m.Headers.Lookup(header.HoldfastReceived); packed {
		m = copies.Unpacked(m)
	}
	if _, returned := m.Headers.Lookup(header.RetryUniqueID); returned {
		own := *m
		own.Headers, m = fault.ReturnedHeaders(m.Headers), &own
	}
	if id = cmp.Or(m.ID, m.Headers.Get(header.MessageID)); id == "" && m.NativeID != "" {
		id = numberedID + m.NativeID // of another producer
	}
	return m, id
}

// MaxLogged bounds a text of a message in a line of the log, in bytes. The sender of a message
// chooses the id and the type.
const MaxLogged = 512

// Message is a received message as its sender made the message.
type Message struct {
	Queue string // that the sender or the endpoint has sent the message to
	ID    string // perhaps only the broker's number
	// Original is the message as received, without the headers of the quarantine. The message that
	// Original points to never changes.
	Original *transport.Message
}

// LogID returns the id of the message for the log.
func (m *Message) LogID() string { return errtree.Cut(m.ID, MaxLogged) }

// FailureKey returns the key of the message in the memory of failures.
func (m *Message) FailureKey() failurelog.Key { return failurelog.KeyOf(m.Queue, m.ID) }

// CopyTo returns an operation that sends the message, as it was received, to a queue. The copy
// keeps the broker's id, so that a driver can distinguish copies of different deliveries, and the
// broker's properties, so that a driver can send them again.
func (m *Message) CopyTo(queue string, headers header.Map, after time.Duration) transport.Operation {
	headers.SetDefault(header.MessageID, m.ID)
	return transport.Operation{
		Message: &transport.Message{
			ID: m.ID, NativeID: m.Original.NativeID, Native: m.Original.Native,
			Headers: headers, Body: m.Original.Body,
		},
		Queue: queue, After: after,
	}
}

// FirstType returns the first type that the headers of a message name; "" for none.
func FirstType(h header.Map) string {
	for name := range header.TypeNames(h.Get(header.EnclosedMessageTypes)) {
		return name
	}
	return ""
}
