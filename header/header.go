// Package header holds the headers of a message: an ordered map, the names that
// travel on the wire and the textual forms of their values.
//
// Names and forms are those of NServiceBus (10.x), so that a Holdfast endpoint
// can live in an existing system.
package header

import "iter"

// Map is an ordered set of headers. The zero value is empty and ready to use.
//
// A Map is a small slice, not a hash table: a message carries a dozen headers,
// and looking through them is faster than hashing. Any number of goroutines may
// read a Map; writing needs exclusive use. Assigning a Map shares its headers:
// use [Map.Clone] for a copy of one's own.
type Map struct {
	fields []Field
	lent   bool // fields are another Map's too: they are copied before they change
}

// Field is one header.
type Field struct {
	Name, Value string
}

// New makes a Map of fields, the last of two with the same name winning. It
// keeps the order and copies the slice.
func New(fields ...Field) Map {
	m := Map{fields: make([]Field, 0, len(fields))}
	for _, f := range fields {
		m.Set(f.Name, f.Value)
	}
	return m
}

// Reserve gives an empty Map room for n headers; afterwards setting that many
// allocates nothing. It panics when m already has headers.
func (m *Map) Reserve(n int) {
	if len(m.fields) > 0 {
		panic("header: Reserve of a Map that is in use") //nolint:forbidigo // a programmer's mistake
	}
	*m = Map{fields: make([]Field, 0, n)}
}

// Within gives an empty Map that keeps its headers in buf, which nobody else may
// use, for as long as they fit.
func Within(buf []Field) Map { return Map{fields: buf[:0:len(buf)]} }

// Lend is [Map.Clone] for who will hardly change it: headers are copied only then. As long as it is in use, m must not change.
func (m Map) Lend() Map {
	m.lent = true
	return m
}

// own has the headers be m's alone.
func (m *Map) own() {
	if m.lent {
		*m = m.Clone()
	}
}

// Len is the number of headers.
func (m Map) Len() int { return len(m.fields) }

// Get is the value of the named header, or "" when there is none. Names are
// case-sensitive.
func (m Map) Get(name string) string {
	v, _ := m.Lookup(name)
	return v
}

// Lookup is the value of the named header and whether it is there.
func (m Map) Lookup(name string) (string, bool) {
	for i := range m.fields {
		if m.fields[i].Name == name {
			return m.fields[i].Value, true
		}
	}
	return "", false
}

// Set gives the named header a value, in the place it already has or at the end.
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

// SetDefault sets the named header unless it is already there.
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

// All goes through the headers in order. The Map must not change meanwhile.
func (m Map) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, f := range m.fields {
			if !yield(f.Name, f.Value) {
				return
			}
		}
	}
}

// Clone is an independent copy with room for a few headers more.
func (m Map) Clone() Map {
	if len(m.fields) == 0 {
		return Map{}
	}
	return Map{fields: append(make([]Field, 0, len(m.fields)+4), m.fields...)}
}

// Size is the number of bytes of all names and values.
func (m Map) Size() int {
	n := 0
	for _, f := range m.fields {
		n += len(f.Name) + len(f.Value)
	}
	return n
}
