package sqs

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// delivered returns the sent entries as received messages.
func delivered(p payload) *types.Message {
	m := &types.Message{
		MessageId: aws.String("native"), ReceiptHandle: aws.String("handle"), Body: &p.body,
		Attributes:        map[string]string{receiveCount: "1", sentTimestamp: "1700000000000"},
		MessageAttributes: map[string]types.MessageAttributeValue{},
	}
	for _, a := range p.attributes {
		m.MessageAttributes[a.name] = types.MessageAttributeValue{DataType: aws.String(textType), StringValue: &a.value}
	}
	return m
}

// foreign is a message of another producer.
func foreign(body string, attributes map[string]string) *types.Message {
	p := payload{body: body}
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		p.attributes = append(p.attributes, attribute{name, attributes[name]})
	}
	return delivered(p)
}

func headersOf(m *transport.Message) map[string]string { return maps.Collect(m.Headers.All()) }

const messageID = "3f2b8c1e-7a54-4c0d-9d3e-1b2c3d4e5f60"

// What NServiceBus's transport sends, in the forms of its versions.
func TestMessagesOfNServiceBusAreRead(t *testing.T) {
	for name, test := range map[string]struct {
		message *types.Message
		headers map[string]string
		body    string
		id      string
	}{
		"envelope": {
			message: foreign(`{"Headers":{"NServiceBus.MessageId":"`+messageID+`","NServiceBus.EnclosedMessageTypes":"Shop.OrderPlaced, Shop, Version=1.0.0.0, `+
				`Culture=neutral, PublicKeyToken=null","NServiceBus.ContentType":"application/json"},"Body":"eyJJZCI6MX0=","S3BodyKey":null}`, nil),
			headers: map[string]string{
				header.MessageID: messageID, header.ContentType: "application/json",
				header.EnclosedMessageTypes: "Shop.OrderPlaced, Shop, Version=1.0.0.0, Culture=neutral, PublicKeyToken=null",
			},
			body: `{"Id":1}`, id: messageID,
		},
		"envelope of version 5, with what is in the headers too": {
			message: foreign(`{"Headers":{"NServiceBus.MessageId":"`+messageID+`","NServiceBus.AmazonSQS.TimeToBeReceived":"10675199.02:48:05.4775807"},`+
				`"Body":"PHhtbC8+","S3BodyKey":"","TimeToBeReceived":"10675199.02:48:05.4775807","ReplyToAddress":{"Queue":"sales","Machine":""}}`, nil),
			headers: map[string]string{header.MessageID: messageID, header.ReplyToAddress: "sales"},
			body:    `<xml/>`, id: messageID,
		},
		"control message": {
			message: foreign(`{"Headers":{"NServiceBus.ControlMessage":"True","NServiceBus.MessageIntent":"Subscribe"},"Body":"empty message"}`, nil),
			headers: map[string]string{controlMessage: "True", header.MessageIntent: "Subscribe"},
			id:      "native",
		},
		"empty body of version 1": {
			message: foreign(`{"Headers":{"NServiceBus.MessageId":"`+messageID+`"},"Body":"empty string"}`, nil),
			headers: map[string]string{header.MessageID: messageID}, id: messageID,
		},
		"not wrapped": {
			message: foreign(`{"Id":1}`, map[string]string{
				headersAttribute: `{"NServiceBus.MessageId":"` + messageID + `","NServiceBus.EnclosedMessageTypes":"Shop.OrderPlaced"}`,
			}),
			headers: map[string]string{header.MessageID: messageID, header.EnclosedMessageTypes: "Shop.OrderPlaced"},
			body:    `{"Id":1}`, id: messageID,
		},
		"not wrapped, with a body that SQS does not take": {
			message: foreign(`AAEC`, map[string]string{headersAttribute: `{"NServiceBus.MessageId":"` + messageID + `"}`}),
			headers: map[string]string{header.MessageID: messageID},
			body:    "\x00\x01\x02", id: messageID,
		},
		"not wrapped, without a body": {
			message: foreign(`empty message`, map[string]string{headersAttribute: `{"NServiceBus.MessageId":"` + messageID + `"}`}),
			headers: map[string]string{header.MessageID: messageID}, id: messageID,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := decode(test.message)
			if r.Undecodable != nil {
				t.Fatal(r.Undecodable)
			}
			if diff := cmp.Diff(test.headers, headersOf(&r.Message)); diff != "" {
				t.Errorf("headers (-want +got):\n%s", diff)
			}
			if string(r.Body) != test.body || r.ID != test.id || !r.expires.IsZero() {
				t.Errorf("body %q, id %q, expires %v; want %q, %q, never", r.Body, r.ID, r.expires, test.body, test.id)
			}
		})
	}
}

