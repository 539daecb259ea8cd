package asb

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	// encodingHeader is written by old versions of NServiceBus and describes the body only.
	encodingHeader = "NServiceBus.Transport.Encoding"
	// legacyEncoding is an encoding of bodies that only .NET reads.
	legacyEncoding = "wcf/byte-array"

	maxID       = 128
	maxProperty = 32 << 10 // of one application property
	maxTogether = 64 << 10 // of all
	// perProperty is the size of a property beside its name and value.
	perProperty = 10
)

// decode returns the message of a delivery. Properties stand in for headers that other producers do
// not write.
func decode(raw *azservicebus.ReceivedMessage) transport.Message {
	var m transport.Message
	m.Headers.Reserve(len(raw.ApplicationProperties) + 3)
	if raw.SequenceNumber != nil {
		m.NativeID = strconv.FormatInt(*raw.SequenceNumber, 10)
	}
	readBody(&m, raw)
	readHeaders(&m, raw.ApplicationProperties)
	fillIn(&m.Headers, header.ReplyToAddress, raw.ReplyTo)
	fillIn(&m.Headers, header.CorrelationID, raw.CorrelationID)
	fillIn(&m.Headers, header.ContentType, raw.ContentType)
	if m.ID = cmp.Or(m.Headers.Get(header.MessageID), raw.MessageID); m.ID == "" {
		m.ID = positionID(raw)
	}
	readNative(&m, raw)
	return m
}

func readHeaders(m *transport.Message, properties map[string]any) {
	types, _ := properties[header.EnclosedMessageTypes].(string)
	for name, value := range properties {
		s, err := text(value)
		switch name {
		case PropertyDeadLetterReason, PropertyDeadLetterDescription, PropertyRetryError, PropertyRetryInstance:
			native(m, name, s) // it is about this delivery, and does not travel with a copy
			continue
		case encodingHeader:
			if s == legacyEncoding {
				undecodable(m, fmt.Errorf("asb: the body is in the form %q, which only .NET reads", s))
			}
			continue
		}
		if value == true && isType(name, types) { // for the rules of a shared topic
			continue
		}
		if err != nil {
			undecodable(m, fmt.Errorf("asb: property %q: %w", name, err))
		}
		m.Headers.Set(name, s)
	}
}

func undecodable(m *transport.Message, err error) {
	if m.Undecodable == nil {
		m.Undecodable = err
	}
}

func isType(name, enclosed string) bool {
	for kind := range header.TypeNames(enclosed) {
		if kind == name {
			return true
		}
	}
	return false
}

// readBody reads the body from any section.
func readBody(m *transport.Message, raw *azservicebus.ReceivedMessage) {
	m.Body = raw.Body
	if m.Body != nil || raw.RawAMQPMessage == nil {
		return
	}
	body := raw.RawAMQPMessage.Body
	switch value := body.Value.(type) {
	case nil:
	case []byte:
		m.Body = value
	case string:
		m.Body = []byte(value)
	default:
		undecodable(m, fmt.Errorf("asb: the body is a value of type %T: neither bytes nor text", value))
	}
	if len(body.Sequence) > 0 {
		undecodable(m, fmt.Errorf("asb: the body is a sequence of %d lists", len(body.Sequence)))
	}
	if len(body.Data) > 1 {
		m.Body = slices.Concat(body.Data...)
	}
}

func fillIn(h *header.Map, name string, property *string) {
	if property != nil && *property != "" {
		h.SetDefault(name, *property)
	}
}

