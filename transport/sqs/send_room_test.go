package sqs

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// asReceived is a message that SQS would hand out of an entry that was sent.
func asReceived(e types.SendMessageBatchRequestEntry) *types.Message {
	return &types.Message{MessageId: aws.String("native"), Body: e.MessageBody, MessageAttributes: e.MessageAttributes}
}

func sizeOf(e types.SendMessageBatchRequestEntry) int {
	p := payload{body: *e.MessageBody}
	p.take(e.MessageAttributes)
	return p.size()
}

// copied is the operation that moves a received message to a queue, with the headers of a failure.
func copied(r received, extra int) transport.Operation {
	r.Headers.Set(header.MessageID, r.ID)
	r.Headers.Set("Fault", strings.Repeat("f", extra))
	return transport.Operation{Queue: "error", Message: &transport.Message{ID: r.ID, NativeID: r.NativeID, Headers: r.Headers, Body: r.Body}}
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	if _, err := rand.Read(b); err != nil {
		panic(err)
	}
	return b
}

func TestACopyOfEverySizeThatSQSTakesHasRoom(t *testing.T) {
	t.Parallel()
	envelope := func(body []byte) *types.Message {
		headers := header.New(header.Field{Name: header.MessageID, Value: "m"})
		return &types.Message{MessageId: aws.String("native"), Body: aws.String(wrap(headers, body))}
	}
	for name, m := range map[string]*types.Message{
		"raw text of 800,000 bytes":           foreign(strings.Repeat(`{"a":1}`, 800_000/7), nil),
		"raw text of 1 MiB":                   foreign(strings.Repeat("x", maxMessage), nil),
		"text of random letters of 1 MiB":     foreign(rand.Text()+string(lettersOf(randomBytes(maxMessage-26))), nil),
		"NServiceBus's envelope, text":        envelope([]byte(strings.Repeat("y", 783_000))),
		"NServiceBus's envelope, any bytes":   envelope(randomBytes(783_000)),
		"NServiceBus's envelope, 737,000":     envelope(randomBytes(737_000)),
		"the largest envelope with any bytes": envelope(randomBytes(786_300)),
	} {
		for _, limit := range []int{maxMessage, minMessage} {
			if limit == minMessage && !strings.HasPrefix(name, "raw") && !strings.HasSuffix(name, "text") {
				continue // there is no form of these that has room
			}
			t.Run(name, func(t *testing.T) {
				f := &fake{attributes: map[string]string{"MaximumMessageSize": "262144"}}
				if limit == maxMessage {
					f.attributes["MaximumMessageSize"] = "1048576"
				}
				c := openFake(t, f, nil)
				r := decode(m)
				if _, err := c.Dispatch(t.Context(), []transport.Operation{copied(r, 16<<10)}); err != nil {
					t.Fatal(err)
				}
				if size := sizeOf(f.sends()[0]); size > limit {
					t.Errorf("%d bytes are sent, SQS takes %d", size, limit)
				}
				got := decode(asReceived(f.sends()[0]))
				if got.Undecodable != nil || string(got.Body) != string(r.Body) || got.ID != r.ID || got.Headers.Get("Fault") == "" {
					t.Errorf("%d bytes come as %d, id %q, %v", len(r.Body), len(got.Body), got.ID, got.Undecodable)
				}
			})
		}
	}
}

func lettersOf(b []byte) []byte {
	for i := range b {
		b[i] = 'a' + b[i]%26
	}
	return b
}

func TestANewMessageOverTheLimitIsStillRefused(t *testing.T) {
	c := openFake(t, &fake{}, nil)
	op := copied(decode(foreign(strings.Repeat("x", 800_000), nil)), 0)
	op.Message.NativeID = ""
	if _, err := c.Dispatch(t.Context(), []transport.Operation{op}); !errors.Is(err, transport.ErrTooLarge) {
		t.Errorf("%v, want ErrTooLarge", err)
	}
}

// A body that unpacks to more bytes than SQS takes is undecodable.
func TestABodyThatUnpacksToTooMuchIsUndecodable(t *testing.T) {
	t.Parallel()
	p := packed(header.New(header.Field{Name: header.MessageID, Value: "m"}), make([]byte, 2*maxMessage))
	m := &types.Message{MessageId: aws.String("native"), Body: &p.body, MessageAttributes: p.sent()}
	if r := decode(m); r.Undecodable == nil || len(r.Body) > maxMessage {
		t.Errorf("%d bytes, %v", len(r.Body), r.Undecodable)
	}
}

