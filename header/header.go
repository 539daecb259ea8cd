// Package header holds the headers of a message: an ordered map, their names and the textual forms
// of their values.
//
// Names and forms are those of NServiceBus 10, so that Holdfast and NServiceBus endpoints can
// exchange messages.
package header

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Map is an ordered set of headers. The zero value is empty and ready to use.
//
// A Map is a small slice, not a hash table: a message has a dozen headers, and a linear search is
// faster than hashing. Any number of goroutines may read a Map; writing needs exclusive use.
// Assigning a Map shares its headers: use [Map.Clone] for an independent copy.
type Map struct {
	fields []Field
	shared bool // fields belong to another Map too: they are copied before a change
}

// Field is one header.
type Field struct {
	Name, Value string
}

// New returns a Map of copies of fields, in their order. Of two fields with the same name the last
// one wins.
func New(fields ...Field) Map {
	m := Map{fields: make([]Field, 0, len(fields))}
	for _, f := range fields {
		m.Set(f.Name, f.Value)
	}
	return m
}

// Of returns a Map of fields, whose names must be distinct. The Map owns fields.
func Of(fields []Field) Map { return Map{fields: fields} }

// Reserve allocates room for n headers in an empty Map. It panics if m has headers.
func (m *Map) Reserve(n int) {
	if len(m.fields) > 0 {
		panic("header: Reserve of a Map that is in use") //nolint:forbidigo // a programmer's mistake
	}
	*m = Map{fields: make([]Field, 0, n)}
}

// Within returns an empty Map that stores its headers in buf as long as they fit. The Map owns buf.
func Within(buf []Field) Map { return Map{fields: buf[:0:len(buf)]} }

// CopyOnWrite returns a copy of m that shares its headers until the copy is changed. m must not be
// changed while the copy is in use.
func (m Map) CopyOnWrite() Map {
	m.shared = true
	return m
}

// own copies shared headers.
func (m *Map) own() {
	if m.shared {
		*m = m.Clone()
	}
}

// Len returns the number of headers.
func (m Map) Len() int { return len(m.fields) }

// Get returns the value of the named header, or "" if there is none. Names are case-sensitive.
func (m Map) Get(name string) string {
	v, _ := m.Lookup(name)
	return v
}

// Lookup returns the value of the named header and reports whether it exists.
func (m Map) Lookup(name string) (string, bool) {
	for i := range m.fields {
		if m.fields[i].Name == name {
			return m.fields[i].Value, true
		}
	}
	return "", false
}

// Set sets the value of the named header, in its place or at the end.
func (m *Map) Set(name, value string) {
	m.own()
	for i := range m.fields {
		if m.fields[i].Name == name {
			m.fields[i].Value = value
			return
		}
	}
	m.fields = append(m.fields, Field{name, value})
}

// SetDefault sets the named header unless it exists.
func (m *Map) SetDefault(name, value string) {
	if _, ok := m.Lookup(name); !ok {
		m.own()
		m.fields = append(m.fields, Field{name, value})
	}
}

// Del removes the named header; the others keep their order.
func (m *Map) Del(name string) {
	for i := range m.fields {
		if m.fields[i].Name == name {
			m.fields = append(m.fields[:i:i], m.fields[i+1:]...)
			return
		}
	}
}

// All returns an iterator over the headers in order. The Map must not change meanwhile.
func (m Map) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, f := range m.fields {
			if !yield(f.Name, f.Value) {
				return
			}
		}
	}
}

// Clone returns an independent copy with room for a few more headers.
func (m Map) Clone() Map {
	if len(m.fields) == 0 {
		return Map{}
	}
	return Map{fields: append(make([]Field, 0, len(m.fields)+4), m.fields...)}
}

// NotUTF8 returns the name of the first header whose name or value is not valid UTF-8, and reports
// whether there is one.
func (m Map) NotUTF8() (name string, found bool) {
	for _, f := range m.fields {
		if !utf8.ValidString(f.Name) || !utf8.ValidString(f.Value) {
			return f.Name, true
		}
	}
	return "", false
}

// Size returns the number of bytes of all names and values.
func (m Map) Size() int {
	n := 0
	for _, f := range m.fields {
		n += len(f.Name) + len(f.Value)
	}
	return n
}

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

const (
	// timeForm is a time in the form of NServiceBus, "yyyy-MM-dd HH:mm:ss:ffffff Z", UTC and fixed
	// width (DateTimeOffsetHelper.cs). timeLayout is that for package time, which knows no colon
	// before a fraction.
	timeForm   = "2006-01-02 15:04:05:000000 Z"
	timeLayout = "2006-01-02 15:04:05.000000 Z"
	timeEnd    = len(":000000 Z")
)

