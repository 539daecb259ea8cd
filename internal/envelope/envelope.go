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
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/header"
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

// Encode returns the operations as envelopes, in their order: none for no operations. Each is at
// most limit bytes long, unless it has a single operation. A limit of 0 or less means no limit. A
// delay is counted from now.
func Encode(ops []transport.Operation, now time.Time, limit int) [][]byte {
	var envelopes [][]byte
	for len(ops) > 0 {
		n, size := fit(ops, now, limit)
		b := append(make([]byte, 0, size), version1)
		b = appendTime(b, now)
		b = binary.AppendUvarint(b, uint64(n))
		for i := range n {
			b = appendOperation(b, &ops[i], now)
		}
		envelopes, ops = append(envelopes, b), ops[n:]
	}
	return envelopes
}

// fit returns how many of the operations, at least one, the next envelope has, and its size.
func fit(ops []transport.Operation, now time.Time, limit int) (n, size int) {
	head := 1 + sizeTime(now)
	content := 0
	for i := range ops {
		grown := content + sizeOperation(&ops[i], now)
		if i > 0 && limit > 0 && head+sizeNumber(i+1)+grown > limit {
			break
		}
		n, content = i+1, grown
	}
	return n, head + sizeNumber(n) + content
}

func appendOperation(b []byte, op *transport.Operation, now time.Time) []byte {
	b = binary.AppendUvarint(b, uint64(sizeFields(op, now)))
	b = appendText(b, op.Queue)
	b = binary.AppendUvarint(b, uint64(len(op.Types)))
	for _, name := range op.Types {
		b = appendText(b, name)
	}
	b = appendText(b, op.Message.ID)
	b = binary.AppendUvarint(b, uint64(op.Message.Headers.Len()))
	for name, value := range op.Message.Headers.All() {
		b = appendText(appendText(b, name), value)
	}
	b = appendPairs(b, op.Message.Native)
	b = appendPairs(b, op.Properties)
	b = appendTime(b, due(op, now))
	b = binary.AppendVarint(b, int64(op.TTL))
	b = binary.AppendUvarint(b, uint64(len(op.Message.Body)))
	return append(b, op.Message.Body...)
}

func sizeOperation(op *transport.Operation, now time.Time) int {
	return sizeText(sizeFields(op, now)) + sizeText(len(op.Message.Body))
}

func sizeFields(op *transport.Operation, now time.Time) int {
	n := sizeText(len(op.Queue)) + sizeNumber(len(op.Types))
	for _, name := range op.Types {
		n += sizeText(len(name))
	}
	n += sizeText(len(op.Message.ID)) + sizeNumber(op.Message.Headers.Len())
	for name, value := range op.Message.Headers.All() {
		n += sizeText(len(name)) + sizeText(len(value))
	}
	n += sizePairs(op.Message.Native) + sizePairs(op.Properties) + sizeTime(due(op, now))
	return n + sizeUvarint(uint64(op.TTL)<<1^uint64(op.TTL>>63))
}

// due returns when the operation is due: the zero time if it has no delay.
func due(op *transport.Operation, now time.Time) time.Time {
	if op.At.IsZero() && op.After > 0 {
		return now.Add(op.After)
	}
	return op.At
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendPairs(b []byte, pairs map[string]string) []byte {
	if pairs == nil {
		return append(b, 0)
	}
	b = binary.AppendUvarint(b, uint64(len(pairs))+1)
	for _, name := range slices.Sorted(maps.Keys(pairs)) {
		b = appendText(appendText(b, name), pairs[name])
	}
	return b
}

func sizePairs(pairs map[string]string) int {
	if pairs == nil {
		return 1
	}
	n := sizeNumber(len(pairs) + 1)
	for name, value := range pairs {
		n += sizeText(len(name)) + sizeText(len(value))
	}
	return n
}

// year1 is the zero time in Unix seconds.
const year1 = -62135596800

func seconds(t time.Time) uint64 { return uint64(t.Unix() - year1) }

func appendTime(b []byte, t time.Time) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, seconds(t)), uint64(t.Nanosecond()))
}

func sizeTime(t time.Time) int { return sizeUvarint(seconds(t)) + sizeNumber(t.Nanosecond()) }

// sizeText returns the size of a text of n bytes with its length.
func sizeText(n int) int { return sizeNumber(n) + n }

