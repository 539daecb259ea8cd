// Package header holds the headers of a message: an ordered map, their names and the textual forms
// of their values.
//
// Names and forms are those of NServiceBus 10, so that Holdfast and NServiceBus endpoints can
// exchange messages.
package header

import (
	"iter"
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
