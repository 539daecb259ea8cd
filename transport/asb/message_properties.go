package asb

import (
	"fmt"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// Names of the broker's properties, in [transport.Operation].Properties and in
// [transport.Message].Native. Others in an Operation are ignored.
const (
	PropertySubject        = "subject"
	PropertyTo             = "to"
	PropertySessionID      = "session-id"
	PropertyReplySessionID = "reply-to-session-id"
	PropertyPartitionKey   = "partition-key"

	// Copies of a received message have the properties above again. Those below are of received
	// messages only.

	PropertyMessageID    = "message-id"    // of messages of other producers
	PropertyEnqueuedTime = "enqueued-time" // same; RFC 3339
	// PropertyDeadLetterReason and PropertyDeadLetterDescription are the broker's reason for
	// dead-lettering a message, and PropertyDeadLetterSource is the queue in which it did.
	PropertyDeadLetterReason      = "DeadLetterReason"
	PropertyDeadLetterDescription = "DeadLetterErrorDescription"
	PropertyDeadLetterSource      = "DeadLetterSource"
	// PropertyRetryError is the error of the last attempt, and PropertyRetryInstance its instance.
	// An immediate retry writes them to the message's application properties, where the broker's
	// tools show them.
	PropertyRetryError    = "Holdfast.Retry.Error"
	PropertyRetryInstance = "Holdfast.Retry.Instance"
)

// propertyOf returns the field of a message that holds a property, or nil if it is not one to be
// sent.
func propertyOf(msg *azservicebus.Message, name string) **string {
	switch name {
	case PropertySubject:
		return &msg.Subject
	case PropertyTo:
		return &msg.To
	case PropertySessionID:
		return &msg.SessionID
	case PropertyReplySessionID:
		return &msg.ReplyToSessionID
	case PropertyPartitionKey:
		return &msg.PartitionKey
	}
	return nil
}

// setProperties sets the properties of an operation.
func setProperties(msg *azservicebus.Message, properties map[string]string) error {
	if len(properties) == 0 {
		return nil
	}
	for name, value := range properties {
		if field := propertyOf(msg, name); field != nil {
			*field = &value
		}
	}
	for name, value := range map[string]*string{PropertySessionID: msg.SessionID, PropertyPartitionKey: msg.PartitionKey} {
		if value != nil && len(*value) > maxID {
			return fmt.Errorf("asb: property %s %.40q: %d bytes is over the limit of %d (%w)", name, *value, len(*value), maxID, transport.ErrContent)
		}
	}
	if !sameSession(msg) {
		return fmt.Errorf("asb: properties %s and %s differ: the broker requires them to be equal (%w)",
			PropertySessionID, PropertyPartitionKey, transport.ErrContent)
	}
	return nil
}

// sameSession reports whether the message session's id and the partition key are equal, as the
// broker requires.
func sameSession(msg *azservicebus.Message) bool {
	return msg.SessionID == nil || msg.PartitionKey == nil || *msg.SessionID == *msg.PartitionKey
}

// sendAgain copies the properties of a received message that the operation does not set, and
// returns their names. Properties that the broker would refuse are left out.
func sendAgain(msg *azservicebus.Message, native map[string]string) (names []string) {
	if len(native) == 0 {
		return nil
	}
	for _, name := range []string{PropertySessionID, PropertyPartitionKey, PropertySubject, PropertyTo, PropertyReplySessionID} {
		value, field := native[name], propertyOf(msg, name)
		unbounded := name == PropertySubject || name == PropertyTo
		if value == "" || *field != nil || len(value) > maxID && !unbounded {
			continue
		}
		*field = &value
		if !sameSession(msg) {
			*field = nil
			continue
		}
		names = append(names, name)
	}
	return names
}

// readNative sets Native to properties that no header repeats. Messages of endpoints do without
// message-id and enqueued-time, which saves time.
func readNative(m *transport.Message, raw *azservicebus.ReceivedMessage) {
	native(m, PropertySubject, valueOr(raw.Subject, ""))
	native(m, PropertyTo, valueOr(raw.To, ""))
	native(m, PropertySessionID, valueOr(raw.SessionID, ""))
	native(m, PropertyReplySessionID, valueOr(raw.ReplyToSessionID, ""))
	native(m, PropertyPartitionKey, valueOr(raw.PartitionKey, ""))
	native(m, PropertyDeadLetterSource, valueOr(raw.DeadLetterSource, ""))
	if _, ok := m.Headers.Lookup(header.MessageID); ok {
		return
	}
	native(m, PropertyMessageID, raw.MessageID)
	if raw.EnqueuedTime != nil {
		native(m, PropertyEnqueuedTime, raw.EnqueuedTime.UTC().Format(time.RFC3339Nano))
	}
}

func native(m *transport.Message, name, value string) {
	if value == "" {
		return
	}
	if m.Native == nil {
		m.Native = make(map[string]string, 2)
	}
	m.Native[name] = value
}

// Translation implements [transport.Translator].
func (c *conn) Translation() func(*transport.Message) { return c.ns.Translate }