func sizeNumber(n int) int { return sizeUvarint(uint64(n)) }

func sizeUvarint(n uint64) int { return (bits.Len64(n|1) + 6) / 7 }

var errDamaged = errors.New("the outbox message is damaged, and no version of the program can send it (see holdfast outbox show, and discard it)")

func damaged(reason string) error { return fmt.Errorf("%w: %s", errDamaged, reason) }

// A reader reads values from b. After its first error it returns zero values.
type reader struct {
	b    []byte
	text string // b, for the values that are strings
	at   int
	err  error
}

func (r *reader) fail(reason string) {
	if r.err == nil {
		r.err = damaged(reason)
		r.at = len(r.b)
	}
}

func (r *reader) end() {
	if r.at < len(r.b) {
		r.fail("there are bytes after its end")
	}
}

func (r *reader) uvarint() uint64 {
	n, size := binary.Uvarint(r.b[r.at:])
	if size <= 0 {
		r.fail("it is cut off, or a number is too large")
		return 0
	}
	if size != sizeUvarint(n) {
		r.fail("a number is not in its shortest form")
		return 0
	}
	r.at += size
	return n
}

// number reads a length or a count: at most the number of bytes that are left.
func (r *reader) number() int {
	n := r.uvarint()
	if n > uint64(len(r.b)-r.at) {
		r.fail("a length or count is larger than the rest")
		return 0
	}
	return int(n)
}

// follows reports whether so many texts follow, and fails if not. So a wrong count is found before
// memory is allocated for it.
func (r *reader) follows(texts int) bool {
	ahead := *r
	for i := 0; i < texts && ahead.err == nil; i++ {
		ahead.bytes(ahead.number())
	}
	if ahead.err != nil {
		r.err, r.at = ahead.err, len(r.b)
	}
	return r.err == nil
}

// bytes reads n bytes. Appending to them does not change the bytes after them.
func (r *reader) bytes(n int) []byte {
	from := r.at
	if n > len(r.b)-from {
		r.fail("it is cut off")
		return nil
	}
	r.at += n
	return r.b[from:r.at:r.at]
}

func (r *reader) string() string {
	n := r.number()
	from := r.at
	r.at += n
	return r.text[from:r.at]
}

func (r *reader) types() []string {
	n := r.number()
	if n == 0 || !r.follows(n) {
		return nil
	}
	types := make([]string, n)
	for i := range types {
		types[i] = r.string()
	}
	return types
}

func (r *reader) headers() header.Map {
	n := r.number()
	if n == 0 || !r.follows(2*n) {
		return header.Map{}
	}
	fields := make([]header.Field, n)
	for i := range fields {
		fields[i] = header.Field{Name: r.string(), Value: r.string()}
	}
	if !distinct(fields) {
		r.fail("two headers have the same name")
	}
	return header.Of(fields)
}

// few is the number of headers up to which comparing each with each costs less than sorting them.
const few = 32

func distinct(fields []header.Field) bool {
	if len(fields) > few {
		names := make([]string, len(fields))
		for i := range fields {
			names[i] = fields[i].Name
		}
		slices.Sort(names)
		return len(slices.Compact(names)) == len(fields)
	}
	for i := range fields {
		for j := range i {
			if fields[i].Name == fields[j].Name {
				return false
			}
		}
	}
	return true
}

// pairs reads a map: nil where the number is 0, otherwise one pair less than the number.
func (r *reader) pairs() map[string]string {
	n := r.number() - 1
	if n < 0 || !r.follows(2*n) {
		return nil
	}
	pairs := make(map[string]string, n)
	last := ""
	for i := range n {
		name := r.string()
		if i > 0 && name <= last {
			r.fail("names are not in order")
			return nil
		}
		pairs[name], last = r.string(), name
	}
	return pairs
}

func (r *reader) time() time.Time {
	s, nanoseconds := r.uvarint(), r.uvarint()
	if nanoseconds >= uint64(time.Second) {
		r.fail("a time has more than a second in nanoseconds")
	}
	if r.err != nil || s == 0 && nanoseconds == 0 {
		return time.Time{}
	}
	return time.Unix(int64(s)+year1, int64(nanoseconds)).UTC()
}

func (r *reader) duration() time.Duration {
	n := r.uvarint()
	return time.Duration(n>>1) ^ -time.Duration(n&1)
}
