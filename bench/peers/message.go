package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/uuid"
)

// accounts is the number of business rows that the messages change.
const accounts = 1000

// bodySize is the size of a body in bytes.
const bodySize = 200

// watermillID is the header that Watermill reads the id of a message from. All messages have it, so
// that all have the same number of headers.
const watermillID = "_watermill_message_uuid"

// order is the body of every message.
type order struct {
	OrderID  string    `json:"orderId"`
	Account  int       `json:"account"`
	PlacedAt time.Time `json:"placedAt"`
	Currency string    `json:"currency"`
	Total    float64   `json:"total"`
	Notes    string    `json:"notes"`
}

// A message is a message to send.
type message struct {
	id      string
	headers map[string]string
	body    []byte
}

// first returns the i-th message to be received.
func first(i int) (message, error) {
	o := order{
		OrderID: uuid.New(time.Now()), Account: i % accounts, PlacedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Currency: "EUR", Total: 129.95,
	}
	body, err := json.Marshal(o)
	if err != nil {
		return message{}, err
	}
	o.Notes = strings.Repeat("x", max(0, bodySize-len(body)))
	return newMessage(o, "")
}

// decode returns the order of a received message.
func decode(body []byte) (order, error) {
	var o order
	if err := json.Unmarshal(body, &o); err != nil {
		return order{}, fmt.Errorf("decode a message: %w", err)
	}
	return o, nil
}

// newMessage returns the message that a handler sends, with 12 headers.
func newMessage(o order, relatedTo string) (message, error) {
	body, err := json.Marshal(o)
	if err != nil {
		return message{}, err
	}
	id := uuid.New(time.Now())
	return message{id: id, body: body, headers: map[string]string{
		watermillID:                        id,
		"NServiceBus.CorrelationId":        o.OrderID,
		"NServiceBus.ConversationId":       o.OrderID,
		"NServiceBus.RelatedTo":            relatedTo,
		"NServiceBus.MessageIntent":        "Send",
		"NServiceBus.ReplyToAddress":       "sales",
		"NServiceBus.OriginatingEndpoint":  "sales",
		"NServiceBus.OriginatingMachine":   "host-01",
		"$.diagnostics.originating.hostid": "9b2f8c1e7a544c0d9d3e1b2c3d4e5f60",
		"NServiceBus.TimeSent":             "2026-01-02 03:04:05:000000 Z",
		"NServiceBus.ContentType":          "application/json",
		"NServiceBus.EnclosedMessageTypes": "Bench.PlaceOrder",
	}}, nil
}