// positionID returns an id for a message without one, derived from its place in the queue: the same
// at each delivery, and that of no other message.
func positionID(raw *azservicebus.ReceivedMessage) string {
	h := sha256.New()
	if raw.EnqueuedTime != nil {
		fmt.Fprintf(h, "%d,", raw.EnqueuedTime.UnixMilli())
	}
	if raw.SequenceNumber != nil {
		fmt.Fprint(h, *raw.SequenceNumber)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// attemptOf returns the delivery count. The broker's does not include this delivery, and the
// library's is not set for a message without a section of properties.
func attemptOf(raw *azservicebus.ReceivedMessage) int {
	n := int(raw.DeliveryCount)
	if raw.RawAMQPMessage != nil && raw.RawAMQPMessage.Header != nil {
		n = int(raw.RawAMQPMessage.Header.DeliveryCount) + 1
	}
	return max(n, 1)
}

// text returns a property's value as text.
func text(value any) (string, error) {
	switch v := value.(type) {
	case string:
		return v, nil
	case []byte:
		return string(v), nil
	case nil:
		return "", nil
	case bool:
		return strconv.FormatBool(v), nil
	case float32:
		return strconv.FormatFloat(float64(v), 'g', -1, 32), nil
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64), nil
	case int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64:
		return fmt.Sprint(v), nil
	case time.Time:
		if y := v.UTC().Year(); y < 0 || y > 9999 {
			return strconv.FormatInt(v.Unix(), 10), fmt.Errorf("the time %d s after 1970 is out of range", v.Unix())
		}
		return header.FormatTime(v), nil
	case fmt.Stringer: // a UUID
		return v.String(), nil
	}
	return fmt.Sprint(value), fmt.Errorf("a value of type %T has no text", value)
}

// encode returns the message of an operation: headers as application properties, and properties
// that repeat some of them, as other clients expect. stamps are types for the rules of a shared
// topic.
func encode(op *transport.Operation, stamps []string) (*azservicebus.Message, error) {
	m := op.Message
	properties := make(map[string]any, m.Headers.Len()+len(stamps))
	for name, value := range m.Headers.All() {
		properties[name] = value
	}
	for _, kind := range stamps {
		properties[kind] = true
	}
	id := nativeID(m)
	if len(id) > maxID {
		id = hash16(id) + "-" + lastOf(id, maxID/2)
		if _, ok := properties[header.MessageID]; !ok {
			properties[header.MessageID] = m.ID
		}
	}
	msg := &azservicebus.Message{
		ApplicationProperties: properties,
		Body:                  m.Body,
		MessageID:             &id,
		CorrelationID:         property(m.Headers.Get(header.CorrelationID)),
		ReplyTo:               property(m.Headers.Get(header.ReplyToAddress)),
		ContentType:           property(m.Headers.Get(header.ContentType)),
		TimeToLive:            timeToLive(op.TTL),
	}
	if m.ID == "" {
		msg.MessageID = nil // the client library sets one
	}
	return msg, setProperties(msg, op.Properties)
}

// lastOf returns the last characters of s, n bytes at most.
func lastOf(s string, n int) string {
	s = s[len(s)-n:]
	for s != "" && !utf8.RuneStart(s[0]) {
		s = s[1:]
	}
	return s
}

// checkText fails for a text that is not valid UTF-8: the client library ends the connection over
// it (AMQP 1.0, part 1.6.20). In a copy of a received message wrong bytes are replaced instead,
// because the copy must not be refused.
func checkText(msg *azservicebus.Message, isCopy bool) error {
	texts := map[string]*string{
		"message id": msg.MessageID, "correlation id": msg.CorrelationID, "reply-to address": msg.ReplyTo, "content type": msg.ContentType,
		"session id": msg.SessionID, "partition key": msg.PartitionKey, "subject": msg.Subject, "to": msg.To, "reply-to session id": msg.ReplyToSessionID,
	}
	for what, text := range texts {
		switch {
		case text == nil || utf8.ValidString(*text):
		case !isCopy:
			return fmt.Errorf("the %s %.100q is not valid UTF-8: %w", what, *text, transport.ErrContent)
		default:
			*text = strings.ToValidUTF8(*text, "\uFFFD")
		}
	}
	for name, value := range msg.ApplicationProperties {
		text, _ := value.(string)
		switch {
		case utf8.ValidString(name) && utf8.ValidString(text):
		case !isCopy:
			return fmt.Errorf("the header %.100q with the value %.100q is not valid UTF-8: %w", name, text, transport.ErrContent)
		default:
			delete(msg.ApplicationProperties, name)
			if _, isText := value.(string); isText {
				value = strings.ToValidUTF8(text, "\uFFFD")
			}
			msg.ApplicationProperties[strings.ToValidUTF8(name, "\uFFFD")] = value
		}
	}
	return nil
}

func property(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// nativeID returns the id for the broker's duplicate detection. A copy that is sent because of a
// failure is another message for the broker, so its id has further parts, which are the same when
// the copy is sent twice.
func nativeID(m *transport.Message) string {
	retries, returns := m.Headers.Get(header.Retries), m.Headers.Get(header.HoldfastReturns)
	_, known := m.Headers.Lookup(header.MessageID) // without it the receiver could not find the id
	if !known || retries == "" && returns == "" && m.NativeID == "" {
		return m.ID
	}
	return strings.TrimRight(m.ID+"/"+number(retries)+"."+number(returns)+"."+m.NativeID, ".")
}

func number(s string) string {
	if _, err := strconv.ParseUint(s, 10, 32); err != nil {
		return "0"
	}
	return s
}

// maxTTL is the longest time to live of the protocol's header.
const maxTTL = (1<<32 - 1) * time.Millisecond

// timeToLive returns ttl in whole milliseconds, rounded up, or nil if it is over the protocol's
// maximum.
func timeToLive(ttl time.Duration) *time.Duration {
	if ttl <= 0 || ttl > maxTTL {
		return nil
	}
	ttl = (ttl + time.Millisecond - 1).Truncate(time.Millisecond)
	return &ttl
}

// reserve is the part of a message's size that is reserved for the headers that endpoints write.
const reserve = 16 << 10

// sizeOfText returns the size of a text with its type and length (AMQP 1.0, part 1.6.20).
func sizeOfText(s string) int {
	if len(s) < 256 {
		return len(s) + 2
	}
	return len(s) + 5
}

// checkSize returns the size of msg, and an error if the broker would refuse it because it is over
// the limit most. The total size of a copy is left to the broker, which has accepted the original.
func checkSize(msg *azservicebus.Message, most int, isCopy bool) (size int, err error) {
	if body := most - reserve; len(msg.Body) > body && !isCopy {
		return 0, &transport.TooLargeError{What: "body", Size: len(msg.Body), Max: body}
	}
	for name, value := range msg.ApplicationProperties {
		v, _ := value.(string)
		one := len(name) + len(v) + perProperty
		if one > maxProperty+perProperty {
			return 0, fmt.Errorf("header %.100q: %w", name, &transport.TooLargeError{What: "headers", Size: one, Max: maxProperty})
		}
		size += sizeOfText(name) + sizeOfText(v)
	}
	if size > maxTogether {
		return 0, &transport.TooLargeError{What: "headers", Size: size, Max: maxTogether}
	}
	const sections = 160
	size += len(msg.Body) + sections
	for _, s := range []*string{msg.MessageID, msg.CorrelationID, msg.ReplyTo, msg.ContentType, msg.SessionID, msg.PartitionKey, msg.Subject, msg.To} {
		if s != nil {
			size += len(*s) + 5
		}
	}
	if size > most && !isCopy {
		return 0, &transport.TooLargeError{What: "message", Size: size, Max: most}
	}
	return size, nil
}

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
