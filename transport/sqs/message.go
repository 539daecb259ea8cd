package sqs

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

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

// encode returns the payload of a message that is due after delay and expires ttl later.
func (c *conn) encode(m *transport.Message, now time.Time, delay, ttl time.Duration) payload {
	if c.cfg.RawBody {
		return c.encodeAs(raw, m, now, delay, ttl)
	}
	return c.encodeAs(wrapped, m, now, delay, ttl)
}

func (c *conn) encodeAs(write form, m *transport.Message, now time.Time, delay, ttl time.Duration) payload {
	headers := m.Headers
	if ttl > 0 && ttl < longest-delay { // else it expires in centuries
		headers = m.Headers.Clone()
		if delay > maxDelay { // SQS's SentTimestamp is that of the last hop then
			headers.Set(expiresAt, strconv.FormatInt(now.Add(delay+ttl).UnixMicro(), 10))
		} else {
			headers.Set(timeToBeReceived, header.FormatDuration(delay+ttl))
		}
	}
	p := write(headers, m.Body)
	if m.ID != "" && m.ID != m.Headers.Get(header.MessageID) && allowed(m.ID) {
		p.attributes = append(p.attributes, attribute{header.MessageID, m.ID})
	}
	if len(p.attributes) == 0 && !named(&headers) {
		p.attributes = append(p.attributes, attribute{bodyAttribute, asBase64}) // or it could be JSON of another producer
	}
	p.group = c.groupOf(m)
	return p
}

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

// maxGroup is the longest message group id.
const maxGroup = 128

// groupOf returns the message group id of a message: the value of the configured header, else the
// group of the received message; "" if neither is valid.
func (c *conn) groupOf(m *transport.Message) string {
	if group := m.Headers.Get(c.cfg.GroupHeader); c.cfg.GroupHeader != "" && isGroup(group) {
		return group
	}
	if group := m.Native[messageGroup]; isGroup(group) {
		return group
	}
	return ""
}

// isGroup reports whether SQS accepts a text as message group id.
func isGroup(s string) bool {
	return s != "" && len(s) <= maxGroup && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7F })
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