// FormatTime returns t as header text: UTC, microseconds, 28 characters for the years 0 to 9999,
// for instance "2026-01-02 03:04:05:000000 Z".
func FormatTime(t time.Time) string {
	text := format(t)
	return string(text[:])
}

// format is apart so that FormatTime is inlined, and ParseTime allocates nothing.
func format(t time.Time) [len(timeForm)]byte {
	t = t.UTC()
	year, month, day := t.Date()
	hour, minute, second := t.Clock()
	text, end := [len(timeForm)]byte([]byte(timeForm)), 0
	for _, n := range [...]int{year, int(month), day, hour, minute, second, t.Nanosecond() / 1000} {
		for end < len(text) && isDigit(text[end]) {
			end++
		}
		for i := end - 1; i >= 0 && isDigit(text[i]); i-- {
			text[i] = byte('0' + n%10)
			n /= 10
		}
		end++
	}
	return text
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// ParseTime parses a text of [FormatTime]. It fails for any other form, and for an invalid time
// such as the 30th of February.
func ParseTime(s string) (time.Time, error) {
	if len(s) != len(timeForm) {
		return time.Time{}, fmt.Errorf("header time %.40q: want the form %q", s, timeForm)
	}
	point := len(s) - timeEnd
	t, err := time.Parse(timeLayout, s[:point]+"."+s[point+1:])
	if err != nil || FormatTime(t) != s { // package time accepts other widths
		return time.Time{}, fmt.Errorf("header time %q: want a time in the form %q", s, timeForm)
	}
	return t, nil
}

// FormatDuration returns d as the text of a .NET TimeSpan, such as "1.02:03:04.5000000": days and
// fraction only if they are not zero, in steps of 100 ns.
func FormatDuration(d time.Duration) string {
	sign, size := "", uint64(d)
	if d < 0 {
		size = -size // -d overflows for the least Duration
	}
	if d <= -100 {
		sign = "-"
	}
	seconds, ticks := size/1e9, size%1e9/100
	text := fmt.Sprintf("%02d:%02d:%02d", seconds/3600%24, seconds/60%60, seconds%60)
	if days := seconds / (24 * 3600); days > 0 {
		text = fmt.Sprintf("%d.%s", days, text)
	}
	if ticks > 0 {
		text += fmt.Sprintf(".%07d", ticks)
	}
	return sign + text
}

// TypeNames returns an iterator over the message type names of an [EnclosedMessageTypes] value,
// most concrete first. The assembly that .NET appends after the first comma, with version, culture
// and key, is removed: types match by full name. Commas within the brackets of a generic name are
// part of it. Empty names are skipped.
func TypeNames(enclosed string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for rest, more := enclosed, true; more; {
			var entry string
			entry, rest, more = strings.Cut(rest, ";")
			if name := fullName(entry); name != "" && !yield(name) {
				return
			}
		}
	}
}

func fullName(entry string) string {
	depth := 0
	for i := range len(entry) {
		switch entry[i] {
		case '[':
			depth++
		case ']':
			depth--
		case ',':
			if depth <= 0 {
				return strings.TrimSpace(entry[:i])
			}
		}
	}
	return strings.TrimSpace(entry)
}

// JoinTypes returns the [EnclosedMessageTypes] value of names, most concrete first. The first of
// several names is followed by a comma and text in the place of an assembly: ServiceControl takes
// the text before the first comma for the type, and the whole value where there is none.
// NServiceBus finds types of unknown assemblies by their names.
func JoinTypes(names ...string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return names[0] + ", Holdfast;" + strings.Join(names[1:], ";")
}

// CheckTypes returns an error for the names of a message, most concrete first, if a receiver cannot
// read the names: [TypeNames] does not return the names from the value of [JoinTypes], or a name is
// not valid UTF-8. Each name must be readable with an assembly, too.
func CheckTypes(names ...string) error {
	for _, name := range names {
		if !utf8.ValidString(name) {
			return fmt.Errorf("the type name %q is not valid UTF-8", name)
		}
		read := slices.Collect(TypeNames(JoinTypes(name, name)))
		if !slices.Equal(read, []string{name, name}) {
			return fmt.Errorf("a receiver would read the type name %q as %q: a name has no blanks around it, no open bracket, and "+
				"no comma or semicolon", name, read)
		}
	}
	return nil
}

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
