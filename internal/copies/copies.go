// Package copies makes each copy of a message for an error queue, and unpacks the copies. It does no
// I/O.
//
// A broker may refuse a copy because the copy has more headers than the received message. So a copy
// for an error queue has several candidates. The first has all headers, and each further one needs
// less room. A packed candidate has the headers by which ServiceControl shows and returns the
// message. All received headers are in [header.HoldfastReceived].
//
// # The packed form
//
// The received id and headers are an envelope of package envelope, with one operation without a
// body, compressed by gzip. The value of [header.HoldfastReceived] is the base64 text of the
// result. If that has no room either, the value is "body", and the body of the message is the
// compressed envelope followed by the received body. Headers that were added or changed since
// override the packed ones.
package copies

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
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

// Unpacked returns the original of a packed copy, and any other message unchanged. A copy that
// cannot be unpacked is undecodable.
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

// Form is the form of a candidate.
type Form int8

// The forms of candidates.
const (
	Full     Form = iota // all headers
	Trimmed              // short fault headers
	Minimal              // the fault headers without which the message cannot be returned
	Packed               // the received headers are compressed
	Original             // no fault headers
)

// ForErrorQueue returns the candidates of the copy of a message for an error queue, the best first.
// m has the received headers, and full are the fault headers. The candidates share the memory of m.
//
// The last candidate names no queue to which the message could be returned. The candidate is for a
// broker that has no room for a packed copy either.
func ForErrorQueue(m *transport.Message, full header.Map) iter.Seq2[Form, *transport.Message] {
	return func(yield func(Form, *transport.Message) bool) {
		_ = yield(Full, with(m, full)) &&
			yield(Trimmed, with(m, fault.Trim(full))) &&
			yield(Minimal, with(m, fault.Short(full))) &&
			yield(Minimal, with(m, fault.Minimal(full))) &&
			yieldPacked(yield, with(m, header.Map{}), full) &&
			yield(Original, with(m, header.Map{}))
	}
}

// ForReturn returns the candidates of a message that is returned from an error queue to the queue
// that it failed in.
func ForReturn(m *transport.Message) iter.Seq2[Form, *transport.Message] {
	return func(yield func(Form, *transport.Message) bool) {
		_ = yield(Full, m) && yieldPacked(yield, m, header.Map{})
	}
}

// yieldPacked yields the packed candidates of m, unless [Unpacked] would refuse to unpack them.
func yieldPacked(yield func(Form, *transport.Message) bool, m *transport.Message, full header.Map) bool {
	packed := pack(m)
	if packed == nil {
		return true
	}
	return yield(Packed, inHeader(m, full, packed)) && yield(Packed, inBody(m, full, packed))
}

// with returns a copy of m with fault headers.
func with(m *transport.Message, full header.Map) *transport.Message {
	c := *m
	c.Headers = fault.ErrorHeaders(m.Headers, full)
	c.Headers.SetDefault(header.MessageID, m.ID)
	return &c
}

// OfMessage reports whether err is the refusal of a message because of its size, or because of the
// number, the text or the encoding of its headers. The queue may accept another candidate of the
// same copy. A queue that is missing, full or busy, or that denies the access, refuses each
// candidate.
func OfMessage(err error) bool {
	return (errors.Is(err, transport.ErrTooLarge) || errors.Is(err, transport.ErrContent)) &&
		!slices.ContainsFunc(ofQueue, func(target error) bool { return errors.Is(err, target) })
}

var ofQueue = []error{
	transport.ErrNoQueue, transport.ErrDenied, transport.ErrFull, transport.ErrUnreachable, transport.ErrOutcomeUnknown, transport.ErrClosed,
}

// StrandedError is an error of another operation than the copy. The broker would refuse each other
// copy too.
type StrandedError struct{ errtree.Mark }

// ProgramError is an error of a function of the program, which may wrap any error. The broker has
// not answered with it.
type ProgramError struct{ errtree.Mark }

// Refused reports whether the broker has refused the copy, so that the next candidate or the next
// fallback is to be tried.
func Refused(err error) bool {
	_, refusal := errors.AsType[*transport.DispatchError](err)
	_, large := errors.AsType[*transport.TooLargeError](err)
	_, stranded := errors.AsType[*StrandedError](err)
	return (refusal || large) && !stranded && !Unanswered(err)
}

// Unanswered reports whether the broker has neither accepted nor refused a call, as far as is
// known.
func Unanswered(err error) bool {
	_, program := errors.AsType[*ProgramError](err)
	return !program && slices.ContainsFunc(away, func(one error) bool { return errors.Is(err, one) })
}

// away are the errors of a broker that does not answer.
var away = []error{
	transport.ErrOutcomeUnknown, transport.ErrUnreachable, transport.ErrClosed,
	context.DeadlineExceeded, context.Canceled,
}

// Permanent reports whether a refusal does not pass by itself soon.
func Permanent(err error) bool {
	return errors.Is(err, transport.ErrNoQueue) || errors.Is(err, transport.ErrTooLarge) || errors.Is(err, transport.ErrContent)
}

// ErrorOf returns the error of operation i of a dispatch that failed with err; nil if the dispatch
// failed because of other operations.
func ErrorOf(err error, i int) error {
	refusal, ok := errors.AsType[*transport.DispatchError](err)
	if !ok {
		return err
	}
	for _, op := range refusal.Ops {
		if op.Index == i {
			return op.Err
		}
	}
	return nil
}

// Single returns the error of the operation if a dispatch of one operation has failed with err, and
// otherwise err.
func Single(err error) error {
	if failed, ok := errors.AsType[*transport.DispatchError](err); ok && failed.Total == 1 {
		return failed.Ops[0].Err
	}
	return err
}

// CopyError is the failure of a message one of whose copies was refused because of its content.
type CopyError struct {
	Doing string // the copy, as the subject of a sentence
	Err   error
}

func (e *CopyError) Error() string { return fmt.Sprintf("%s: %v", e.Doing, Single(e.Err)) }

// Unwrap returns the refusal.
func (e *CopyError) Unwrap() error { return e.Err }

// FaultClass returns the class of the fault in the error queue.
func (e *CopyError) FaultClass() string { return "undeliverable" }

// FaultType returns the name of the type in fault headers.
func (e *CopyError) FaultType() string { return "*endpoint.copyError" }
