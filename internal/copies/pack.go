package copies

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/envelope"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	// maxUnpacked bounds the unpacked headers in bytes, and maxHeaders their number. No broker that
	// refuses headers for their size accepts as many.
	maxUnpacked = 2 << 20
	maxHeaders  = 10_000
	// maxShown bounds a received header of a packed message that is repeated for other programs, in
	// bytes.
	maxShown = 256
	// behind is the value of the header if the packed headers are in front of the body.
	behind = "body"
)

// shown are the received headers that a packed message repeats, cut.
var shown = []string{
	header.MessageID, header.EnclosedMessageTypes, header.ContentType, header.MessageIntent, header.ReplyToAddress,
	header.CorrelationID, header.ConversationID, header.HoldfastReturns, header.RetryUniqueID,
}

// pack returns the id and the headers of m, compressed. It returns nil if there are more than can
// be unpacked.
func pack(m *transport.Message) []byte {
	if m.Headers.Len() > maxHeaders || len(m.ID)+m.Headers.Size() > maxUnpacked/2 {
		return nil
	}
	op := transport.Operation{Message: &transport.Message{ID: m.ID, Headers: m.Headers}}
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	for _, part := range envelope.Encode([]transport.Operation{op}, time.Time{}, maxUnpacked) {
		_, _ = w.Write(part) // a Buffer never fails
	}
	_ = w.Close()
	return b.Bytes()
}

func inHeader(m *transport.Message, full header.Map, packed []byte) *transport.Message {
	c := carrier(m, full)
	c.Headers.Set(header.HoldfastReceived, base64.StdEncoding.EncodeToString(packed))
	return c
}

func inBody(m *transport.Message, full header.Map, packed []byte) *transport.Message {
	c := carrier(m, full)
	c.Headers.Set(header.HoldfastReceived, behind)
	c.Body = append(bytes.Clone(packed), m.Body...)
	return c
}

// carrier returns a message with the headers by which other programs show and return m.
func carrier(m *transport.Message, full header.Map) *transport.Message {
	c := *m
	c.ID = errtree.Cut(m.ID, maxShown)
	c.Headers = header.Map{}
	c.Headers.Reserve(len(shown) + 16)
	for _, name := range shown {
		if value, ok := m.Headers.Lookup(name); ok {
			c.Headers.Set(name, errtree.Cut(value, maxShown))
		}
	}
	short := fault.Trim(full)
	for name, value := range fault.Short(short).All() {
		c.Headers.Set(name, value)
	}
	for _, name := range []string{header.ExceptionMessage, header.ExceptionStackTrace} {
		if value, ok := short.Lookup(name); ok {
			c.Headers.Set(name, value)
		}
	}
	return &c
}

// Unpacked returns the message that a received one is a packed copy of, and any other message as it
// is. One that cannot be unpacked is undecodable.
func Unpacked(m *transport.Message) *transport.Message {
	value, ok := m.Headers.Lookup(header.HoldfastReceived)
	if !ok || m.Undecodable != nil {
		return m
	}
	own, err := unpack(m, value)
	if err != nil {
		bad := *m
		bad.Undecodable = fmt.Errorf("header %s: %w", header.HoldfastReceived, err)
		return &bad
	}
	return own
}

func unpack(m *transport.Message, value string) (*transport.Message, error) {
	own := *m
	packed := m.Body
	if value != behind {
		var err error
		if packed, err = base64.StdEncoding.DecodeString(value); err != nil {
			return nil, err
		}
	}
	text, rest, err := decompress(packed)
	if err != nil {
		return nil, err
	}
	switch {
	case value == behind:
		own.Body = rest
	case len(rest) > 0:
		return nil, errBehind
	}
	e, err := envelope.Decode(text)
	if err != nil {
		return nil, err
	}
	received := e.Ops[0].Message
	if len(e.Ops) > 1 || received.Headers.Len() > maxHeaders {
		return nil, errContents
	}
	if m.ID == errtree.Cut(received.ID, maxShown) {
		own.ID = received.ID
	}
	own.Headers = merged(received.Headers, m.Headers)
	return &own, nil
}

var (
	errBehind   = errors.New("there are bytes behind the packed headers")
	errContents = errors.New("it contains more than the headers of one message")
	errSize     = fmt.Errorf("the headers are larger than %d bytes", maxUnpacked)
)

// decompress returns the contents of the gzip file in front of b, and the bytes behind the file.
func decompress(b []byte) (text, rest []byte, err error) {
	from := bytes.NewReader(b)
	r, err := gzip.NewReader(from)
	if err != nil {
		return nil, nil, err
	}
	r.Multistream(false)
	text, err = io.ReadAll(io.LimitReader(r, maxUnpacked+1))
	switch {
	case err != nil:
		return nil, nil, err
	case len(text) > maxUnpacked:
		return nil, nil, errSize
	}
	return text, b[len(b)-from.Len():], nil
}

// merged returns the received headers, with the headers of the packed message that were added or
// changed since.
func merged(received, packed header.Map) header.Map {
	before := received.CopyOnWrite()
	for name, value := range packed.All() {
		if name == header.HoldfastReceived {
			continue
		}
		if own, ok := before.Lookup(name); ok && value == errtree.Cut(own, maxShown) {
			continue
		}
		received.Set(name, value)
	}
	return received
}
