// Package uuid makes the ids of messages and conversations.
package uuid

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"time"
)

// New returns a UUID version 7 (RFC 9562) of a time. Later ids sort later, which keeps
// indexes compact. The random part is not secret.
func New(now time.Time) string {
	var u [16]byte
	binary.BigEndian.PutUint64(u[:], uint64(now.UnixMilli())<<16|rand.Uint64N(1<<16))
	binary.BigEndian.PutUint64(u[8:], rand.Uint64())
	u[6] = u[6]&0x0f | 0x70
	u[8] = u[8]&0x3f | 0x80

	return Text(u)
}

// Text returns a UUID as text.
func Text(u [16]byte) string {
	var text [36]byte
	hex.Encode(text[0:8], u[0:4])
	hex.Encode(text[9:13], u[4:6])
	hex.Encode(text[14:18], u[6:8])
	hex.Encode(text[19:23], u[8:10])
	hex.Encode(text[24:36], u[10:16])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	return string(text[:])
}
