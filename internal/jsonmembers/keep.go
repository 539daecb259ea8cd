package jsonmembers

import "bytes"

// Keep returns next with the unknown members of old. old is the text that a value was read from,
// before is that value as encoding/json writes it, and next the value after a change.
//
// The unknown members of the value and of structs within it are kept. Behind a pointer and in a
// map, a slice or an array they are kept while the known part of the value there is the same in
// before and next. The members have the order of old.
func (d *Type) Keep(old, before, next []byte) []byte {
	if d == nil || len(old) == 0 || len(next) == 0 {
		return next
	}
	switch d.kind {
	case kindPointer:
		if bytes.Equal(before, next) {
			return d.elem.Keep(old, before, next)
		}
	case kindStruct:
		return d.keepFields(old, before, next)
	case kindMap:
		return d.keepValues(old, before, next)
	case kindList:
		return d.keepElements(old, before, next)
	}
	return next
}

// keepFields is Keep for a struct.
func (d *Type) keepFields(old, before, next []byte) []byte {
	was, is, now := membersOf(old), membersOf(before), membersOf(next)
	if was == nil || now == nil {
		return next
	}
	out := writer{'{'}
	last := map[string]int{} // the last member counts, of several with one name or one field
	for i, m := range was {
		last[d.nameFor(m)] = i
	}
	written := map[string]bool{}
	for i, m := range was {
		name := d.nameFor(m)
		if last[name] != i {
			continue
		}
		f := d.field(m.name)
		if f == nil {
			out.add(m.quoted, m.value)
			continue
		}
		written[name] = true
		quoted, value, ok := now.find(name)
		switch {
		case ok:
			out.add(quoted, f.of.Keep(m.value, is.value(name), value))
		case f.of != nil && f.of.kind == kindStruct: // it is zero, and left out
			if kept := f.of.keepFields(m.value, is.value(name), []byte("{}")); len(kept) > len("{}") {
				out.add(m.quoted, kept)
			}
		case f.of != nil && !is.has(name) && f.of.Unknown(m.value): // it was left out before too
			out.add(m.quoted, m.value)
		}
	}
	for _, m := range now {
		if !written[string(m.name)] {
			out.add(m.quoted, m.value)
		}
	}
	return append(out, '}')
}

// nameFor returns the name of the field of a member, or the name of an unknown member behind a
// character that no name of a field has.
func (d *Type) nameFor(m member) string {
	if f := d.field(m.name); f != nil {
		return f.name
	}
	return "\x00" + string(m.name)
}

// keepValues is Keep for a map.
func (d *Type) keepValues(old, before, next []byte) []byte {
	was, is, now := membersOf(old), membersOf(before), membersOf(next)
	if was == nil || now == nil {
		return next
	}
	from, same := was.byName(), is.byName()
	out := writer{'{'}
	for _, m := range now {
		value := m.value
		if of, ok := same[string(m.name)]; ok && bytes.Equal(of, value) {
			value = d.elem.Keep(from[string(m.name)], of, value)
		}
		out.add(m.quoted, value)
	}
	return append(out, '}')
}

// keepElements is Keep for a slice or an array. An element that has moved keeps its unknown members
// if no other has the same known part.
func (d *Type) keepElements(old, before, next []byte) []byte {
	was, is, now := elementsOf(old), elementsOf(before), elementsOf(next)
	if now == nil || len(was) != len(is) { // an array that is longer than its text, or shorter
		return next
	}
	places, copies := map[string]int{}, map[string]int{}
	for i, e := range is {
		places[string(e)] = i
		copies[string(e)]++
	}
	times := map[string]int{}
	for _, e := range now {
		times[string(e)]++
	}
	out := writer{'['}
	for i, e := range now {
		at, ok := places[string(e)]
		switch {
		case ok && copies[string(e)] == 1 && times[string(e)] == 1:
			e = d.elem.Keep(was[at], is[at], e)
		case ok && len(is) == len(now) && bytes.Equal(is[i], e):
			e = d.elem.Keep(was[i], is[i], e)
		}
		out.add(nil, e)
	}
	return append(out, ']')
}

// writer writes an object or a list.
type writer []byte

// add adds a member, or an element if name is nil.
func (w *writer) add(name, value []byte) {
	if len(*w) > 1 {
		*w = append(*w, ',')
	}
	if name != nil {
		*w = append(append(*w, name...), ':')
	}
	*w = append(*w, value...)
}

// member is a member of an object.
type member struct{ name, quoted, value []byte }

type members []member

// membersOf returns the members of an object; nil for another value.
func membersOf(text []byte) members {
	at := space(text, 0)
	if at == len(text) || text[at] != '{' {
		return nil
	}
	all := members{}
	for at = space(text, at+1); text[at] != '}'; at = comma(text, at) {
		end := skip(text, at)
		m := member{quoted: text[at:end]}
		m.name = nameOf(m.quoted)
		at = space(text, space(text, end)+1)
		end = skip(text, at)
		m.value, at = text[at:end], end
		all = append(all, m)
	}
	return all
}

// find returns the member with a name.
func (all members) find(name string) (quoted, value []byte, ok bool) {
	for _, m := range all {
		if string(m.name) == name {
			return m.quoted, m.value, true
		}
	}
	return nil, nil, false
}

// has reports whether there is a member with a name.
func (all members) has(name string) bool {
	_, _, ok := all.find(name)
	return ok
}

// value returns the value of a member, or nil.
func (all members) value(name string) []byte {
	_, value, _ := all.find(name)
	return value
}

// byName returns the values. Of several members with one name the last one counts.
func (all members) byName() map[string][]byte {
	values := make(map[string][]byte, len(all))
	for _, m := range all {
		values[string(m.name)] = m.value
	}
	return values
}

// elementsOf returns the elements of a list; nil for another value.
func elementsOf(text []byte) (all [][]byte) {
	at := space(text, 0)
	if at == len(text) || text[at] != '[' {
		return nil
	}
	all = [][]byte{}
	for at = space(text, at+1); text[at] != ']'; at = comma(text, at) {
		end := skip(text, at)
		all = append(all, text[at:end])
		at = end
	}
	return all
}
