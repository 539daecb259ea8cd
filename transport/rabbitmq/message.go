package rabbitmq

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/big"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	// deliveryCount is the header in which quorum queues count earlier deliveries.
	deliveryCount = "x-delivery-count"
	// acquiredCount is the header in which they also count, from 4.3, deliveries that were
	// released.
	acquiredCount = "x-acquired-count"
	// publishNumber is the header in which the .NET client numbers the messages of a channel, for
	// its confirms.
	publishNumber = "x-dotnet-pub-seq-no"
)

// maxShort is the longest short string of the protocol: names and properties.
const maxShort = 255

// decode returns the message of a delivery. Properties stand in for headers that other producers do
// not write. The header with the identity is preferred to the property, because ServiceControl
// returns a message to its queue with another property.
func decode(d *amqp.Delivery) transport.Message {
	m := transport.Message{Body: d.Body}
	m.Headers.Reserve(len(d.Headers) + 4)
	for name, value := range d.Headers {
		if isBrokers(name) {
			native(&m, name, value)
			continue
		}
		s, err := headerText(name, value)
		if err != nil && m.Undecodable == nil {
			m.Undecodable = err
		}
		m.Headers.Set(name, s)
	}
	fillIn(&m.Headers, header.EnclosedMessageTypes, d.Type)
	fillIn(&m.Headers, header.ContentType, d.ContentType)
	fillIn(&m.Headers, header.ReplyToAddress, d.ReplyTo)
	fillIn(&m.Headers, header.CorrelationID, d.CorrelationId)
	if m.ID = cmp.Or(m.Headers.Get(header.MessageID), d.MessageId); m.ID == "" {
		m.ID = contentID(d)
	}
	properties(&m, d)
	return m
}

// headerText returns a header's value as text.
func headerText(name string, value any) (string, error) {
	if saved, ok := value.([]byte); ok && name == header.UndecodableHeaders {
		return header.FormatUndecodable(string(saved)), undecodable(saved)
	}
	s, err := text(value)
	if err != nil {
		err = fmt.Errorf("rabbitmq: header %q: %w", name, err)
	}
	return s, err
}

// isBrokers reports whether a header is written by the broker, by the client or for a delay, or
// routes the message: it is a fact about this delivery, and must not be sent with a copy.
func isBrokers(name string) bool {
	if name == expiresAt || name == delayedBy || routes(name) {
		return true
	}
	return strings.HasPrefix(name, "x-") && (name == deliveryCount || name == acquiredCount ||
		name == publishNumber || name == "x-death" || strings.HasPrefix(name, "x-first-death-") || strings.HasPrefix(name, "x-last-death-"))
}

// routes reports whether a header has more routing keys. The broker removes BCC, and refuses a
// value that is no list.
func routes(name string) bool { return name == "CC" || name == "BCC" }

func native(m *transport.Message, name string, value any) {
	if m.Native == nil {
		m.Native = make(map[string]string, 1)
	}
	// A value without a text is left out.
	m.Native[name], _ = text(value)
}

func fillIn(h *header.Map, name, property string) {
	if property != "" {
		h.SetDefault(name, property)
	}
}

// attemptOf returns the delivery count. Quorum queues count exactly and leave the header out of the
// first delivery, where only the sender can have set it; classic queues report only that there was
// an earlier delivery.
func attemptOf(d *amqp.Delivery, queueType QueueType) transport.Attempt {
	if !d.Redelivered {
		return transport.Attempt{N: 1, Exact: queueType == Quorum}
	}
	if count, ok := integer(d.Headers[deliveryCount]); ok && count >= 0 && count < math.MaxInt32 {
		return transport.Attempt{N: int(count) + 1, Exact: true}
	}
	if _, ok := integer(d.Headers[acquiredCount]); ok {
		return transport.Attempt{N: 1, Exact: true} // released, and nothing else
	}
	return transport.Attempt{N: 2}
}

// isUnnamed reports whether the producer gave the message no id. A copy of such a message has the
// id of its content.
func isUnnamed(d *amqp.Delivery) bool {
	id, _ := d.Headers[header.MessageID].(string)
	id = cmp.Or(id, d.MessageId)
	return id == "" || transport.IsContentID(id)
}