func TestMessagesAreSentAsNServiceBusReadsThem(t *testing.T) {
	m := &transport.Message{ID: messageID, Body: []byte(`{"Id":1}`), Headers: header.New(
		header.Field{Name: header.MessageID, Value: messageID},
		header.Field{Name: header.EnclosedMessageTypes, Value: "Shop.OrderPlaced"},
		header.Field{Name: "Kunde", Value: "Jäger \"& Söhne\" 🦆\x00"},
	)}
	for name, test := range map[string]struct {
		raw  bool
		ttl  time.Duration
		want payload
	}{
		"envelope": {want: payload{body: `{"Headers":{"NServiceBus.MessageId":"` + messageID + `","NServiceBus.EnclosedMessageTypes":"Shop.OrderPlaced",` +
			`"Kunde":"Jäger \"& Söhne\" \ud83e\udd86\u0000"},"Body":"eyJJZCI6MX0="}`}},
		"envelope with a time to live": {ttl: 90 * time.Second, want: payload{body: `{"Headers":{"NServiceBus.MessageId":"` + messageID +
			`","NServiceBus.EnclosedMessageTypes":"Shop.OrderPlaced","Kunde":"Jäger \"& Söhne\" \ud83e\udd86\u0000",` +
			`"NServiceBus.AmazonSQS.TimeToBeReceived":"00:01:30"},"Body":"eyJJZCI6MX0="}`}},
		"not wrapped": {raw: true, want: payload{body: `{"Id":1}`, attributes: []attribute{
			{headersAttribute, `{"NServiceBus.MessageId":"` + messageID + `","NServiceBus.EnclosedMessageTypes":"Shop.OrderPlaced",` +
				`"Kunde":"Jäger \"& Söhne\" \ud83e\udd86\u0000"}`},
			{bodyAttribute, asText},
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newConn(Transport{RawBody: test.raw}, clients{}, transport.Env{})
			got := c.encode(m, time.Now(), 0, test.ttl)
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(payload{}, attribute{})); diff != "" {
				t.Errorf("sent (-want +got):\n%s", diff)
			}
		})
	}
}

