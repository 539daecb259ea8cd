package sqs

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// The attributes and headers of NServiceBus's transport.
const (
	headersAttribute  = "NServiceBus.AmazonSQS.Headers"
	typeAttribute     = "MessageTypeFullName"
	timeToBeReceived  = "NServiceBus.AmazonSQS.TimeToBeReceived"
	s3Key             = "S3BodyKey"
	controlMessage    = "NServiceBus.ControlMessage"
	emptyBody         = "empty message"
	emptyBodyOfOthers = "empty string"
)

// Ours.
const (
	// bodyAttribute is the encoding of a raw body: asText, asBase64, asNothing or asPacked.
	bodyAttribute = ours + "Body"
	// expiresAt is the header with the expiry of a message that waits in delay queues, in
	// microseconds since 1970.
	expiresAt = ours + "Delay.ExpiresAt"
	// dueAt is the attribute with the due time of a delayed published message, in microseconds
	// since 1970.
	dueAt = ours + "Delay.DueAt"
	ours  = "Holdfast."

	asText    = "text"
	asBase64  = "base64"
	asNothing = "nothing"
)

// form encodes headers and body.
type form func(headers header.Map, body []byte) payload

// wrapped encodes in NServiceBus's envelope.
func wrapped(headers header.Map, body []byte) payload { return payload{body: wrap(headers, body)} }

// raw leaves the body unchanged if SQS accepts it.
func raw(headers header.Map, body []byte) payload {
	p := payload{attributes: make([]attribute, 0, 3)}
	p.attributes = append(p.attributes, attribute{headersAttribute, string(appendHeaders(nil, headers))})
	written := asText
	switch text := string(body); {
	case text == "":
		p.body, written = emptyBody, asNothing
	case allowed(text):
		p.body = text
	default:
		p.body, written = base64.StdEncoding.EncodeToString(body), asBase64
	}
	p.attributes = append(p.attributes, attribute{bodyAttribute, written})
	return p
}

// allowed reports whether SQS accepts the text. It excludes characters beyond U+FFFF, which parts
// of AWS refuse.
func allowed(s string) bool {
	for i, r := range s {
		if !allowedRune(r) || r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)) {
			return false
		}
	}
	return true
}

func allowedRune(r rune) bool {
	return r >= 0x20 && r <= 0xD7FF || r >= 0xE000 && r <= 0xFFFD || r == '\t' || r == '\n' || r == '\r'
}

// appendHeaders appends headers as JSON, with the characters escaped that SQS refuses.
func appendHeaders(b []byte, headers header.Map) []byte {
	from := len(b)
	b = headers.AppendJSON(b)
	if bytes.IndexFunc(b[from:], func(r rune) bool { return !allowedRune(r) }) < 0 {
		return b
	}
	text := string(b[from:])
	b = b[:from]
	for _, r := range text {
		switch {
		case allowedRune(r):
			b = utf8.AppendRune(b, r)
		case r > 0xFFFF:
			r -= 0x10000
			b = fmt.Appendf(b, `\u%04x\u%04x`, 0xD800+r>>10, 0xDC00+r&0x3FF)
		default:
			b = fmt.Appendf(b, `\u%04x`, r)
		}
	}
	return b
}

// received is a received message with its times.
type received struct {
	transport.Message
	expires time.Time // zero: never
	bySQS   bool      // expires is by SQS's clock
	due     time.Time // zero: now
}

// expired reports whether the message is expired. SQS's clock is ahead of now's by skew.
func (r *received) expired(now time.Time, skew time.Duration) bool {
	if r.bySQS {
		now = now.Add(skew)
	}
	return !r.expires.IsZero() && !now.Before(r.expires)
}

// decode reads a message in any form.
func decode(m *types.Message) received {
	var r received
	r.NativeID = value(m.MessageId)
	body := value(m.Body)
	head, isRaw := text(m, headersAttribute)
	typ, isTyped := text(m, typeAttribute)
	switch {
	case isRaw:
		r.readRaw(m, head, body)
	case isTyped:
		r.native(m, body)
		r.Headers.Set(header.EnclosedMessageTypes, typ)
	case !r.unwrap(m, body):
		r.native(m, body)
	}
	if key := r.Headers.Get(s3Key); key != "" {
		r.inS3(key)
	}
	// ServiceControl returns a failed message with an id of its own in the attribute, and the
	// message's in the headers.
	id, _ := text(m, header.MessageID)
	r.ID = cmp.Or(r.Headers.Get(header.MessageID), id, r.NativeID)
	r.readTimes(m)
	r.readNative(m)
	return r
}

