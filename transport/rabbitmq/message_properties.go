package rabbitmq

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

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
func withProperties(msg *amqp.Publishing, properties map[string]string, user string) (*amqp.Publishing, error) {
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

// Translation implements [transport.Translator].
func (c *conn) Translation() func(*transport.Message) { return c.translate }