func TestAQueueWithASmallerLimitIsAskedForIt(t *testing.T) {
	f := &fake{attributes: map[string]string{"MaximumMessageSize": "262144"}}
	c := openFake(t, f, nil)
	large := send("m")
	large.Message.Body = make([]byte, 300_000)
	for range 2 {
		_, err := c.Dispatch(t.Context(), []transport.Operation{large, send("small")})
		too, ok := errors.AsType[*transport.TooLargeError](err)
		if !ok || too.Max != 262_144 || too.Size <= too.Max || too.What != "message" {
			t.Errorf("%v, want a TooLargeError with the limit of the queue", err)
		}
	}
	if len(f.sends()) != 2 || f.requested("attributes") != 1 {
		t.Errorf("%d messages were sent, the queue was asked %d times", len(f.sends()), f.requested("attributes"))
	}
}

// A refusal says the limit: how SQS says it is in its reference of SendMessageBatch and in the
// answers of its stand-ins.
func TestARefusalForTheSizeIsRemembered(t *testing.T) {
	const text = "One or more parameters are invalid. Reason: Message must be shorter than 1024 bytes."
	f := &fake{}
	c := openFake(t, f, nil)
	f.onSend = func(_, n int) (failedEntries, error) {
		return failedEntries{n - 1: entryFailure("InvalidParameterValue", text, true)}, nil
	}
	large := send("m")
	large.Message.Body = make([]byte, 2000)
	for range 2 {
		_, err := c.Dispatch(t.Context(), []transport.Operation{large})
		if too, ok := errors.AsType[*transport.TooLargeError](err); !ok || too.Max != 1024 || too.Size < 2000 {
			t.Errorf("%v, want a TooLargeError of 1024 bytes", err)
		}
	}
	if n := f.requested("send"); n != 1 {
		t.Errorf("%d requests, want one: the limit is known then", n)
	}
}

// ServiceControl returns a failed message under an id of its own, which it sets as the message
// attribute.
func TestAReturnedMessageKeepsItsIdentity(t *testing.T) {
	headers := header.New(header.Field{Name: header.MessageID, Value: "m-1"})
	for name, m := range map[string]*types.Message{
		"envelope": foreign(wrap(headers, []byte("body")), map[string]string{header.MessageID: "FailedMessages/6f9619ff"}),
		"raw": foreign("body", map[string]string{
			header.MessageID: "FailedMessages/6f9619ff", headersAttribute: `{"NServiceBus.MessageId":"m-1"}`,
		}),
	} {
		if r := decode(m); r.ID != "m-1" {
			t.Errorf("%s: the id is %q, want that of the headers", name, r.ID)
		}
	}
}

// strangers are attributes of a message of another producer.
func strangers() map[string]types.MessageAttributeValue {
	return map[string]types.MessageAttributeValue{
		"bytes":  {DataType: aws.String("Binary.png"), BinaryValue: []byte{0, 255, ' ', 'b'}},
		"number": {DataType: aws.String("Number.int"), StringValue: aws.String("42")},
		"text":   {DataType: aws.String("String"), StringValue: aws.String("t")},
	}
}

func TestAttributesOfOtherTypesAreKeptWhereAMessageHops(t *testing.T) {
	m := &types.Message{MessageId: aws.String("n"), Body: aws.String("b"), MessageAttributes: strangers()}
	m.MessageAttributes[delaySeconds] = types.MessageAttributeValue{DataType: aws.String("Number"), StringValue: aws.String("1801")}
	r := asHop(m, time.Now())
	h := readHop(&r.Message)
	if h.due.Sub(h.now) != 1801*time.Second {
		t.Errorf("it is due at %v", h.due)
	}
	got := h.sent()
	for name, want := range strangers() {
		a := got[name]
		if value(a.DataType) != *want.DataType || value(a.StringValue) != value(want.StringValue) || string(a.BinaryValue) != string(want.BinaryValue) {
			t.Errorf("%s goes on as %v %q %v", name, value(a.DataType), value(a.StringValue), a.BinaryValue)
		}
	}
}