// contentID returns the id of a message without one.
func contentID(d *amqp.Delivery) string {
	h := sha256.New()
	part := func(s string) { fmt.Fprintf(h, "%d:%s,", len(s), s) }
	for _, name := range slices.Sorted(maps.Keys(d.Headers)) {
		if isBrokers(name) {
			continue
		}
		s, _ := text(d.Headers[name])
		part(name)
		part(s)
	}
	for _, s := range []string{d.Type, d.ContentType, d.CorrelationId, d.ReplyTo, d.AppId, d.Timestamp.UTC().String()} {
		part(s)
	}
	part(string(d.Body))
	return transport.ContentID([16]byte(h.Sum(nil)))
}

// text returns a header's value as text: lists and tables as JSON.
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
	case time.Time:
		if y := v.UTC().Year(); y < 0 || y > 9999 {
			return strconv.FormatInt(v.Unix(), 10), fmt.Errorf("the time %d s after 1970 is out of range", v.Unix())
		}
		return header.FormatTime(v), nil
	case amqp.Decimal:
		unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(v.Scale)), nil)
		return new(big.Rat).SetFrac(big.NewInt(int64(v.Value)), unit).FloatString(int(v.Scale)), nil
	case amqp.Table, []any:
		var first error
		b, err := json.Marshal(jsonValue(v, &first))
		return string(b), cmp.Or(err, first)
	}
	if n, ok := integer(value); ok {
		return strconv.FormatInt(n, 10), nil
	}
	return fmt.Sprint(value), fmt.Errorf("a value of type %T has no text", value)
}

func integer(value any) (int64, bool) {
	switch v := reflect.ValueOf(value); {
	case v.CanInt():
		return v.Int(), true
	case v.CanUint():
		return int64(v.Uint()), true
	default:
		return 0, false
	}
}

// jsonValue returns numbers, booleans and nil unchanged and everything else as text, so that bytes
// are readable and JSON has every number.
func jsonValue(value any, first *error) any {
	switch v := value.(type) {
	case amqp.Table:
		out := make(map[string]any, len(v))
		for name, item := range v {
			out[name] = jsonValue(item, first)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = jsonValue(item, first)
		}
		return out
	case nil, bool:
		return v
	}
	if n, ok := integer(value); ok {
		return n
	}
	s, err := text(value)
	if err != nil && *first == nil {
		*first = err
	}
	return s
}

// encode returns the AMQP message of a message. Properties repeat headers that fit, as other
// clients expect.
func encode(m *transport.Message) amqp.Publishing {
	table := make(amqp.Table, m.Headers.Len()+1)
	mode := amqp.Persistent
	for name, value := range m.Headers.All() {
		if name == nonPersistent {
			mode = amqp.Transient
			continue
		}
		table[name] = value
	}
	p := amqp.Publishing{
		Headers: table, Body: m.Body, DeliveryMode: mode,
		MessageId:     short(m.ID),
		CorrelationId: short(m.Headers.Get(header.CorrelationID)),
		ReplyTo:       short(m.Headers.Get(header.ReplyToAddress)),
		ContentType:   short(m.Headers.Get(header.ContentType)),
		Type:          firstType(m.Headers.Get(header.EnclosedMessageTypes)),
	}
	if p.MessageId == "" && m.ID != "" {
		table[header.MessageID] = m.ID
	}
	sendAgain(&p, m.Native)
	return p
}

func short(s string) string {
	if len(s) > maxShort {
		return ""
	}
	return s
}

func firstType(enclosed string) string {
	for name := range header.TypeNames(enclosed) {
		return short(name)
	}
	return ""
}

// expiration returns a TTL in whole milliseconds, rounded up; "" for none and beyond the broker's
// limit of 49 days.
func expiration(ttl time.Duration) string {
	if ttl <= 0 {
		return ""
	}
	ms := ttl.Milliseconds() + int64(min(1, ttl%time.Millisecond))
	if ms > math.MaxUint32 {
		return ""
	}
	return strconv.FormatInt(ms, 10)
}

