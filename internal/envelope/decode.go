package envelope

import (
	"fmt"

	"github.com/holdfast-go/holdfast/transport"
)

// minOperation is the size of the shortest operation.
const minOperation = 11

// Decode returns the contents of an envelope. The bodies of its messages share the memory of b. It
// fails with a [*VersionError] for another version, and with another error for bytes that Encode
// does not return: the memory that it uses is in proportion to the length of b, whatever lengths
// and counts the bytes have.
func Decode(b []byte) (*Envelope, error) {
	if len(b) > 0 && b[0] != version1 {
		return nil, otherVersion(b)
	}
	return decode1(b)
}

// otherVersion returns the error of an envelope whose first byte is not that of version 1. The byte
// may be damaged.
func otherVersion(b []byte) error {
	if b[0] == 0 || b[0] > maxVersion {
		return damaged(fmt.Sprintf("there is no version %d", b[0]))
	}
	if _, err := decode1(b); err == nil {
		return damaged(fmt.Sprintf("its first byte is %d, and the others are those of version %d", b[0], version1))
	}
	return &VersionError{b[0]}
}

// decode1 decodes version 1, whatever the first byte.
func decode1(b []byte) (*Envelope, error) {
	r := reader{b: b}
	r.bytes(1)
	e := &Envelope{Encoded: r.time()}
	n := r.number()
	if n == 0 {
		r.fail("no operations")
	}
	if n > len(b)/minOperation {
		r.fail("there are more operations than bytes for them")
	}
	if !r.follows(2 * n) {
		return nil, r.err
	}
	e.Ops = make([]transport.Operation, n)
	messages := make([]transport.Message, n)
	for i := range e.Ops {
		e.Ops[i].Message = &messages[i]
		if r.operation(&e.Ops[i]); r.err != nil {
			return nil, r.err
		}
	}
	if r.end(); r.err != nil {
		return nil, r.err
	}
	return e, nil
}

func (r *reader) operation(op *transport.Operation) {
	b := r.bytes(r.number())
	fields := reader{b: b, text: string(b)} // all texts share one allocation
	op.Queue = fields.string()
	op.Types = fields.types()
	op.Message.ID = fields.string()
	op.Message.Headers = fields.headers()
	op.Message.Native = fields.pairs()
	op.Properties = fields.pairs()
	op.At = fields.time()
	op.TTL = fields.duration()
	fields.end()
	if r.err == nil {
		r.err = fields.err
	}
	op.Message.Body = r.bytes(r.number())
}