// A message that is delayed keeps its attributes of other types.
func TestAttributesOfOtherTypesAreKeptInADelay(t *testing.T) {
	f := &fake{}
	c := openFake(t, f, nil)
	openFakeReceiver(t, c)
	in := c.inFlights["in"]
	m := came("m", 1)
	m.MessageAttributes = strangers()
	d, _ := in.take(&m, &poll{asking: asking{lease: c.cfg.Lease}, came: time.Now()})
	if err := in.delay(t.Context(), d, &m, time.Now().Add(time.Minute)); err != nil && len(f.sends()) == 0 {
		t.Fatal(err)
	}
	for name, want := range strangers() {
		a := f.sends()[0].MessageAttributes[name]
		if value(a.DataType) != *want.DataType || value(a.StringValue) != value(want.StringValue) || string(a.BinaryValue) != string(want.BinaryValue) {
			t.Errorf("%s is sent as %v %q %v", name, value(a.DataType), value(a.StringValue), a.BinaryValue)
		}
	}
}

// Binary attributes of other producers come through a move to the error queue, a return from there
// and a delayed retry.
func TestBinaryAttributesSurviveMoves(t *testing.T) {
	for name, rawBody := range map[string]bool{"envelope": false, "raw": true} {
		t.Run(name, func(t *testing.T) {
			f := &fake{}
			c := openFake(t, f, func(tr *Transport) { tr.RawBody = rawBody })
			want := map[string][]byte{"picture": {0, 255, ' ', 'b'}, "other": []byte("text")}
			first := types.Message{MessageId: aws.String("1"), Body: aws.String("a body"), MessageAttributes: map[string]types.MessageAttributeValue{
				"picture": {DataType: aws.String("Binary.png"), BinaryValue: want["picture"]},
				"other":   {DataType: aws.String("Binary"), BinaryValue: want["other"]},
				"Shop":    {DataType: aws.String("String"), StringValue: aws.String("Berlin")},
			}}
			m := decode(&first).Message
			for move := range 3 {
				op := transport.Operation{Queue: "error", Message: &m, After: time.Duration(move) * time.Minute}
				if _, err := c.Dispatch(t.Context(), []transport.Operation{op}); err != nil {
					t.Fatal(err)
				}
				e := f.sends()[len(f.sends())-1]
				for name, value := range want {
					if got := e.MessageAttributes[name]; string(got.BinaryValue) != string(value) || name == "picture" && *got.DataType != "Binary.png" {
						t.Errorf("move %d: attribute %s is %v", move, name, got)
					}
				}
				m = decode(&types.Message{MessageId: aws.String("2"), Body: e.MessageBody, MessageAttributes: e.MessageAttributes}).Message
				if m.Undecodable != nil || string(m.Body) != "a body" || m.Headers.Get("Shop") != "Berlin" {
					t.Errorf("move %d: %+v", move, m)
				}
			}
		})
	}
}

// A copy must not be refused for attributes that it could do without.
func TestBinaryAttributesNeedNoRoom(t *testing.T) {
	native := map[string]string{}
	for i := range maxAttributes {
		name := fmt.Sprint("a", i)
		native[name], native[binaryNative+name] = base64.StdEncoding.EncodeToString(make([]byte, 1000)), "Binary"
	}
	p := payload{body: "a body", attributes: []attribute{{"b", "c"}}}
	for _, room := range []int{0, 500, 2500, 100_000} {
		got := p.withBinaries(native, room, hopAttributes)
		if n := len(got.attributes) + len(got.typed); n+hopAttributes > maxAttributes || len(got.typed) > 0 && got.size() > room {
			t.Errorf("room %d: %d attributes, %d bytes", room, n, got.size())
		}
	}
	if got := p.withBinaries(native, 100_000, hopAttributes); len(got.typed) != maxAttributes-hopAttributes-1 {
		t.Errorf("%d binary attributes, want as many as SQS accepts", len(got.typed))
	}
	native = map[string]string{"a": "no base64!", binaryNative + "a": "Binary"}
	if got := p.withBinaries(native, 100_000, 0); len(got.typed) != 0 {
		t.Errorf("an attribute without a value: %v", got.typed)
	}
}