// A message of another producer is its body, with the message's attributes as headers.
func TestAttributesOfOtherProducersAreHeaders(t *testing.T) {
	for name, test := range map[string]struct {
		message *types.Message
		headers map[string]string
	}{
		"text":                    {foreign("hello", map[string]string{"tenant": "7"}), map[string]string{"tenant": "7"}},
		"JSON":                    {foreign(`{"Id":1}`, nil), map[string]string{}},
		"JSON with headers":       {foreign(`{"Headers":{"Tenant":"7"},"Body":"aGk="}`, nil), map[string]string{}},
		"JSON with nested ones":   {foreign(`{"Headers":{"Tenant":{"Id":7}}}`, nil), map[string]string{}},
		"half an envelope":        {foreign(`{"Headers":{"NServiceBus.MessageId":"7"`, nil), map[string]string{}},
		"with a type":             {foreign(`{"Id":1}`, map[string]string{typeAttribute: "Shop.OrderPlaced"}), map[string]string{header.EnclosedMessageTypes: "Shop.OrderPlaced"}},
		"envelope of another way": {foreign(`{"Headers":null,"Body":"aGk="}`, nil), map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			r := decode(test.message)
			if r.Undecodable != nil || r.ID != "native" || string(r.Body) != *test.message.Body {
				t.Errorf("id %q, body %q, undecodable %v", r.ID, r.Body, r.Undecodable)
			}
			if diff := cmp.Diff(test.headers, headersOf(&r.Message)); diff != "" {
				t.Errorf("headers (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOnlyOurOwnWayOfWritingIsReadWithoutItsJSON(t *testing.T) {
	headers := header.New(header.Field{Name: header.MessageID, Value: `1,"Body":"`}, header.Field{Name: "Body", Value: "é\n"})
	for _, content := range []string{"", "x", `"}`} {
		got, body, ok := unwrapOwn(wrap(headers, []byte(content)))
		if diff := cmp.Diff(headersOf(&transport.Message{Headers: headers}), headersOf(&transport.Message{Headers: got})); diff != "" {
			t.Errorf("headers (-want +got):\n%s", diff)
		}
		if !ok || string(body) != content {
			t.Errorf("body %q, %v, want %q", body, ok, content)
		}
	}
	for _, other := range []string{
		``, `"}`, `{"Headers":"}`, `{"Headers":,"Body":"aGk="}`, `{"Headers":null,"Body":"aGk="}`, `{"Headers":{"a":"b"},"Body":""}`,
		`{"Headers":{"a":"b"},"Body":"no base64"}`, `{"Headers":{"a":"b"},"Body":"aGk=` + "\n" + `"}`, `{"Headers":{"a":"b"},"Body":"aG\u006b="}`,
		`{"Headers":{"a":"b"},"Body":"aGk=","S3BodyKey":"k"}`, `{"Headers":{"a":"b"},"S3BodyKey":"k","Body":"aGk="}`,
		`{"Headers":{"a":"b","Body":"aGk="}`, `{"Headers":{"a":["b","Body":"aGk="}`,
	} {
		if _, _, ok := unwrapOwn(other); ok {
			t.Errorf("%s was taken for our own", other)
		}
	}
}

// The message group is the header's, or else that of the received message.
func TestTheMessageGroupIsOfTheHeaderOrReceived(t *testing.T) {
	for name, test := range map[string]struct{ header, native, want string }{
		"none":                  {},
		"of the header":         {header: "tenant-7", native: "tenant-8", want: "tenant-7"},
		"received":              {native: "tenant-8", want: "tenant-8"},
		"no group, but a text":  {header: "tenant 7", native: "tenant-8", want: "tenant-8"},
		"received, and refused": {native: strings.Repeat("x", maxGroup+1)},
	} {
		t.Run(name, func(t *testing.T) {
			m := &transport.Message{Headers: header.New(header.Field{Name: "Tenant", Value: test.header})}
			if test.native != "" {
				m.Native = map[string]string{messageGroup: test.native}
			}
			c := newConn(Transport{GroupHeader: "Tenant"}, clients{}, transport.Env{})
			if got := c.groupOf(m); got != test.want {
				t.Errorf("group %q, want %q", got, test.want)
			}
		})
	}
}

func TestAnotherProducersIDIsKept(t *testing.T) {
	if r := decode(foreign("hello", map[string]string{header.MessageID: "theirs"})); r.ID != "theirs" || r.NativeID != "native" {
		t.Errorf("ids %q and %q", r.ID, r.NativeID)
	}
}

func TestBodiesInS3AreUndecodableAndSaySo(t *testing.T) {
	for name, m := range map[string]*types.Message{
		"in the envelope":   foreign(`{"Headers":{"NServiceBus.MessageId":"1"},"Body":"","S3BodyKey":"prefix/1"}`, nil),
		"in a header":       foreign(`empty message`, map[string]string{headersAttribute: `{"NServiceBus.MessageId":"1","S3BodyKey":"prefix/1"}`}),
		"in an attribute":   foreign(`empty message`, map[string]string{headersAttribute: `{"NServiceBus.MessageId":"1"}`, s3Key: "prefix/1"}),
		"of a native one":   foreign(`empty message`, map[string]string{typeAttribute: "Shop.OrderPlaced", s3Key: "prefix/1"}),
		"beside a wrapping": foreign(`{"Headers":{"NServiceBus.MessageId":"1"},"Body":"","S3BodyKey":"prefix/1"}`, map[string]string{s3Key: "prefix/1"}),
	} {
		t.Run(name, func(t *testing.T) {
			if r := decode(m); r.Undecodable == nil || !strings.Contains(r.Undecodable.Error(), `"prefix/1"`) {
				t.Errorf("undecodable: %v", r.Undecodable)
			}
		})
	}
}

func TestPoisonIsUndecodableAndKeepsWhatThereIs(t *testing.T) {
	for name, attributes := range map[string]map[string]string{
		"headers": {headersAttribute: `{"NServiceBus.MessageId":`, "tenant": "7"},
		"base64":  {headersAttribute: `{"NServiceBus.MessageId":"1","tenant":"7"}`, bodyAttribute: asBase64},
	} {
		t.Run(name, func(t *testing.T) {
			r := decode(foreign("a body!", attributes))
			if r.Undecodable == nil || string(r.Body) != "a body!" || r.Headers.Get("tenant") != "7" || r.ID == "" {
				t.Errorf("body %q, headers %v, id %q, undecodable %v", r.Body, headersOf(&r.Message), r.ID, r.Undecodable)
			}
		})
	}
}

// randomText has characters of all kinds, those too that SQS does not take.
func randomText(r *rand.Rand, n int) string {
	var b strings.Builder
	for range r.IntN(n) {
		switch r.IntN(5) {
		case 0:
			b.WriteRune(rune(r.IntN(0x20)))
		case 1:
			b.WriteRune(rune(0x10000 + r.IntN(0x1000)))
		case 2:
			b.WriteRune(rune(0xFFF0 + r.IntN(16)))
		default:
			b.WriteRune(rune(' ' + r.IntN(0x2000)))
		}
	}
	return b.String()
}

func TestWhateverIsSentIsTextForSQSAndComesAsItWas(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	for range 3000 {
		m := &transport.Message{ID: randomText(r, 20)}
		for range r.IntN(6) {
			m.Headers.Set("h"+randomText(r, 10), randomText(r, 30))
		}
		if r.IntN(2) == 0 {
			m.Headers.Set(header.MessageID, m.ID)
		}
		m.Body = make([]byte, r.IntN(50))
		for i := range m.Body {
			m.Body[i] = byte(r.IntN(256))
		}
		if r.IntN(2) == 0 {
			m.Body = []byte(randomText(r, 50))
		}
		for _, raw := range []bool{false, true} {
			roundTrip(t, m, raw)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func roundTrip(t *testing.T, m *transport.Message, raw bool) {
	t.Helper()
	c := newConn(Transport{RawBody: raw}, clients{}, transport.Env{})
	p := c.encode(m, time.Now(), 0, 0)
	for _, text := range append([]string{p.body}, texts(p)...) {
		if text == "" || !allowed(text) {
			t.Errorf("SQS does not take %q", text)
		}
	}
	if len(p.attributes) > maxBatch {
		t.Errorf("%d attributes, SQS takes ten", len(p.attributes))
	}
	got := decode(delivered(p))
	if got.Undecodable != nil {
		t.Errorf("%q is undecodable: %v", p.body, got.Undecodable)
	}
	if diff := cmp.Diff(headersOf(m), headersOf(&got.Message)); diff != "" {
		t.Errorf("headers (-sent +came):\n%s", diff)
	}
	if string(got.Body) != string(m.Body) {
		t.Errorf("body %q came as %q", m.Body, got.Body)
	}
	if allowed(m.ID) && m.ID != "" && got.ID != m.ID {
		t.Errorf("id %q came as %q", m.ID, got.ID)
	}
}

func texts(p payload) (all []string) {
	for _, a := range p.attributes {
		all = append(all, a.value)
	}
	return all
}

func TestSizesAreThoseThatAWSCounts(t *testing.T) {
	t.Parallel()
	p := payload{body: "äöü", attributes: []attribute{{"name", "wért"}}}
	if got, want := p.size(), 6+len("name")+len("String")+5; got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
	for _, raw := range []bool{false, true} {
		cfg := Transport{RawBody: raw}
		c := newConn(cfg.withDefaults(), clients{}, transport.Env{})
		limits := c.Limits()
		m := &transport.Message{ID: messageID, Body: slices.Repeat([]byte{0xFF}, limits.MaxBody)}
		if raw {
			m.Body = slices.Repeat([]byte("x"), limits.MaxBody)
		}
		m.Headers.Set(header.MessageID, messageID)
		for i := 0; m.Headers.Size() < limits.MaxHeaders-200; i++ {
			m.Headers.Set("header "+strconv.Itoa(i), strings.Repeat("v", 1000))
			if m.Headers.Size() > limits.MaxHeaders {
				m.Headers.Del("header " + strconv.Itoa(i))
				break
			}
		}
		p := c.encode(m, time.Now(), 0, time.Hour)
		if got := p.size(); got > maxMessage || got < maxMessage*9/10 {
			t.Errorf("raw %v: the largest message has %d bytes, SQS takes %d", raw, got, maxMessage)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(`{"Headers":{"NServiceBus.MessageId":"1"},"Body":"aGk="}`, "", "", "")
	f.Add(`{"Id":1}`, `{"NServiceBus.MessageId":"1"}`, "text", "Shop.OrderPlaced")
	f.Add("AAEC", `{"a":"b"}`, "base64", "")
	f.Add("empty message", `{"a":"b","S3BodyKey":"k"}`, "nothing", "")
	f.Add(`{"Headers":{"NServiceBus.MessageId":null,"NServiceBus.AmazonSQS.TimeToBeReceived":"1.1:1:1.1"},"Body":"\ud800","S3BodyKey":"x"}`, "", "", "")
	f.Fuzz(func(t *testing.T, body, headers, written, typ string) {
		attributes := map[string]string{}
		for name, value := range map[string]string{headersAttribute: headers, bodyAttribute: written, typeAttribute: typ} {
			if value != "" {
				attributes[name] = value
			}
		}
		r := decode(foreign(body, attributes))
		if r.ID == "" {
			t.Error("the message has no id")
		}
		if r.Undecodable != nil || !utf8.ValidString(headers) || !utf8.ValidString(body) || !utf8.ValidString(typ) {
			return
		}
		r.Headers.Del(dueAt)
		roundTrip(t, &r.Message, false)
		roundTrip(t, &r.Message, true)
		if json.Valid([]byte(headers)) && headers != "" && r.Headers.Len() == 0 && strings.Contains(headers, `"h"`) {
			t.Errorf("headers %q are lost", headers)
		}
	})
}
