package rabbitmq

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

func headersOf(m transport.Message) map[string]string {
	all := make(map[string]string)
	for name, value := range m.Headers.All() {
		all[name] = value
	}
	return all
}

func TestValuesOfOtherProducersBecomeText(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	m := decode(&amqp.Delivery{MessageId: "m", Headers: amqp.Table{
		"string":  "ünïcode",
		"bytes":   []byte("bytes"),
		"nil":     nil,
		"true":    true,
		"int8":    int8(-8),
		"uint8":   uint8(200),
		"int16":   int16(-300),
		"uint16":  uint16(60000),
		"int32":   int32(-70000),
		"uint32":  uint32(4000000000),
		"int64":   int64(math.MinInt64),
		"float32": float32(1.5),
		"float64": 0.1,
		"time":    at,
		"decimal": amqp.Decimal{Scale: 2, Value: -5},
		"whole":   amqp.Decimal{Value: 12},
		"list":    []any{"a", int64(1), nil, []byte("b"), math.NaN(), at},
		"table":   amqp.Table{"a": amqp.Table{"b": true}},
	}})
	if m.Undecodable != nil {
		t.Fatal(m.Undecodable)
	}
	want := map[string]string{
		"string":  "ünïcode",
		"bytes":   "bytes",
		"nil":     "",
		"true":    "true",
		"int8":    "-8",
		"uint8":   "200",
		"int16":   "-300",
		"uint16":  "60000",
		"int32":   "-70000",
		"uint32":  "4000000000",
		"int64":   "-9223372036854775808",
		"float32": "1.5",
		"float64": "0.1",
		"time":    "2026-01-02 03:04:05:000000 Z",
		"decimal": "-0.05",
		"whole":   "12",
		"list":    `["a",1,null,"b","NaN","2026-01-02 03:04:05:000000 Z"]`,
		"table":   `{"a":{"b":true}}`,
	}
	if diff := cmp.Diff(want, headersOf(m)); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
}

// A header value without a text makes the message undecodable. The other headers are kept.
func TestHeaderValueWithoutText(t *testing.T) {
	for name, value := range map[string]any{
		"year":   time.Unix(math.MaxInt32*1000, 0),
		"nested": []any{time.Unix(math.MinInt32*100000, 0)},
	} {
		m := decode(&amqp.Delivery{MessageId: "m", Body: []byte("body"), Headers: amqp.Table{"bad": value, "good": "g"}})
		if m.Undecodable == nil || !strings.Contains(m.Undecodable.Error(), `"bad"`) {
			t.Errorf("%s: undecodable: %v", name, m.Undecodable)
		}
		if m.ID != "m" || string(m.Body) != "body" || m.Headers.Get("good") != "g" || m.Headers.Get("bad") == "" {
			t.Errorf("%s: saved are %q, %q and %v", name, m.ID, m.Body, headersOf(m))
		}
	}
}

func TestPropertiesFillInForMissingHeaders(t *testing.T) {
	d := amqp.Delivery{
		MessageId: "id", CorrelationId: "correlation", ReplyTo: "sales", ContentType: "text/plain", Type: "Shop.OrderPlaced",
	}
	want := map[string]string{
		header.CorrelationID:        "correlation",
		header.ReplyToAddress:       "sales",
		header.ContentType:          "text/plain",
		header.EnclosedMessageTypes: "Shop.OrderPlaced",
	}
	m := decode(&d)
	if diff := cmp.Diff(want, headersOf(m)); diff != "" || m.ID != "id" {
		t.Errorf("id %q, headers (-want +got):\n%s", m.ID, diff)
	}
	d.Headers = amqp.Table{header.EnclosedMessageTypes: "Shop.OrderPlaced;Shop.IOrderEvent"}
	m = decode(&d)
	if got := m.Headers.Get(header.EnclosedMessageTypes); got != "Shop.OrderPlaced;Shop.IOrderEvent" {
		t.Errorf("the property hides the header: %q", got)
	}
}

func TestHeadersOfTheBrokerAreNoHeaders(t *testing.T) {
	m := decode(&amqp.Delivery{MessageId: "m", Headers: amqp.Table{
		"x-delivery-count":     int64(3),
		"x-death":              []any{amqp.Table{"queue": "orders", "count": int64(1)}},
		"x-first-death-queue":  "orders",
		"x-last-death-reason":  "expired",
		"x-request-id":         "kept",
		"x-first-death-in-all": "orders",
	}})
	if diff := cmp.Diff(map[string]string{"x-request-id": "kept"}, headersOf(m)); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	if got := m.Native["x-death"]; got != `[{"count":1,"queue":"orders"}]` {
		t.Errorf("native x-death: %s", got)
	}
}

func TestTheIdentityOfAMessage(t *testing.T) {
	withHeader := amqp.Table{header.MessageID: "header"}
	for name, tt := range map[string]struct {
		d    amqp.Delivery
		want string
	}{
		"property":                   {amqp.Delivery{MessageId: "property"}, "property"},
		"header":                     {amqp.Delivery{Headers: withHeader}, "header"},
		"returned by ServiceControl": {amqp.Delivery{MessageId: "FailedMessages/42", Headers: withHeader}, "header"},
	} {
		if got := decode(&tt.d).ID; got != tt.want {
			t.Errorf("%s: id %q, want %q", name, got, tt.want)
		}
	}

	first := amqp.Delivery{Headers: amqp.Table{"a": "1", "b": int64(2)}, Body: []byte("body"), Type: "T"}
	again := first
	again.Headers = amqp.Table{"b": int64(2), "a": "1", "x-delivery-count": int64(1)}
	again.Redelivered, again.DeliveryTag = true, 7
	id := decode(&first).ID
	if !transport.IsContentID(id) || decode(&again).ID != id {
		t.Errorf("ids of two deliveries of a message without one: %q and %q", id, decode(&again).ID)
	}
	for name, change := range map[string]func(*amqp.Delivery){
		"body":    func(d *amqp.Delivery) { d.Body = []byte("bodx") },
		"type":    func(d *amqp.Delivery) { d.Type = "U" },
		"headers": func(d *amqp.Delivery) { d.Headers = amqp.Table{"a": "1b", "": int64(2)} },
	} {
		other := first
		change(&other)
		if decode(&other).ID == id {
			t.Errorf("another %s, the same id", name)
		}
	}
}

