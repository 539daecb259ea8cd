package sqs

import (
	"bytes"
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
	// bodyAttribute says how a raw body is written: asText, asBase64 or asNothing.
	bodyAttribute = ours + "Body"
	// expiresAt is the header that bounds the life of a message that waits in several queues, in microseconds since 1970.
	expiresAt = ours + "Delay.ExpiresAt"
	// dueAt is the attribute of a published message that is not due yet, in microseconds since 1970.
	dueAt = ours + "Delay.DueAt"
	ours  = "Holdfast."

	asText    = "text"
	asBase64  = "base64"
	asNothing = "nothing"
)

// form is a way to write headers and body.
type form func(headers header.Map, body []byte) payload

// wrapped is NServiceBus's envelope.
func wrapped(headers header.Map, body []byte) payload { return payload{body: wrap(headers, body)} }

// encode makes what is sent for a message that is due after delay and of no use ttl later.
func (c *conn) encode(m *transport.Message, now time.Time, delay, ttl time.Duration) payload {
	if c.cfg.RawBody {
		return c.encodeAs(raw, m, now, delay, ttl)
	}
	return c.encodeAs(wrapped, m, now, delay, ttl)
}

// encodeCopy is encode for a copy of a received message, which is of no use to anybody if it has no room: it is written
// in another form where the configured one is too large for room bytes.
func (c *conn) encodeCopy(m *transport.Message, now time.Time, delay, ttl time.Duration, room int) payload {
	p := c.encode(m, now, delay, ttl)
	for _, f := range []form{raw, packed} {
		if p.size() <= room {
			break
		}
		p = c.encodeAs(f, m, now, delay, ttl)
	}
	return p
}

func (c *conn) encodeAs(write form, m *transport.Message, now time.Time, delay, ttl time.Duration) payload {
	headers := m.Headers
	if ttl > 0 && ttl < longest-delay { // else it is of use for centuries
		headers = m.Headers.Clone()
		if delay > maxDelay { // SQS's time of sending is that of the last hop then
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
		p.attributes = append(p.attributes, attribute{bodyAttribute, asBase64}) // or it could be anybody's JSON
	}
	p.group = c.groupOf(m)
	return p
}

// raw leaves the body as it is, if SQS can take it.
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

// allowed tells whether SQS takes the text. Characters beyond U+FFFF are left out: not every part of AWS takes them.
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

// appendHeaders writes headers as JSON of characters that SQS takes: the others are escaped.
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

// groupOf returns the message group id of a message: that of the header, else the one with which the message was
// received; "" where neither can be one.
func (c *conn) groupOf(m *transport.Message) string {
	if c.cfg.GroupHeader != "" {
		if group := m.Headers.Get(c.cfg.GroupHeader); isGroup(group) {
			return group
		}
	}
	if group := m.Native[messageGroup]; isGroup(group) {
		return group
	}
	return ""
}

// isGroup reports whether SQS takes a text as message group id.
func isGroup(s string) bool {
	return s != "" && len(s) <= maxGroup && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7F })
}

// received is a message that came, and what is known of it besides.
type received struct {
	transport.Message
	expires time.Time // zero: never
	bySQS   bool      // expires is by the clock of SQS
	due     time.Time // zero: now
}

// expired tells whether nobody wants the message any more. skew is how much the clock of SQS is ahead of the one that
// says now.
func (r *received) expired(now time.Time, skew time.Duration) bool {
	if r.bySQS {
		now = now.Add(skew)
	}
	return !r.expires.IsZero() && !now.Before(r.expires)
}

// decode reads a message in whichever form it was sent.
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
	r.identify(m)
	r.readTimes(m)
	r.readNative(m)
	return r
}

// readRaw reads a message with its headers in an attribute.
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

// native reads a message of another producer: its text attributes are its headers.
func (r *received) native(m *types.Message, body string) {
	r.Body = []byte(body)
	for name, a := range m.MessageAttributes {
		if a.StringValue != nil && !isControl(name) {
			r.Headers.Set(name, *a.StringValue)
		}
	}
}

// isControl tells the attributes that say how a message is written.
func isControl(name string) bool {
	return name == headersAttribute || name == typeAttribute || name == header.MessageID ||
		name == dueAt || strings.HasPrefix(name, ours)
}

func (r *received) inS3(key string) {
	r.Undecodable = fmt.Errorf("sqs: the body is in S3 under the key %q, from where this transport does not fetch bodies: "+
		"have its sender keep them under 1 MiB, or send a reference of its own", key)
}

// identify finds the id: that of the headers, or else the attribute, or SQS's. ServiceControl returns a failed message
// with an id of its own in the attribute, and the message's in the headers.
func (r *received) identify(m *types.Message) {
	if r.ID = r.Headers.Get(header.MessageID); r.ID == "" {
		r.ID, _ = text(m, header.MessageID)
	}
	if r.ID == "" {
		r.ID = r.NativeID
	}
}

// readTimes takes out of the headers what is about this sending only.
func (r *received) readTimes(m *types.Message) {
	if at, ok := microTime(r.Headers.Get(expiresAt)); ok {
		r.expires = at
	}
	r.Headers.Del(expiresAt)
	if ttl, ok := r.Headers.Lookup(timeToBeReceived); ok {
		if d, ok := parseTimeSpan(ttl); ok && d < longest {
			if sent := sentAt(m); !sent.IsZero() {
				r.expires, r.bySQS = sent.Add(d), true
			}
		}
		r.Headers.Del(timeToBeReceived)
	}
	due, _ := text(m, dueAt)
	r.due, _ = microTime(due)
}

// sentAt is when SQS took the message in, by its clock; zero where a stand-in for SQS does not tell.
func sentAt(m *types.Message) time.Time { return milliTime(m.Attributes[sentTimestamp]) }

func microTime(s string) (time.Time, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	return time.UnixMicro(n), err == nil
}

// The system attributes that are asked for.
const (
	receiveCount   = "ApproximateReceiveCount"
	sentTimestamp  = "SentTimestamp"
	messageGroup   = "MessageGroupId"
	deadLetteredIn = "DeadLetterQueueSourceArn"
	// for messages that hop
	firstReceived   = "ApproximateFirstReceiveTimestamp"
	deduplicationID = "MessageDeduplicationId"
)

// readNative keeps what SQS says of the message, and attributes that are no headers.
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
		}
	}
}

// attemptOf is SQS's count.
func attemptOf(m *types.Message) transport.Attempt {
	n, err := strconv.Atoi(m.Attributes[receiveCount])
	if err != nil || n < 1 {
		return transport.Attempt{N: 1}
	}
	return transport.Attempt{N: n, Exact: true}
}

func text(m *types.Message, name string) (string, bool) {
	a, ok := m.MessageAttributes[name]
	if !ok || a.StringValue == nil {
		return "", false
	}
	return *a.StringValue, true
}

func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
