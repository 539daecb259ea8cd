package header

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestPlainLen(t *testing.T) {
	const long = 20
	for c := range 256 {
		for at := range long {
			b := []byte(strings.Repeat("a", long))
			b[at] = byte(c)
			want := at
			if c >= ' ' && c != '"' && c != '\\' && c < utf8.RuneSelf {
				want = long
			}
			if got := plainLen(string(b)); got != want {
				t.Fatalf("byte %#x at %d: %d plain bytes, want %d", c, at, got, want)
			}
			if got := plainLen(string(b[:at])); got != at {
				t.Fatalf("%d plain bytes: got %d", at, got)
			}
		}
	}
}
