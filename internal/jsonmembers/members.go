// Package jsonmembers keeps the members of JSON objects that a Go type has no field for: those that
// a newer version of a program has written. By the rules of encoding/json a member is known if the
// struct has a field for its name.
package jsonmembers

import (
	"bytes"
	"encoding/json"
)

// The functions of this package take texts that encoding/json has decoded into the type, or has
// written: they are valid.

// Unknown reports whether a text has an unknown member.
func (d *Type) Unknown(text []byte) bool {
	found, _ := d.unknown(text, space(text, 0))
	return found
}

// unknown reports whether the value at a place has an unknown member, and returns the end of the
// value.
func (d *Type) unknown(text []byte, at int) (found bool, end int) {
	for d != nil && d.kind == kindPointer {
		d = d.elem
	}
	if d == nil {
		return false, skip(text, at)
	}
	object, list := text[at] == '{', text[at] == '['
	if d.kind == kindList && !list || d.kind != kindList && !object {
		return false, skip(text, at)
	}
	for at = space(text, at+1); text[at] != '}' && text[at] != ']'; at = comma(text, at) {
		of := d.elem
		if object {
			name := at
			at = skip(text, at)
			if d.kind == kindStruct {
				f := d.field(nameOf(text[name:at]))
				if f == nil {
					return true, at
				}
				of = f.of
			}
			at = space(text, space(text, at)+1) // behind the colon
		}
		if found, at = of.unknown(text, at); found {
			return true, at
		}
	}
	return false, at + 1
}

// nameOf returns the name of a member without its quotes.
func nameOf(quoted []byte) []byte {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1]
	}
	var name string
	_ = json.Unmarshal(quoted, &name) // it is valid
	return []byte(name)
}

// space returns the place of the next token.
func space(text []byte, at int) int {
	for at < len(text) && (text[at] == ' ' || text[at] == '\n' || text[at] == '\t' || text[at] == '\r') {
		at++
	}
	return at
}

// comma returns the place of the next member or element, or of the bracket behind the last one.
func comma(text []byte, at int) int {
	if at = space(text, at); text[at] == ',' {
		at = space(text, at+1)
	}
	return at
}

// skip returns the end of the value at a place.
func skip(text []byte, at int) int {
	depth := 0
	for ; at < len(text); at++ {
		switch text[at] {
		case '"':
			for at++; text[at] != '"'; at++ {
				if text[at] == '\\' {
					at++
				}
			}
		case '{', '[':
			depth++
			continue
		case '}', ']':
			depth--
		default:
			at = literal(text, at) - 1
		}
		if depth == 0 {
			return at + 1
		}
	}
	return at
}

// literal returns the end of a number, of true, false or null, or of a token between values.
func literal(text []byte, at int) int {
	for at++; at < len(text); at++ {
		switch text[at] {
		case ',', ':', '}', ']', '{', '[', '"', ' ', '\n', '\t', '\r':
			return at
		}
	}
	return at
}