// readRaw reads a message whose headers are in an attribute.
func (r *received) readRaw(m *types.Message, head, body string) {
	headers, err := header.ParseJSON(head)
	if err != nil {
		r.native(m, body)
		r.Undecodable = fmt.Errorf("sqs: attribute %s: %w", headersAttribute, err)
		return
	}
	r.Headers = headers
	if key, ok := text(m, s3Key); ok {
		r.inS3(key)
	}
	switch written, _ := text(m, bodyAttribute); written {
	case asText:
		r.Body = []byte(body)
	case asNothing:
	case asPacked:
		if r.Body, err = unpack(m); err != nil {
			r.Body, r.Undecodable = []byte(body), err
		}
	case asBase64:
		if r.Body, err = base64.StdEncoding.DecodeString(body); err != nil {
			r.Body = []byte(body)
			r.Undecodable = fmt.Errorf("sqs: the body is said to be base64: %w", err)
		}
	default:
		r.Body = bodyOfOthers(body)
	}
}

// native reads a message of another producer: its text attributes are headers.
func (r *received) native(m *types.Message, body string) {
	r.Body = []byte(body)
	for name, a := range m.MessageAttributes {
		if a.StringValue != nil && !isControl(name) {
			r.Headers.Set(name, *a.StringValue)
		}
	}
}

// isControl reports whether an attribute describes the encoding of the message.
func isControl(name string) bool {
	return name == headersAttribute || name == typeAttribute || name == header.MessageID ||
		name == dueAt || strings.HasPrefix(name, ours)
}

func (r *received) inS3(key string) {
	r.Undecodable = fmt.Errorf("sqs: the body is in S3 under the key %q, from where this transport does not fetch bodies: "+
		"have its sender keep them under 1 MiB, or send a reference of its own", key)
}

// readTimes sets expires and due, and removes their headers.
func (r *received) readTimes(m *types.Message) {
	r.expires = unixTime(r.Headers.Get(expiresAt), time.UnixMicro)
	r.Headers.Del(expiresAt)
	if ttl, ok := r.Headers.Lookup(timeToBeReceived); ok {
		sent := sentAt(m)
		if d, ok := parseTimeSpan(ttl); ok && d < longest && !sent.IsZero() {
			r.expires, r.bySQS = sent.Add(d), true
		}
		r.Headers.Del(timeToBeReceived)
	}
	due, _ := text(m, dueAt)
	r.due = unixTime(due, time.UnixMicro)
}

// sentAt returns when SQS accepted the message, by its clock; zero if an emulator does not report
// it.
func sentAt(m *types.Message) time.Time { return milliTime(m.Attributes[sentTimestamp]) }

// unixTime returns the time of a number in the unit that of reads; zero if s is none.
func unixTime(s string, of func(int64) time.Time) time.Time {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return time.Time{}
	}
	return of(n)
}

// The requested system attributes.
const (
	receiveCount   = "ApproximateReceiveCount"
	sentTimestamp  = "SentTimestamp"
	messageGroup   = "MessageGroupId"
	deadLetteredIn = "DeadLetterQueueSourceArn"
	// for delay queues
	firstReceived   = "ApproximateFirstReceiveTimestamp"
	deduplicationID = "MessageDeduplicationId"
)

// readNative sets the native properties: SQS's own, and attributes that are no headers.
func (r *received) readNative(m *types.Message) {
	set := func(name, value string) {
		if r.Native == nil {
			r.Native = make(map[string]string)
		}
		r.Native[name] = value
	}
	for _, name := range []string{messageGroup, deadLetteredIn} {
		if v := m.Attributes[name]; v != "" {
			set(name, v)
		}
	}
	for name, a := range m.MessageAttributes {
		_, isHeader := r.Headers.Lookup(name)
		switch {
		case isHeader || isControl(name):
		case a.StringValue != nil:
			set(name, *a.StringValue)
		case a.BinaryValue != nil:
			set(name, base64.StdEncoding.EncodeToString(a.BinaryValue))
			set(binaryNative+name, value(a.DataType))
		}
	}
}

