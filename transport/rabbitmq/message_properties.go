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
// [transport.Message].Native. Others in an Operation are ignored. Copies of a received message have app-id,
// content-encoding, priority, timestamp and type again.
const (
	PropertyAppID           = "app-id"
	PropertyContentEncoding = "content-encoding"
	PropertyUserID          = "user-id"   // has to be the user of the connection
	PropertyPriority        = "priority"  // 0 to 255
	PropertyTimestamp       = "timestamp" // RFC 3339, whole seconds
	PropertyType            = "type"
	// PropertyDeliveryMode is "persistent" or "transient"; what is sent is persistent unless set, here or by
	// NServiceBus's header. Received: "transient", or not there.
	PropertyDeliveryMode = "delivery-mode"
	// PropertyExchange and PropertyRoutingKey say how a message of another producer came: received only.
	PropertyExchange   = "exchange"
	PropertyRoutingKey = "routing-key"
)

const (
	// nonPersistent is the header by which NServiceBus.RabbitMQ is asked for a transient message. It is not sent.
	nonPersistent = "NServiceBus.Transport.RabbitMQ.UseNonPersistentDelivery"

	persistentMode = "persistent"
	transientMode  = "transient"
)

var errUserID = errors.New("rabbitmq: property user-id: it is not the user of the connection, and the broker takes no other")

// withProperties is a copy of a message with the properties of its operation. The broker closes the channel, with all
// that is under way, over a user who is not ours.
func withProperties(msg *amqp.Publishing, properties map[string]string, ours string) (*amqp.Publishing, error) {
	if len(properties) == 0 {
		return msg, nil
	}
	own := *msg
	for name, value := range properties {
		if err := setProperty(&own, name, value); err != nil {
			return nil, fmt.Errorf("rabbitmq: property %s %.40q: %w", name, value, err)
		}
	}
	if own.UserId != "" && ours != "" && own.UserId != ours {
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
		msg.Priority = uint8(n)
		return err
	case PropertyTimestamp:
		at, err := time.Parse(time.RFC3339, value)
		msg.Timestamp = at
		return err
	case PropertyDeliveryMode:
		return setMode(msg, value)
	}
	return nil
}

// sentAgain are the properties that copies of a received message have again. The others are about its delivery, or
// about who sent it.
var sentAgain = []string{PropertyAppID, PropertyContentEncoding, PropertyPriority, PropertyTimestamp, PropertyType}

// sendAgain sets the properties that a received message had. One that cannot be sent is left out.
func sendAgain(msg *amqp.Publishing, native map[string]string) {
	if len(native) == 0 {
		return
	}
	for _, name := range sentAgain {
		value, ok := native[name]
		if !ok {
			continue
		}
		without := *msg
		if err := setProperty(msg, name, value); err != nil {
			*msg = without
		}
	}
}

// bare is a message without them, for a copy that has no room for them.
func bare(msg *amqp.Publishing) amqp.Publishing {
	own := *msg
	own.AppId, own.ContentEncoding, own.Priority, own.Timestamp = "", "", 0, time.Time{}
	own.Type, _ = own.Headers[header.EnclosedMessageTypes].(string)
	own.Type = firstType(own.Type)
	return own
}

func setMode(msg *amqp.Publishing, value string) error {
	switch value {
	case persistentMode:
		msg.DeliveryMode = amqp.Persistent
	case transientMode:
		msg.DeliveryMode = amqp.Transient
	default:
		return errors.New(`it is "persistent" or "transient"`)
	}
	return nil
}

// properties puts into Native what the headers do not tell. How a message came is of interest where it is
// none of an endpoint's, which spares those the work.
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
	if _, ok := m.Headers.Lookup(header.MessageID); ok {
		if d.Type != firstType(m.Headers.Get(header.EnclosedMessageTypes)) {
			set(PropertyType, d.Type)
		}
		return
	}
	set(PropertyType, d.Type)
	set(PropertyExchange, d.Exchange)
	set(PropertyRoutingKey, d.RoutingKey)
}

// read makes the message of a delivery, and has the user's function translate it.
func (c *conn) read(d *amqp.Delivery) transport.Message {
	m := decode(d)
	properties(&m, d)
	if c.translate == nil || m.Undecodable != nil {
		return m
	}
	return translated(m, c.translate)
}

func translated(m transport.Message, translate func(*transport.Message)) (out transport.Message) {
	out = m
	defer func() {
		if v := recover(); v != nil {
			out.Undecodable = fmt.Errorf("rabbitmq: Transport.Translate panicked: %v", v)
		}
	}()
	translate(&out)
	return out
}
