// Package strictjson decodes JSON that is valid UTF-8. Package encoding/json replaces bytes that
// are not by U+FFFD, and so changes a text without an error.
package strictjson

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// Unmarshal is [json.Unmarshal] for a text that must be valid UTF-8 (RFC 8259, section 8.1).
func Unmarshal(text []byte, v any) error {
	if err := Valid(text); err != nil {
		return err
	}
	return json.Unmarshal(text, v) //nolint:wrapcheck // the callers name what they decode
}

// Valid returns an error with the offset of the first byte that is not UTF-8.
func Valid(text []byte) error {
	if utf8.Valid(text) {
		return nil
	}
	for at := 0; ; {
		r, size := utf8.DecodeRune(text[at:])
		if r == utf8.RuneError && size <= 1 {
			return fmt.Errorf("the text is not valid UTF-8 at byte %d", at)
		}
		at += size
	}
}