// check fails where p cannot be sent: the client library closes the connection over a name that is
// too long, and the broker over a frame that is too long. No client of the library can receive more
// than 8,192 headers.
func check(p *amqp.Publishing, maxBody, frameSize int) error {
	if len(p.Body) > maxBody {
		return &transport.TooLargeError{What: "body", Size: len(p.Body), Max: maxBody}
	}
	if n := len(p.Headers); n > maxElements {
		return &transport.TooLargeError{What: "header count", Size: n, Max: maxElements}
	}
	for name, value := range p.Headers {
		if len(name) > maxShort {
			return fmt.Errorf("header name %.40q...: %w", name,
				&transport.TooLargeError{What: "headers", Size: len(name), Max: maxShort})
		}
		if _, isText := value.(string); isText && routes(name) {
			return fmt.Errorf("rabbitmq: header %q: the broker routes messages by it: use another name (%w)", name, transport.ErrContent)
		}
	}
	const envelope = frameStart + 1
	if size, limit := sizeOfHeader(p), frameSize-envelope; frameSize > 0 && size > limit {
		return &transport.TooLargeError{What: "headers", Size: size, Max: limit}
	}
	return nil
}

// smallReserve is more than the properties of a message, the headers that the driver adds and the
// headers that the broker adds need in a frame.
const smallReserve = 16 << 10

// isSmall reports whether check accepts the message of an operation for certain. A result of false
// means nothing. isSmall allocates nothing: most messages of an outbox need no more than this
// check.
func isSmall(op *transport.Operation, maxBody, frameSize int) bool {
	m := op.Message
	if len(op.Properties) > 0 || len(m.Native) > 0 || len(m.ID) > maxShort || len(m.Body) > maxBody ||
		m.Headers.Len() > maxElements/2 {
		return false
	}
	size := smallReserve
	for name, value := range m.Headers.All() {
		if len(name) > maxShort || routes(name) {
			return false
		}
		size += 1 + len(name) + 5 + len(value)
	}
	return frameSize == 0 || size <= frameSize
}

// sizeOfHeader returns the size of the content header of a message, as the client library writes
// the frame, without the frame's envelope. A header is a text, or a list of one text: see
// withDelay.
func sizeOfHeader(p *amqp.Publishing) int {
	size := propertiesStart
	if len(p.Headers) > 0 {
		size += 4
	}
	for name, value := range p.Headers {
		s, _ := value.(string)
		if keys, isList := value.([]any); isList {
			s, _ = keys[0].(string)
			size += 5
		}
		size += 1 + len(name) + 5 + len(s)
	}
	if p.DeliveryMode > 0 {
		size++
	}
	if p.Priority > 0 {
		size++
	}
	if !p.Timestamp.IsZero() {
		size += 8
	}
	for _, s := range []string{
		p.MessageId, p.CorrelationId, p.ReplyTo, p.ContentType, p.Type, p.Expiration, p.AppId, p.UserId, p.ContentEncoding,
	} {
		if s != "" {
			size += 1 + len(s)
		}
	}
	return size
}

// Names of the protocol's properties, in [transport.Operation].Properties and in
// [transport.Message].Native. Others in an Operation are ignored. Copies of a received message have
// app-id, content-encoding, priority, timestamp and type again.
const (
	PropertyAppID           = "app-id"
	PropertyContentEncoding = "content-encoding"
	PropertyUserID          = "user-id"   // has to be the user of the connection
	PropertyPriority        = "priority"  // 0 to 255
	PropertyTimestamp       = "timestamp" // RFC 3339, whole seconds
	PropertyType            = "type"
	// PropertyDeliveryMode is "persistent" or "transient". Messages are sent persistent unless it
	// is set, or NServiceBus's header is. Received messages have "transient" or nothing.
	PropertyDeliveryMode = "delivery-mode"
	// PropertyExchange and PropertyRoutingKey are those of a received message of another producer.
	PropertyExchange   = "exchange"
	PropertyRoutingKey = "routing-key"
)

const (
	// nonPersistent is the header by which NServiceBus.RabbitMQ is asked for a transient message.
	// It is not sent.
	nonPersistent = "NServiceBus.Transport.RabbitMQ.UseNonPersistentDelivery"

	persistentMode = "persistent"
	transientMode  = "transient"
)