// attemptOf returns SQS's count of deliveries.
func attemptOf(m *types.Message) transport.Attempt {
	n, err := strconv.Atoi(m.Attributes[receiveCount])
	if err != nil || n < 1 {
		return transport.Attempt{N: 1}
	}
	return transport.Attempt{N: n, Exact: true}
}

func text(m *types.Message, name string) (string, bool) {
	a := m.MessageAttributes[name].StringValue
	return value(a), a != nil
}

func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// binaryNative begins the name of the native property with the data type of a binary attribute,
// such as "Binary.png". The property of the attribute's name has its value in base64.
const binaryNative = ours + "Binary."

// withBinaries returns p with the binary attributes of the received message that it is a copy of,
// as far as these fit: SQS accepts room bytes and ten attributes, of which others need spare.
func (p payload) withBinaries(native map[string]string, room, spare int) payload {
	for _, name := range slices.Sorted(maps.Keys(native)) {
		attribute, ok := strings.CutPrefix(name, binaryNative)
		value, err := base64.StdEncoding.DecodeString(native[attribute])
		if !ok || err != nil || len(value) == 0 {
			continue
		}
		if len(p.attributes)+len(p.typed)+spare >= maxAttributes {
			return p
		}
		larger := p
		larger.typed = maps.Clone(p.typed)
		if larger.typed == nil {
			larger.typed = map[string]types.MessageAttributeValue{}
		}
		larger.typed[attribute] = types.MessageAttributeValue{DataType: aws.String(native[name]), BinaryValue: value}
		if larger.size() <= room {
			p = larger
		}
	}
	return p
}

const (
	// packedAttribute has the body of a packed message, compressed by gzip.
	packedAttribute = ours + "Body.Gzip"
	binaryType      = "Binary"
	asPacked        = "gzip"
	packedBody      = "The body is in the message attribute " + packedAttribute + ", compressed by gzip."
)

// packed is the smallest form. It is for copies of received messages that would be too large
// otherwise, because of added headers or the encoding of bytes as text.
func packed(headers header.Map, body []byte) payload {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(body) // a Buffer never fails
	_ = w.Close()
	return payload{
		body: packedBody,
		attributes: []attribute{
			{headersAttribute, string(appendHeaders(nil, headers))},
			{bodyAttribute, asPacked},
		},
		typed: map[string]types.MessageAttributeValue{
			packedAttribute: {DataType: aws.String(binaryType), BinaryValue: b.Bytes()},
		},
	}
}

// unpack reads the body of a packed message, which is limited to the size of an SQS message.
func unpack(m *types.Message) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(m.MessageAttributes[packedAttribute].BinaryValue))
	if err != nil {
		return nil, fmt.Errorf("sqs: attribute %s: %w", packedAttribute, err)
	}
	body, err := io.ReadAll(io.LimitReader(r, maxMessage+1))
	if err == nil && len(body) > maxMessage {
		err = fmt.Errorf("over %d bytes", maxMessage)
	}
	if err != nil {
		return nil, fmt.Errorf("sqs: attribute %s: %w", packedAttribute, err)
	}
	return body, nil
}

// parseTimeSpan reads a .NET TimeSpan such as "1.02:03:04.5000000". A TimeSpan beyond a Duration,
// such as TimeSpan.MaxValue, is the longest Duration.
func parseTimeSpan(s string) (time.Duration, bool) {
	days, clock := 0, s
	if before, after, ok := strings.Cut(s, "."); ok && !strings.Contains(before, ":") {
		n, ok := number(before, 8)
		if !ok {
			return 0, false
		}
		days, clock = n, after
	}
	clock, fraction, _ := strings.Cut(clock, ".")
	parts := strings.Split(clock, ":")
	if len(parts) != 3 || len(fraction) > 9 {
		return 0, false
	}
	hours, okHours := number(parts[0], 2)
	minutes, okMinutes := number(parts[1], 2)
	seconds, okSeconds := number(parts[2], 2)
	nanos, okNanos := number((fraction + "000000000")[:9], 9)
	if !okHours || !okMinutes || !okSeconds || !okNanos || hours > 23 || minutes > 59 || seconds > 59 {
		return 0, false
	}
	const day = 24 * time.Hour
	if days >= int(longest/day) {
		return longest, true
	}
	return time.Duration(days)*day + time.Duration(hours)*time.Hour + time.Duration(minutes)*time.Minute +
		time.Duration(seconds)*time.Second + time.Duration(nanos), true
}

