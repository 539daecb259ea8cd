package header

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"unicode/utf8"
)

// AppendJSON appends the headers to b as one JSON object of strings, in order.
// Bytes that are not UTF-8 become U+FFFD, as in encoding/json.
func (m Map) AppendJSON(b []byte) []byte {
	size := len("{}")
	for _, f := range m.fields {
		size += len(f.Name) + len(f.Value) + len(`"":"",`)
	}
	b = append(slices.Grow(b, size), '{') // escapes may need more
	for i, f := range m.fields {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, f.Name)
		b = append(b, ':')
		b = appendString(b, f.Value)
	}
	return append(b, '}')
}

// MarshalJSON implements json.Marshaler: see [Map.AppendJSON].
func (m Map) MarshalJSON() ([]byte, error) { return m.AppendJSON(nil), nil }

// UnmarshalJSON parses a JSON object. Because other producers write them, numbers and booleans
// become their text and null becomes "". Nested values are an error. Of two headers with the same
// name the last one wins.
func (m *Map) UnmarshalJSON(b []byte) error {
	parsed, err := ParseJSON(string(b))
	if err != nil {
		return err
	}
	*m = parsed
	return nil
}

const hexDigits = "0123456789abcdef"

func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := plainLen(s); i < len(s); i += plainLen(s[i:]) {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && size == 1 {
				b = append(append(b, s[start:i]...), `\ufffd`...)
				start = i + 1
			}
			i += size
			continue
		}
		b = append(b, s[start:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, `\n`...)
		case '\r':
			b = append(b, `\r`...)
		case '\t':
			b = append(b, `\t`...)
		default:
			b = append(b, `\u00`...)
			b = append(b, hexDigits[c>>4], hexDigits[c&0xf])
		}
		i++
		start = i
	}
	return append(append(b, s[start:]...), '"')
}

// plainLen returns the number of leading bytes of s that need no escape in JSON: ASCII without
// control characters, quotes and backslashes. The first loop looks at eight bytes at once.
func plainLen(s string) int {
	const each, high = 0x0101010101010101, 0x8080808080808080
	i := 0
	for ; i+8 <= len(s); i += 8 {
		x := uint64(s[i]) | uint64(s[i+1])<<8 | uint64(s[i+2])<<16 | uint64(s[i+3])<<24 |
			uint64(s[i+4])<<32 | uint64(s[i+5])<<40 | uint64(s[i+6])<<48 | uint64(s[i+7])<<56
		quote, backslash := x^(each*'"'), x^(each*'\\')
		// The high bit of a byte is set if the byte is not plain, or perhaps behind such a byte.
		if found := (x | (x-each*' ')&^x | (quote-each)&^quote | (backslash-each)&^backslash) & high; found != 0 {
			return i + bits.TrailingZeros64(found)/8
		}
	}
	for i < len(s) && s[i] >= ' ' && s[i] != '"' && s[i] != '\\' && s[i] < utf8.RuneSelf {
		i++
	}
	return i
}

var errHeaderJSON = errors.New("headers: not a JSON object of strings")

// MaxCount is the largest number of headers that [ParseJSON] accepts, those with the same name
// included: a Map searches linearly.
const MaxCount = 1000

var errTooMany = fmt.Errorf("headers: more than %d", MaxCount)

// ParseJSON parses a JSON object as [Map.UnmarshalJSON] does. It fails if there are more than
// [MaxCount] headers. Headers without escaped characters share the memory of s.
func ParseJSON(s string) (Map, error) {
	p := parser{rest: s}
	p.space()
	if !p.take('{') {
		return Map{}, p.fail()
	}
	var m Map
	m.Reserve(min(16, len(s)/8))
	p.space()
	if p.take('}') {
		return m, p.end()
	}
	for n := 1; ; n++ {
		if n > MaxCount {
			return Map{}, errTooMany
		}
		p.space()
		name, ok := p.text()
		p.space()
		if !ok || !p.take(':') {
			return Map{}, p.fail()
		}
		p.space()
		value, ok := p.value()
		if !ok {
			return Map{}, p.fail()
		}
		m.Set(name, value)
		p.space()
		if p.take(',') {
			continue
		}
		if p.take('}') {
			return m, p.end()
		}
		return Map{}, p.fail()
	}
}

type parser struct{ rest string }

func (p *parser) fail() error { return fmt.Errorf("%w: at %.40q", errHeaderJSON, p.rest) }

func (p *parser) end() error {
	p.space()
	if p.rest != "" {
		return p.fail()
	}
	return nil
}

func (p *parser) space() {
	for p.rest != "" && (p.rest[0] == ' ' || p.rest[0] == '\n' || p.rest[0] == '\t' || p.rest[0] == '\r') {
		p.rest = p.rest[1:]
	}
}

func (p *parser) take(c byte) bool {
	taken := p.rest != "" && p.rest[0] == c
	if taken {
		p.rest = p.rest[1:]
	}
	return taken
}

func (p *parser) text() (string, bool) {
	if p.rest == "" || p.rest[0] != '"' {
		return "", false
	}
	first := 1 + plainLen(p.rest[1:])
	if first < len(p.rest) && p.rest[first] == '"' {
		s := p.rest[1:first]
		p.rest = p.rest[first+1:]
		return s, true
	}
	plain := true
	for i := first; i < len(p.rest); i++ {
		switch c := p.rest[i]; {
		case c == '"':
			token := p.rest[:i+1]
			if plain && utf8.ValidString(token) {
				p.rest = p.rest[i+1:]
				return token[1:i], true
			}
			var s string
			if json.Unmarshal([]byte(token), &s) != nil {
				return "", false
			}
			p.rest = p.rest[i+1:]
			return s, true
		case c == '\\':
			plain = false
			i++
		case c < ' ':
			return "", false
		}
	}
	return "", false
}

func (p *parser) value() (string, bool) {
	if p.rest != "" && p.rest[0] == '"' {
		return p.text()
	}
	end := strings.IndexAny(p.rest, ",} \t\r\n")
	if end <= 0 || p.rest[0] == '[' || p.rest[0] == '{' {
		return "", false
	}
	token := p.rest[:end]
	if !json.Valid([]byte(token)) {
		return "", false
	}
	p.rest = p.rest[end:]
	if token == "null" {
		token = ""
	}
	return token, true
}
