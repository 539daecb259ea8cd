package asb

import (
	"fmt"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// Names of the broker's properties, in [transport.Operation].Properties and in [transport.Message].Native. Others in an
// Operation are ignored.
const (
	PropertySubject        = "subject"
	PropertyTo             = "to"
	PropertySessionID      = "session-id"
	PropertyReplySessionID = "reply-to-session-id"
	PropertyPartitionKey   = "partition-key"

	// What follows is of received messages only.

	PropertyMessageID    = "message-id"    // where another producer wrote it
	PropertyEnqueuedTime = "enqueued-time" // same; RFC 3339
	// PropertyDeadLetterReason, its description and source say why the broker has given a message up, and where.
	PropertyDeadLetterReason      = "DeadLetterReason"
	PropertyDeadLetterDescription = "DeadLetterErrorDescription"
	PropertyDeadLetterSource      = "DeadLetterSource"
	// PropertyRetryError is why the last attempt failed, and PropertyRetryInstance where: an immediate retry leaves them in
	// the message's application properties, where the broker's tools show them.
	PropertyRetryError    = "Holdfast.Retry.Error"
	PropertyRetryInstance = "Holdfast.Retry.Instance"
)

// setProperties sets what an operation asks for.
func setProperties(msg *azservicebus.Message, properties map[string]string) error {
	for name, value := range properties {
		switch name {
		case PropertySubject:
			msg.Subject = &value
		case PropertyTo:
			msg.To = &value
		case PropertyReplySessionID:
			msg.ReplyToSessionID = &value
		case PropertySessionID, PropertyPartitionKey:
			if len(value) > maxID {
				return fmt.Errorf("asb: property %s %.40q: %d bytes is over the limit of %d", name, value, len(value), maxID)
			}
			if name == PropertySessionID {
				msg.SessionID = &value
			} else {
				msg.PartitionKey = &value
			}
		}
	}
	if msg.SessionID != nil && msg.PartitionKey != nil && *msg.SessionID != *msg.PartitionKey {
		return fmt.Errorf("asb: properties %s and %s differ: the broker wants them equal", PropertySessionID, PropertyPartitionKey)
	}
	return nil
}

// readNative puts into Native what the headers do not tell. How a message came is of interest where it is none of an
// endpoint's, which spares those the work.
func readNative(m *transport.Message, raw *azservicebus.ReceivedMessage) {
	set := func(name string, value *string) {
		if value != nil && *value != "" {
			native(m, name, *value)
		}
	}
	set(PropertySubject, raw.Subject)
	set(PropertyTo, raw.To)
	set(PropertySessionID, raw.SessionID)
	set(PropertyReplySessionID, raw.ReplyToSessionID)
	set(PropertyPartitionKey, raw.PartitionKey)
	set(PropertyDeadLetterSource, raw.DeadLetterSource)
	if _, ok := m.Headers.Lookup(header.MessageID); ok {
		return
	}
	set(PropertyMessageID, &raw.MessageID)
	if raw.EnqueuedTime != nil {
		native(m, PropertyEnqueuedTime, raw.EnqueuedTime.UTC().Format(time.RFC3339Nano))
	}
}

func native(m *transport.Message, name string, value any) {
	if m.Native == nil {
		m.Native = make(map[string]string, 2)
	}
	// One that has no text does not hinder the message.
	m.Native[name], _ = text(value)
}

// translated is a message as the user's function makes it.
func translated(m transport.Message, translate func(*transport.Message)) (out transport.Message) {
	out = m
	if translate == nil || m.Undecodable != nil {
		return out
	}
	defer func() {
		if v := recover(); v != nil {
			out.Undecodable = fmt.Errorf("asb: Transport.Translate panicked: %v", v)
		}
	}()
	translate(&out)
	return out
}