func TestAttemptOf(t *testing.T) {
	count := func(v any) amqp.Table { return amqp.Table{deliveryCount: v} }
	for name, tt := range map[string]struct {
		d         amqp.Delivery
		queueType QueueType
		want      transport.Attempt
	}{
		"quorum, first":                           {amqp.Delivery{}, Quorum, transport.Attempt{N: 1, Exact: true}},
		"quorum, first, with a stranger's count":  {amqp.Delivery{Headers: count(int64(50))}, Quorum, transport.Attempt{N: 1, Exact: true}},
		"classic, first, with a stranger's count": {amqp.Delivery{Headers: count(int64(50))}, Classic, transport.Attempt{N: 1}},
		"quorum, fourth":                          {amqp.Delivery{Redelivered: true, Headers: count(int64(3))}, Quorum, transport.Attempt{N: 4, Exact: true}},
		"quorum, released":                        {amqp.Delivery{Redelivered: true, Headers: amqp.Table{acquiredCount: int64(4)}}, Quorum, transport.Attempt{N: 1, Exact: true}},
		"classic, first":                          {amqp.Delivery{}, Classic, transport.Attempt{N: 1}},
		"classic, again":                          {amqp.Delivery{Redelivered: true}, Classic, transport.Attempt{N: 2}},
		"classic for quorum":                      {amqp.Delivery{Redelivered: true}, Quorum, transport.Attempt{N: 2}},
		"quorum for classic":                      {amqp.Delivery{Redelivered: true, Headers: count(int32(1))}, Classic, transport.Attempt{N: 2, Exact: true}},
		"forged, no number":                       {amqp.Delivery{Headers: count("9")}, Classic, transport.Attempt{N: 1}},
		"forged, negative":                        {amqp.Delivery{Headers: count(int64(-9))}, Classic, transport.Attempt{N: 1}},
		"forged, overflowing":                     {amqp.Delivery{Headers: count(int64(math.MaxInt64))}, Classic, transport.Attempt{N: 1}},
	} {
		if got := attemptOf(&tt.d, tt.queueType); got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}

func TestExpirationRoundsUpToMilliseconds(t *testing.T) {
	for ttl, want := range map[time.Duration]string{
		0: "", -1: "", 1: "1", time.Millisecond: "1", time.Millisecond + 1: "2", time.Minute: "60000",
		math.MaxUint32 * time.Millisecond:     "4294967295",
		math.MaxUint32*time.Millisecond + 1:   "",
		time.Duration(math.MaxInt64):          "",
		math.MaxUint32*time.Millisecond - 1e6: "4294967294",
	} {
		if got := expiration(ttl); got != want {
			t.Errorf("%v: %q, want %q", ttl, got, want)
		}
	}
}

// FuzzMessage sends a message through the table of a delivery and back.
func FuzzMessage(f *testing.F) {
	f.Add("id", "name", "value", []byte("bytes"), int64(1), 0.5, int64(0), []byte("body"))
	f.Add("", "NServiceBus.MessageId", "", []byte{0xff}, int64(math.MinInt64), math.Inf(1), int64(1<<60), []byte{})
	f.Add(strings.Repeat("i", 256), "x-death", "\x00", []byte(nil), int64(-1), math.NaN(), int64(-1<<62), []byte{0})
	f.Fuzz(func(t *testing.T, id, name, value string, bytes []byte, n int64, x float64, unix int64, body []byte) {
		out := transport.Message{ID: id, Body: body, Headers: header.New(header.Field{Name: name, Value: value})}
		p := encode(&out)
		for _, s := range []string{p.MessageId, p.CorrelationId, p.ReplyTo, p.ContentType, p.Type, p.Expiration} {
			if len(s) > maxShort {
				t.Fatalf("a property of %d bytes", len(s))
			}
		}
		in := decode(&amqp.Delivery{MessageId: p.MessageId, Type: p.Type, ContentType: p.ContentType, Headers: p.Headers, Body: p.Body})
		if id != "" && in.ID != id {
			t.Errorf("id %q became %q", id, in.ID)
		}
		if got := in.Headers.Get(name); !isBrokers(name) && name != header.MessageID && got != value {
			t.Errorf("header %q: %q became %q", name, value, got)
		}

		d := amqp.Delivery{Body: body, Headers: amqp.Table{
			name: value, name + "1": bytes, name + "2": n, name + "3": x, name + "4": time.Unix(unix, 0),
			name + "5": amqp.Decimal{Scale: uint8(n), Value: int32(n)},
			name + "6": []any{value, bytes, x, amqp.Table{value: time.Unix(unix, 0)}},
		}}
		foreign := decode(&d)
		if foreign.ID == "" || foreign.ID != decode(&d).ID {
			t.Errorf("ids %q and %q", foreign.ID, decode(&d).ID)
		}
		nested, ok := foreign.Headers.Lookup(name + "6")
		if ok && (!utf8.ValidString(nested) || !json.Valid([]byte(nested))) {
			t.Errorf("a list became %q", nested)
		}
	})
}
