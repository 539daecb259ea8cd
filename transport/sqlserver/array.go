package sqlserver

import (
	"unsafe"

	"github.com/jackc/pgx/v5/pgtype"
)

// array is a parameter that pgx encodes without an allocation per element: it gets pointers
// to them. (As []string or []int64 each element becomes a value in an interface.)
type array[E any] []E

// Dimensions implements [pgtype.ArrayGetter].
func (a array[E]) Dimensions() []pgtype.ArrayDimension {
	if a == nil {
		return nil
	}
	return []pgtype.ArrayDimension{{Length: int32(len(a)), LowerBound: 1}}
}

// Index implements [pgtype.ArrayGetter].
func (a array[E]) Index(i int) any { return &a[i] }

// IndexType implements [pgtype.ArrayGetter].
func (a array[E]) IndexType() any { return new(E) }

// The elements of arrays.
type (
	number int64  // bigint or integer
	text   string // text
	blob   []byte // bytea; nil is null
)

func (n *number) Int64Value() (pgtype.Int8, error) {
	return pgtype.Int8{Int64: int64(*n), Valid: true}, nil
}

func (t *text) TextValue() (pgtype.Text, error) {
	return pgtype.Text{String: string(*t), Valid: true}, nil
}
func (b *blob) BytesValue() ([]byte, error) { return *b, nil }

// textOf is b as text without a copy: it is good for as long as b does not change.
func textOf(b []byte) text { return text(unsafe.String(unsafe.SliceData(b), len(b))) }
