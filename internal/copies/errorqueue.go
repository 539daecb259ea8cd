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
	"errors"
	"iter"
	"slices"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/transport"
)

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
// The last candidate names no queue to which the message could be returned. It is for a broker that
// has no room for a packed one either.
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
