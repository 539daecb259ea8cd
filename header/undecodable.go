package header

import (
	"encoding/base64"
	"fmt"
	"strings"
	"unicode/utf8"
)

// binaryPrefix starts an [UndecodableHeaders] value whose rest is base64 (RFC 4648, section 4, with
// padding).
const binaryPrefix = "base64:"

// FormatUndecodable returns raw as the value of [UndecodableHeaders]: raw itself where it is text,
// otherwise "base64:" and the base64 of raw. Text is valid UTF-8 without NUL that does not start
// with "base64:".
func FormatUndecodable(raw string) string {
	if utf8.ValidString(raw) && strings.IndexByte(raw, 0) < 0 && !strings.HasPrefix(raw, binaryPrefix) {
		return raw
	}
	return binaryPrefix + base64.StdEncoding.EncodeToString([]byte(raw))
}

// ParseUndecodable returns the headers that [FormatUndecodable] was called with, byte for byte. It
// fails where the text after "base64:" is not base64.
func ParseUndecodable(value string) (string, error) {
	encoded, binary := strings.CutPrefix(value, binaryPrefix)
	if !binary {
		return value, nil
	}
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return "", fmt.Errorf("header %s: %w", UndecodableHeaders, err)
	}
	return string(raw), nil
}
