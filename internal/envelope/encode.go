package envelope

import (
	"encoding/binary"
	"maps"
	"math/bits"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

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
