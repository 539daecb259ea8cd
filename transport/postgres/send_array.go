package postgres

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"

	"github.com/jackc/pgx/v5/pgtype"
)

// array is a parameter of the engine's statements. It is encoded in one piece: pgx encodes element
// by element, and copies the headers and bodies of a batch each time its buffer grows.
type array[E element] []E

// element is a value of an array.
type element interface {
	number | text | blob
	oid() uint32
	size() int // in bytes
	appendTo(buf []byte) []byte
}

// The elements of arrays.
type (
	number int64  // bigint
	text   string // text
	blob   []byte // bytea; nil is empty, as NServiceBus cannot read null
)

func (number) oid() uint32 { return pgtype.Int8OID }
func (text) oid() uint32   { return pgtype.TextOID }
func (blob) oid() uint32   { return pgtype.ByteaOID }

func (number) size() int { return 8 }
func (t text) size() int { return len(t) }
func (b blob) size() int { return len(b) }

func (n number) appendTo(buf []byte) []byte { return binary.BigEndian.AppendUint64(buf, uint64(n)) }
func (t text) appendTo(buf []byte) []byte   { return append(buf, t...) }
func (b blob) appendTo(buf []byte) []byte   { return append(buf, b...) }

// textOf returns b as text without a copy. The text is valid until b changes.
func textOf(b []byte) text { return text(unsafe.String(unsafe.SliceData(b), len(b))) }

// appendTo appends the array in PostgreSQL's binary format (array_recv in arrayfuncs.c): the number
// of dimensions, a flag for nulls, the element type, the length, the first index, and then each
// element after its size.
func (a array[E]) appendTo(buf []byte) []byte {
	const lead, dimensions, nulls, first = 20, 1, 1, 1
	size := lead
	for _, e := range a {
		size += 4 + e.size()
	}
	buf = slices.Grow(buf, size)
	var e E
	for _, n := range []uint32{dimensions, nulls, e.oid(), uint32(len(a)), first} {
		buf = binary.BigEndian.AppendUint32(buf, n)
	}
	for _, e := range a {
		buf = binary.BigEndian.AppendUint32(buf, uint32(int32(e.size())))
		buf = e.appendTo(buf)
	}
	return buf
}

// arrayCodec is pgx's codec with support for array.
type arrayCodec struct{ pgtype.Codec }

// useArrays registers arrayCodec for a connection.
func useArrays(m *pgtype.Map) {
	for _, oid := range []uint32{pgtype.Int8ArrayOID, pgtype.TextArrayOID, pgtype.ByteaArrayOID} {
		if t, ok := m.TypeForOID(oid); ok {
			m.RegisterType(&pgtype.Type{Name: t.Name, OID: oid, Codec: arrayCodec{t.Codec}})
		}
	}
}

// PlanEncode implements [pgtype.Codec].
func (c arrayCodec) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if _, ok := value.(appender); ok && format == pgtype.BinaryFormatCode {
		return arrayPlan{}
	}
	return c.Codec.PlanEncode(m, oid, format, value)
}

type appender interface{ appendTo(buf []byte) []byte }

type arrayPlan struct{}

// Encode implements [pgtype.EncodePlan].
func (arrayPlan) Encode(value any, buf []byte) ([]byte, error) {
	a, ok := value.(appender)
	if !ok {
		return nil, fmt.Errorf("%T is no array", value)
	}
	return a.appendTo(buf), nil
}

// plain replaces arrays by slices, which every connection can encode.
func plain(arrays []any) []any {
	for i, a := range arrays {
		switch a := a.(type) {
		case array[text]:
			arrays[i] = convert(a, func(t text) string { return string(t) })
		case array[number]:
			arrays[i] = convert(a, func(n number) int64 { return int64(n) })
		case array[blob]:
			arrays[i] = convert(a, func(b blob) []byte { return bytesOf(b) })
		}
	}
	return arrays
}

// bytesOf returns body, and an empty slice for nil, which would be null.
func bytesOf(body []byte) []byte {
	if body == nil {
		return []byte{}
	}
	return body
}

func convert[To any, From element](a array[From], to func(From) To) []To {
	all := make([]To, len(a))
	for i, e := range a {
		all[i] = to(e)
	}
	return all
}
