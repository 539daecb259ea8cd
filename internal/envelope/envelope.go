// Package envelope encodes operations as bodies of messages for an outbox, and decodes them.
//
// The endpoint stores the operations of one commit in its outbox queue as one message or a few,
// called envelopes. The relay decodes them and sends the operations. Instances of an older version
// may read envelopes of a newer one while a deployment is rolling, so the first byte is a version,
// from 1 to 15: [Decode] returns a [*VersionError] for one that it does not know. A later version
// must differ from version 1 behind the first byte too, so that a damaged first byte is recognized:
// Decode does not accept its other bytes as version 1.
//
// # Version 1
//
// A number is an unsigned varint of encoding/binary in its shortest form. A text is its length in
// bytes and its bytes. A time is the seconds since the year 1 and the nanoseconds; 0 0 is no time.
// A set of pairs is 0 for nil, otherwise the number of pairs plus 1 and then the pairs of texts
// with ascending, distinct names.
//
//	envelope  = 1 time:encoded n operation*n
//	operation = text:fields text:body
//	fields    = text:queue n text:type*n text:id n (text:name text:value)*n pairs:native pairs:properties time:due number:TTL
//
// The TTL is a duration in nanoseconds, as the signed varint of encoding/binary. Equal operations
// that are encoded at the same time are equal bytes.
package envelope

import (
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// version1 is the version that Encode writes, and the only one that Decode reads.
const version1 = 1

// maxVersion is the largest version that there will be.
const maxVersion = 15

// VersionError is returned by [Decode] for an envelope of another version. The envelope is not
// damaged: an instance of that version can send it.
type VersionError struct {
	Version byte
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("the outbox message was written by another version of the program (encoding %d; this version reads %d): "+
		"leave it for an instance of that version, or update this one", e.Version, version1)
}

// Envelope is a decoded envelope.
type Envelope struct {
	// Encoded is when the operations were encoded, by the clock of the process that did it.
	Encoded time.Time
	// Ops are the operations in their order. Delays are absolute: After is 0. A TTL starts at the
	// time that the operation is due, or at Encoded if that is later. NativeID, Undecodable and
	// Receipt are not encoded.
	Ops []transport.Operation
}

// AppendLive appends to ops the operations that have not expired, as they are to be sent at now: a
// TTL is the rest of it.
func (e *Envelope) AppendLive(ops []transport.Operation, now time.Time) []transport.Operation {
	for i := range e.Ops {
		op := e.Ops[i]
		if op.TTL != 0 {
			if op.TTL = e.rest(&op, now); op.TTL <= 0 {
				continue
			}
		}
		ops = append(ops, op)
	}
	return ops
}

// rest returns the time that is left at now of the operation's TTL: 0 or less if the operation has
// expired. It is never longer than the TTL, whatever the clock of this process shows.
func (e *Envelope) rest(op *transport.Operation, now time.Time) time.Duration {
	expires := later(e.Encoded, op.At).Add(op.TTL)
	return min(op.TTL, expires.Sub(later(now, op.At)))
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
