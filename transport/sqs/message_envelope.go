package sqs

import (
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/header"
)

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