const longest time.Duration = 1<<63 - 1

// number reads a number of at most that many digits.
func number(s string, digits int) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return int(n), err == nil && len(s) <= digits //nolint:gosec // 32 bits
}

// wrap returns NServiceBus's envelope.
func wrap(headers header.Map, body []byte) string {
	const frame = len(`{"Headers":,"Body":""}`)
	b := make([]byte, 0, frame+headers.Size()+8*headers.Len()+base64.StdEncoding.EncodedLen(len(body)))
	b = append(b, `{"Headers":`...)
	b = appendHeaders(b, headers)
	b = append(b, `,"Body":"`...)
	if len(body) == 0 {
		b = append(b, emptyBody...)
	} else {
		b = base64.StdEncoding.AppendEncode(b, body)
	}
	return string(append(b, `"}`...))
}

// unwrap reads NServiceBus's envelope, and reports whether it is one.
func (r *received) unwrap(m *types.Message, body string) bool {
	if !strings.Contains(body, `eaders"`) { // most messages without an envelope end here
		return false
	}
	if headers, content, ok := unwrapOwn(body); ok && isEnvelope(m, &headers) {
		r.Headers, r.Body = headers, content
		return true
	}
	var e struct {
		Headers        header.Map
		Body           string
		S3BodyKey      string
		ReplyToAddress *struct{ Queue string }
	}
	if json.Unmarshal([]byte(body), &e) != nil || !isEnvelope(m, &e.Headers) {
		return false
	}
	r.Headers, r.Body = e.Headers, bodyOfOthers(e.Body)
	if e.ReplyToAddress != nil && e.ReplyToAddress.Queue != "" {
		r.Headers.SetDefault(header.ReplyToAddress, e.ReplyToAddress.Queue)
	}
	if e.S3BodyKey != "" {
		r.inS3(e.S3BodyKey)
	}
	return true
}

// unwrapOwn reads an envelope in the form that wrap writes. Most are, and reading it as JSON takes
// several times as long.
func unwrapOwn(body string) (headers header.Map, content []byte, ok bool) {
	inner, begins := strings.CutPrefix(body, `{"Headers":`)
	inner, ends := strings.CutSuffix(inner, `"}`)
	quote := strings.LastIndexByte(inner, '"') + 1
	head, between := strings.CutSuffix(inner[:quote], `,"Body":"`)
	text := inner[quote:]
	if !begins || !ends || !between || text == "" || strings.ContainsAny(text, "\r\n") { // allowed in base64, not in JSON
		return header.Map{}, nil, false
	}
	if text != emptyBody {
		var err error
		if content, err = base64.StdEncoding.DecodeString(text); err != nil {
			return header.Map{}, nil, false
		}
	}
	headers, err := header.ParseJSON(strings.Clone(head)) // else they would reference the whole body
	return headers, content, err == nil
}

// isEnvelope reports whether JSON with headers is an envelope, and not of another producer.
func isEnvelope(m *types.Message, headers *header.Map) bool {
	_, hasID := text(m, header.MessageID)
	_, ours := text(m, bodyAttribute)
	return hasID || ours || named(headers)
}

// named reports whether headers are those of a message.
func named(headers *header.Map) bool {
	for _, name := range []string{header.MessageID, header.EnclosedMessageTypes, controlMessage} {
		if _, ok := headers.Lookup(name); ok {
			return true
		}
	}
	return false
}

// bodyOfOthers reads a body of unknown encoding, as NServiceBus does.
func bodyOfOthers(s string) []byte {
	if s == "" || s == emptyBody || s == emptyBodyOfOthers {
		return nil
	}
	if b, err := base64.StdEncoding.DecodeString(s); err == nil {
		return b
	}
	return []byte(s)
}
