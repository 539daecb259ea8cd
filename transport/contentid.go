package transport

import (
	"encoding/hex"
	"strings"
)

const (
	contentPrefix = "content:"
	contentDigits = 32
)

// ContentID returns the id that a driver gives a received message without an id, made of a hash of
// what the message contains. All deliveries of the message have the id, and so have all messages
// with the same content. An endpoint therefore takes no message with a content id for a duplicate.
func ContentID(hash [contentDigits / 2]byte) string {
	return contentPrefix + hex.EncodeToString(hash[:])
}

// IsContentID reports whether id has the form of a [ContentID]: "content:" and exactly 32
// hexadecimal digits in lower case.
func IsContentID(id string) bool {
	digits, ok := strings.CutPrefix(id, contentPrefix)
	return ok && len(digits) == contentDigits && strings.Trim(digits, "0123456789abcdef") == ""
}
