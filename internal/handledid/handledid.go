// Package handledid has the ids under which endpoints record the messages that they have handled.
package handledid

import (
	"crypto/sha256"
	"io"
)

// Of returns the id of a message with an id that its endpoint has received from its own queue.
// Package endpoint gives the short name of the queue, which is the name of the endpoint.
func Of(queue, id string) (key [16]byte) {
	if !ordered(id, &key) {
		key = Hashed(queue, id)
	}
	return key
}

// Hashed returns the id of a message that its endpoint has received from another queue than its
// own: a UUID of version 8 (RFC 9562).
func Hashed(queue, id string) (key [16]byte) {
	h := sha256.New()
	_, _ = io.WriteString(h, queue)
	_, _ = h.Write([]byte{0}) // no queue has a zero byte in its name
	_, _ = io.WriteString(h, id)
	copy(key[:], h.Sum(nil))
	key[6] = key[6]&0x0f | 0x80
	key[8] = key[8]&0x3f | 0x80
	return key
}

// ordered sets key to id if id is a UUID in lower case, and reports whether id is one. Ids of this
// framework grow with time, and so do their keys. Hashes are UUIDs of version 8, so an id of
// version 8 is hashed too: no sender can choose the key of another message.
func ordered(id string, key *[16]byte) bool {
	if len(id) != 36 || id[14] == '8' ||
		id[8] != '-' || id[13] != '-' || id[18] != '-' || id[23] != '-' {
		return false
	}
	for i, at := 0, 0; i < len(key); i, at = i+1, at+2 {
		if id[at] == '-' {
			at++
		}
		high, low := digit(id[at]), digit(id[at+1])
		if high > 15 || low > 15 {
			return false
		}
		key[i] = high<<4 | low
	}
	return true
}

// digit returns the value of a hexadecimal digit in lower case, and 16 for any other character.
func digit(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	}
	return 16
}
