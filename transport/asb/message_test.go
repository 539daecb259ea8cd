package asb

import (
	"errors"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/go-amqp"
	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

func headers(pairs ...string) (h header.Map) {
	for i := 0; i < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return h
}

func TestHeadersTravelAsPropertiesOfNServiceBus(t *testing.T) {
	op := transport.Operation{
		Message: &transport.Message{ID: "m-1", Body: []byte("{}"), Headers: headers(
			header.MessageID, "m-1", header.CorrelationID, "c-1", header.ReplyToAddress, "sales", header.ContentType, "application/json", "Empty", "",
		)},
		TTL:        1500 * time.Microsecond,
		Properties: map[string]string{PropertySubject: "s", PropertyTo: "t", PropertySessionID: "x", PropertyReplySessionID: "y", "unknown": "z"},
	}
	got, err := encode(&op, []string{"Shop.Placed", "Shop.IOrder"})
	if err != nil {
		t.Fatal(err)
	}
	want := &azservicebus.Message{
		MessageID: new("m-1"), CorrelationID: new("c-1"), ReplyTo: new("sales"), ContentType: new("application/json"), Body: []byte("{}"),
		TimeToLive: new(2 * time.Millisecond), Subject: new("s"), To: new("t"), SessionID: new("x"), ReplyToSessionID: new("y"),
		ApplicationProperties: map[string]any{
			header.MessageID: "m-1", header.CorrelationID: "c-1", header.ReplyToAddress: "sales", header.ContentType: "application/json", "Empty": "",
			"Shop.Placed": true, "Shop.IOrder": true,
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRefusedPropertiesAreErrors(t *testing.T) {
	for _, properties := range []map[string]string{
		{PropertySessionID: strings.Repeat("x", 129)},
		{PropertyPartitionKey: strings.Repeat("x", 129)},
		{PropertySessionID: "a", PropertyPartitionKey: "b"},
	} {
		if _, err := encode(&transport.Operation{Message: &transport.Message{ID: "m"}, Properties: properties}, nil); err == nil {
			t.Errorf("%v were taken", properties)
		}
	}
}

// A message sent twice is one for the broker's duplicate detection, and a copy that returns is
// another.
func TestCopiesHaveNativeIDsOfTheirOwn(t *testing.T) {
	id := func(native string, pairs ...string) string {
		return nativeID(&transport.Message{ID: "m-1", NativeID: native, Headers: headers(append(pairs, header.MessageID, "m-1")...)})
	}
	for _, test := range []struct{ what, got, want string }{
		{"as it was sent", id(""), "m-1"},
		{"a delayed retry", id("", header.Retries, "2"), "m-1/2.0"},
		{"a delayed retry of a message received", id("4711", header.Retries, "2"), "m-1/2.0.4711"},
		{"put off with the same retries", id("4712", header.Retries, "2"), "m-1/2.0.4712"},
		{"returned", id("", header.HoldfastReturns, "3"), "m-1/0.3"},
		{"returned after retries", id("", header.Retries, "1", header.HoldfastReturns, "3"), "m-1/1.3"},
		{"with strange headers", id("", header.Retries, "many", header.HoldfastReturns, "-1"), "m-1/0.0"},
		{"without its id in a header", nativeID(&transport.Message{ID: "m-1", NativeID: "7"}), "m-1"},
	} {
		if test.got != test.want {
			t.Errorf("%s: %q, want %q", test.what, test.got, test.want)
		}
	}
}

func TestLongIDsAreCutAndKept(t *testing.T) {
	long := strings.Repeat("x", 300)
	one, err := encode(&transport.Operation{Message: &transport.Message{ID: long + "1"}}, nil)
	two, err2 := encode(&transport.Operation{Message: &transport.Message{ID: long + "2"}}, nil)
	if err != nil || err2 != nil || *one.MessageID == *two.MessageID || len(*one.MessageID) > maxID || one.ApplicationProperties[header.MessageID] != long+"1" {
		t.Errorf("%q and %q, %v, %v", *one.MessageID, *two.MessageID, err, err2)
	}
}

func TestForeignMessagesAreRead(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)
	raw := &azservicebus.ReceivedMessage{
		Body: []byte("body"), MessageID: "theirs", CorrelationID: new("c"), ReplyTo: new("r"), ContentType: new("text/plain"), Subject: new("s"),
		To: new("t"), SessionID: new("x"), ReplyToSessionID: new("y"), PartitionKey: new("p"), SequenceNumber: new(int64(7)), EnqueuedTime: &at,
		ApplicationProperties: map[string]any{
			"text": "grüße", "bytes": []byte("b"), "nil": nil, "true": true, "int": int32(-5), "uint": uint64(math.MaxUint64), "float": 1.5, "float32": float32(2.5),
			"time": at, "uuid": amqp.UUID{15: 1},
		},
	}
	m := decode(raw)
	want := map[string]string{
		"text": "grüße", "bytes": "b", "nil": "", "true": "true", "int": "-5", "uint": "18446744073709551615", "float": "1.5", "float32": "2.5",
		"time": "2026-01-02 03:04:05:678901 Z", "uuid": "00000000-0000-0000-0000-000000000001",
		header.CorrelationID: "c", header.ReplyToAddress: "r", header.ContentType: "text/plain",
	}
	if diff := cmp.Diff(want, maps.Collect(m.Headers.All())); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	native := map[string]string{
		PropertySubject: "s", PropertyTo: "t", PropertySessionID: "x", PropertyReplySessionID: "y", PropertyPartitionKey: "p",
		PropertyMessageID: "theirs", PropertyEnqueuedTime: "2026-01-02T03:04:05.678901Z",
	}
	if diff := cmp.Diff(native, m.Native); diff != "" {
		t.Errorf("native (-want +got):\n%s", diff)
	}
	if m.ID != "theirs" || m.NativeID != "7" || string(m.Body) != "body" || m.Undecodable != nil {
		t.Errorf("%+v", m)
	}
}

func TestTheIDOfAMessageWithoutOneIsTheSameEachTime(t *testing.T) {
	at := time.Unix(1700000000, 0)
	raw := func(n int64, count uint32) *azservicebus.ReceivedMessage {
		return &azservicebus.ReceivedMessage{SequenceNumber: &n, EnqueuedTime: &at, DeliveryCount: count}
	}
	first, again, other := decode(raw(1, 1)), decode(raw(1, 2)), decode(raw(2, 1))
	if first.ID == "" || first.ID != again.ID || first.ID == other.ID {
		t.Errorf("%q, %q, %q", first.ID, again.ID, other.ID)
	}
	withHeader := raw(1, 1)
	withHeader.MessageID, withHeader.ApplicationProperties = "native", map[string]any{header.MessageID: "logical"}
	if got := decode(withHeader).ID; got != "logical" {
		t.Errorf("the id is %q", got)
	}
}

func TestPropertiesOfTheBrokerAreNoHeaders(t *testing.T) {
	m := decode(&azservicebus.ReceivedMessage{ApplicationProperties: map[string]any{
		header.EnclosedMessageTypes: "Shop.Placed, Shop, Version=1.0.0.0;Shop.IOrder", "Shop.Placed": true, "Shop.IOrder": true, "Shop.Other": true,
		PropertyDeadLetterReason: "because", PropertyDeadLetterDescription: "so", PropertyRetryError: "boom", PropertyRetryInstance: "a",
		encodingHeader: "application/octect-stream",
	}})
	want := map[string]string{header.EnclosedMessageTypes: "Shop.Placed, Shop, Version=1.0.0.0;Shop.IOrder", "Shop.Other": "true"}
	if diff := cmp.Diff(want, maps.Collect(m.Headers.All())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if m.Native[PropertyRetryError] != "boom" || m.Native[PropertyDeadLetterReason] != "because" || m.Undecodable != nil {
		t.Errorf("%+v", m)
	}
}

func TestBodiesAreReadFromEverySection(t *testing.T) {
	of := func(b azservicebus.AMQPAnnotatedMessageBody) transport.Message {
		return decode(&azservicebus.ReceivedMessage{RawAMQPMessage: &azservicebus.AMQPAnnotatedMessage{Body: b}})
	}
	for what, test := range map[string]struct {
		body        azservicebus.AMQPAnnotatedMessageBody
		want        string
		undecodable bool
	}{
		"several sections": {azservicebus.AMQPAnnotatedMessageBody{Data: [][]byte{[]byte("a"), []byte("b")}}, "ab", false},
		"text":             {azservicebus.AMQPAnnotatedMessageBody{Value: "text"}, "text", false},
		"bytes":            {azservicebus.AMQPAnnotatedMessageBody{Value: []byte("bytes")}, "bytes", false},
		"nothing":          {azservicebus.AMQPAnnotatedMessageBody{}, "", false},
		"a number":         {azservicebus.AMQPAnnotatedMessageBody{Value: int64(1)}, "", true},
		"a sequence":       {azservicebus.AMQPAnnotatedMessageBody{Sequence: [][]any{{1}}}, "", true},
	} {
		m := of(test.body)
		if string(m.Body) != test.want || (m.Undecodable != nil) != test.undecodable {
			t.Errorf("%s: %q, %v", what, m.Body, m.Undecodable)
		}
	}
	legacy := decode(&azservicebus.ReceivedMessage{Body: []byte("x"), ApplicationProperties: map[string]any{encodingHeader: legacyEncoding}})
	if legacy.Undecodable == nil {
		t.Error("a body that only .NET reads was read")
	}
}

func TestTheBrokerCountsDeliveries(t *testing.T) {
	for _, test := range []struct {
		raw  azservicebus.ReceivedMessage
		want int
	}{
		{azservicebus.ReceivedMessage{}, 1},
		{azservicebus.ReceivedMessage{DeliveryCount: 3}, 3},
		{azservicebus.ReceivedMessage{RawAMQPMessage: &azservicebus.AMQPAnnotatedMessage{Header: &azservicebus.AMQPAnnotatedMessageHeader{DeliveryCount: 4}}}, 5},
	} {
		if got := attemptOf(&test.raw); got != test.want {
			t.Errorf("%+v, want %d", got, test.want)
		}
	}
}

func TestSizesAreMeasured(t *testing.T) {
	const body = defaultMessageSize - reserve
	for what, test := range map[string]struct {
		body    int
		headers []string
		want    *transport.TooLargeError // nil when it fits
	}{
		"the largest body":                   {body, nil, nil},
		"a larger one":                       {body + 1, nil, &transport.TooLargeError{What: "body", Size: body + 1, Max: body}},
		"the largest header":                 {0, []string{"a", strings.Repeat("x", maxProperty-1)}, nil},
		"a larger one than a header has":     {0, []string{"a", strings.Repeat("x", maxProperty)}, &transport.TooLargeError{What: "headers", Size: maxProperty + 1 + perProperty, Max: maxProperty}},
		"two large headers":                  {0, []string{"a", strings.Repeat("x", 32000), "b", strings.Repeat("x", 32000)}, nil},
		"more headers than fit":              {0, []string{"a", strings.Repeat("x", 32000), "b", strings.Repeat("x", 32000), "c", strings.Repeat("x", 2000)}, &transport.TooLargeError{What: "headers", Size: 66024, Max: maxTogether}},
		"a body and headers that do not fit": {body, []string{"a", strings.Repeat("x", 20000)}, &transport.TooLargeError{What: "message", Size: body + 20174, Max: defaultMessageSize}},
	} {
		msg, err := encode(&transport.Operation{Message: &transport.Message{ID: "m", Body: make([]byte, test.body), Headers: headers(test.headers...)}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = checkSize(msg, defaultMessageSize, false)
		var large *transport.TooLargeError
		errors.As(err, &large)
		if diff := cmp.Diff(test.want, large); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
}

func TestATimeToLiveBeyondTheProtocolIsNone(t *testing.T) {
	for ttl, want := range map[time.Duration]time.Duration{time.Nanosecond: time.Millisecond, time.Hour: time.Hour, 50 * 24 * time.Hour: 0, 0: 0, -1: 0} {
		got := timeToLive(ttl)
		if want == 0 && got != nil || want > 0 && (got == nil || *got != want) {
			t.Errorf("%v is %v, want %v", ttl, got, want)
		}
	}
}

func TestNotesAreCutBetweenCharacters(t *testing.T) {
	if got := clip(strings.Repeat("é", maxReason)); len(got) > maxReason+3 || !strings.HasSuffix(got, "é…") {
		t.Errorf("%d bytes, %q", len(got), got[len(got)-8:])
	}
	if got := clip("short"); got != "short" {
		t.Error(got)
	}
}

// FuzzDecode checks that any message is decoded or Undecodable, and that it is the same after it
// was sent again.
func FuzzDecode(f *testing.F) {
	f.Add("id", "NServiceBus.MessageId", "m-1", []byte("body"), int64(1), uint32(0), false)
	f.Add("", "NServiceBus.EnclosedMessageTypes", "a;b, c", []byte(nil), int64(-1), uint32(math.MaxUint32), true)
	f.Add("\xff", "DeadLetterReason", "x", []byte{0}, int64(0), uint32(7), true)
	f.Fuzz(func(t *testing.T, id, name, value string, body []byte, number int64, count uint32, flag bool) {
		raw := &azservicebus.ReceivedMessage{
			MessageID: id, Body: body, SequenceNumber: &number, DeliveryCount: count, ReplyTo: &value, EnqueuedTime: new(time.Unix(number, 0)),
			ApplicationProperties: map[string]any{name: value, "flag": flag, "n": number, "list": []any{value}},
		}
		m := decode(raw)
		if m.ID == "" || m.Undecodable == nil && name != "list" || attemptOf(raw) < 1 {
			t.Fatalf("%+v", m)
		}
		msg, err := encode(&transport.Operation{Message: &m}, nil)
		if err != nil || msg.MessageID == nil || len(*msg.MessageID) > maxID {
			t.Fatalf("%+v, %v", msg, err)
		}
		again := decode(&azservicebus.ReceivedMessage{MessageID: *msg.MessageID, Body: msg.Body, ApplicationProperties: msg.ApplicationProperties})
		if len(m.ID) <= maxID/2 && m.Headers.Get(header.MessageID) != "" && again.ID != m.ID {
			t.Fatalf("the id %q became %q", m.ID, again.ID)
		}
	})
}

func FuzzReceipt(f *testing.F) {
	f.Add("5@sales")
	f.Add("@")
	f.Fuzz(func(t *testing.T, s string) {
		if number, entity, ok := parseReceipt(s); ok {
			if n, e, ok := parseReceipt(receipt(number, entity)); !ok || n != number || e != entity {
				t.Fatalf("%q: %d of %q", s, number, entity)
			}
		}
	})
}

// Translate is not called by the goroutines that receive: a message for which it hangs would hold
// up all others.
func TestTranslateIsLeftToTheEndpoint(t *testing.T) {
	called := false
	ns, err := newNamespace(&Transport{
		Namespace: "shop.servicebus.windows.net", Credential: &failing{}, Translate: func(*transport.Message) { called = true },
	}, transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	c := &receivers{core: &core{ns: ns}}
	r := &receiver{of: c, inFlight: map[*delivery]time.Time{}}
	r.deliveries([]*azservicebus.ReceivedMessage{{MessageID: "a"}}, nil, nil)
	if called {
		t.Error("a receiver calls Translate")
	}
	if c.Translation()(nil); !called {
		t.Error("the endpoint does not get Translate")
	}
}

// A text that is not valid UTF-8 is a refusal of the content, and not in a copy.
func TestTextThatIsNotUTF8IsContent(t *testing.T) {
	for _, m := range []*transport.Message{
		{ID: "m\xff"}, {ID: "m", Headers: headers("a", "\xff")}, {ID: "m", Headers: headers("\xff", "a")},
	} {
		op := &transport.Operation{Message: m, Properties: map[string]string{PropertySessionID: "s"}}
		msg, err := encode(op, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := checkText(msg, false); !errors.Is(err, transport.ErrContent) {
			t.Errorf("%q: %v", m.ID, err)
		}
		if err := checkText(msg, true); err != nil {
			t.Errorf("%q, a copy: %v", m.ID, err)
		}
	}
}
