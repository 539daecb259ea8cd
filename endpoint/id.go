package endpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"time"
)

// newID makes a UUID version 7 (RFC 9562): ids made later sort later, which keeps
// indexes compact. Its random part need not be secret.
func newID(now time.Time) string {
	var u [16]byte
	ms := uint64(now.UnixMilli())
	for i := range 6 {
		u[i] = byte(ms >> (8 * (5 - i)))
	}
	a, b := rand.Uint64(), rand.Uint64()
	for i := range 2 {
		u[6+i] = byte(a >> (8 * i))
	}
	for i := range 8 {
		u[8+i] = byte(b >> (8 * i))
	}
	u[6] = u[6]&0x0f | 0x70
	u[8] = u[8]&0x3f | 0x80
	return formatUUID(u)
}

func formatUUID(u [16]byte) string {
	var text [36]byte
	hex.Encode(text[0:8], u[0:4])
	hex.Encode(text[9:13], u[4:6])
	hex.Encode(text[14:18], u[6:8])
	hex.Encode(text[19:23], u[8:10])
	hex.Encode(text[24:36], u[10:16])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	return string(text[:])
}

// hostID identifies an endpoint on a machine: the same after a restart.
func hostID(endpoint, machine string) string {
	sum := sha256.Sum256([]byte(endpoint + "\x00" + machine))
	return hex.EncodeToString(sum[:16])
}
