package envelope

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/header"
)

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