var errUserID = fmt.Errorf("rabbitmq: property user-id: it is not the user of the connection, and the broker refuses others (%w)", transport.ErrContent)

// withProperties returns a copy of a message with the properties of its operation. The broker
// closes the channel, and the messages in flight with it, over a user-id that is not the user of
// the connection; an empty user is unknown.
func withProperties(
	msg *amqp.Publishing, properties map[string]string, user string,
) (*amqp.Publishing, error) {
	if len(properties) == 0 {
		return msg, nil
	}
	own := *msg
	for name, value := range properties {
		if err := setProperty(&own, name, value); err != nil {
			return nil, fmt.Errorf("rabbitmq: property %s %.40q: %w (%w)", name, value, err, transport.ErrContent)
		}
	}
	if own.UserId != "" && user != "" && own.UserId != user {
		return nil, errUserID
	}
	return &own, nil
}

func setProperty(msg *amqp.Publishing, name, value string) error {
	texts := map[string]*string{
		PropertyAppID: &msg.AppId, PropertyContentEncoding: &msg.ContentEncoding,
		PropertyUserID: &msg.UserId, PropertyType: &msg.Type,
	}
	if text := texts[name]; text != nil {
		if len(value) > maxShort {
			return fmt.Errorf("%d bytes is over the limit of %d", len(value), maxShort)
		}
		*text = value
		return nil
	}
	switch name {
	case PropertyPriority:
		n, err := strconv.ParseUint(value, 10, 8)
		if err != nil {
			return err
		}
		msg.Priority = uint8(n)
	case PropertyTimestamp:
		at, err := time.Parse(time.RFC3339, value)
		if err != nil {
			return err
		}
		msg.Timestamp = at
	case PropertyDeliveryMode:
		switch value {
		case persistentMode:
			msg.DeliveryMode = amqp.Persistent
		case transientMode:
			msg.DeliveryMode = amqp.Transient
		default:
			return errors.New(`it is "persistent" or "transient"`)
		}
	}
	return nil
}

// sentAgain are the properties that copies of a received message have too. Others are about its
// delivery or sender.
var sentAgain = []string{PropertyAppID, PropertyContentEncoding, PropertyPriority, PropertyTimestamp, PropertyType}

// sendAgain sets the properties of a received message. One that cannot be sent is left out.
func sendAgain(msg *amqp.Publishing, native map[string]string) {
	for _, name := range sentAgain {
		if value, ok := native[name]; ok {
			_ = setProperty(msg, name, value)
		}
	}
}

// bare returns a message without these properties, for a copy that has no room for them.
func bare(msg *amqp.Publishing) amqp.Publishing {
	own := *msg
	own.AppId, own.ContentEncoding, own.Priority, own.Timestamp = "", "", 0, time.Time{}
	own.Type, _ = own.Headers[header.EnclosedMessageTypes].(string)
	own.Type = firstType(own.Type)
	return own
}

// properties sets Native. Exchange and routing key are left out of messages of endpoints, which
// saves time.
func properties(m *transport.Message, d *amqp.Delivery) {
	set := func(name, value string) {
		if value != "" {
			native(m, name, value)
		}
	}
	set(PropertyAppID, d.AppId)
	set(PropertyContentEncoding, d.ContentEncoding)
	set(PropertyUserID, d.UserId)
	if d.DeliveryMode == amqp.Transient {
		set(PropertyDeliveryMode, transientMode)
	}
	if d.Priority > 0 {
		set(PropertyPriority, strconv.Itoa(int(d.Priority)))
	}
	if !d.Timestamp.IsZero() {
		set(PropertyTimestamp, d.Timestamp.UTC().Format(time.RFC3339))
	}
	_, fromEndpoint := m.Headers.Lookup(header.MessageID)
	if !fromEndpoint || d.Type != firstType(m.Headers.Get(header.EnclosedMessageTypes)) {
		set(PropertyType, d.Type)
	}
	if !fromEndpoint {
		set(PropertyExchange, d.Exchange)
		set(PropertyRoutingKey, d.RoutingKey)
	}
}
