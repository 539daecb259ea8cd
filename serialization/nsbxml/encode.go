package nsbxml

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"
)

// encode returns the body of a message.
func encode(names []string, v any) ([]byte, error) {
	value := reflect.ValueOf(v)
	if value.Kind() == reflect.Pointer {
		value = value.Elem()
	}
	if value.Kind() != reflect.Struct || len(names) == 0 {
		return nil, fmt.Errorf("it is no struct, or has no name")
	}
	for _, name := range names {
		if strings.Contains(name, `"`) { // they are written as attributes
			return nil, fmt.Errorf("the type name %q has a quotation mark", name)
		}
	}
	space, local := splitName(names[0])
	if !isName(local) {
		return nil, fmt.Errorf("the type name %q ends in none that an XML element can have", names[0])
	}
	e := &encoder{}
	e.WriteString(`<?xml version="1.0"?><` + local +
		` xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xmlns:xsd="http://www.w3.org/2001/XMLSchema"`)
	for i, base := range names[1:] {
		number := ""
		if i > 0 {
			number = fmt.Sprint(i)
		}
		e.WriteString(` xmlns:baseType` + number + `="`)
		if err := e.text(withoutAssembly(base)); err != nil {
			return nil, err
		}
		e.WriteByte('"')
	}
	e.WriteString(` xmlns="http://tempuri.net/`)
	if err := e.text(space); err != nil {
		return nil, err
	}
	e.WriteString(`">`)
	if err := e.fields(value, 1); err != nil {
		return nil, err
	}
	e.WriteString(`</` + local + `>`)
	return e.Bytes(), nil
}

// splitName returns the namespace of a .NET type and its own name. A type in another has the
// namespace of that.
func splitName(full string) (space, local string) {
	full = withoutAssembly(full)
	outer := full
	if i := strings.IndexByte(full, '+'); i >= 0 {
		outer, local = full[:i], full[strings.LastIndexByte(full, '+')+1:]
	}
	dot := strings.LastIndexByte(outer, '.')
	if local == "" {
		local = outer[dot+1:]
	}
	return outer[:max(dot, 0)], local
}

func withoutAssembly(full string) string {
	name, _, _ := strings.Cut(full, ",")
	return strings.TrimSpace(name)
}

// isName reports whether s can be the name of an element, without a prefix.
func isName(s string) bool {
	for i, r := range s {
		letter := r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= 0xC0 && r != 0xD7 && r != 0xF7 && r <= 0x1FFF
		if !letter && (i == 0 || r != '-' && r != '.' && (r < '0' || r > '9')) {
			return false
		}
	}
	return s != ""
}

// encoder writes elements. An error is that of the outermost element, and names the path to the one
// that failed.
type encoder struct{ bytes.Buffer }

// fields writes the elements of a struct.
func (e *encoder) fields(v reflect.Value, depth int) error {
	fields, err := fieldsOf(v.Type())
	if err != nil {
		return err
	}
	for _, f := range fields {
		if err := e.element(f.name, f.item, v.FieldByIndex(f.index), depth); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}

// element writes v as an element. item names the elements of a list.
func (e *encoder) element(name, item string, v reflect.Value, depth int) error {
	if depth >= MaxDepth {
		return fmt.Errorf("over %d elements in one another", MaxDepth)
	}
	if !isName(name) {
		return fmt.Errorf("an XML element cannot be named %q", name)
	}
	form, err := formOf(v.Type())
	if err != nil {
		return err
	}
	if form == formPointer && !v.IsNil() {
		return e.element(name, item, v.Elem(), depth)
	}
	if form == formPointer || (form == formBytes || form == formList || form == formMap) && v.IsNil() {
		e.WriteString("<" + name + ` xsi:nil="true"></` + name + ">")
		return nil
	}
	e.WriteString("<" + name + ">")
	switch form {
	case formText:
		err = e.scalar(v)
	case formBytes:
		e.WriteString(base64.StdEncoding.EncodeToString(v.Bytes()))
	case formStruct:
		err = e.fields(v, depth+1)
	case formList:
		err = e.list(item, v, depth+1)
	default:
		err = e.entries(v, depth+1)
	}
	e.WriteString("</" + name + ">")
	return err
}

func (e *encoder) list(item string, v reflect.Value, depth int) error {
	if item == "" {
		var err error
		if item, err = typeName(v.Type().Elem()); err != nil {
			return err
		}
	}
	for i := range v.Len() {
		if err := e.element(item, "", v.Index(i), depth); err != nil {
			return fmt.Errorf("%d: %w", i, err)
		}
	}
	return nil
}

// entries writes the entries of a map, in the order of their keys' texts.
func (e *encoder) entries(v reflect.Value, depth int) error {
	key, err := typeName(v.Type().Key())
	if err != nil {
		return err
	}
	value, err := typeName(v.Type().Elem())
	if err != nil {
		return err
	}
	pair := "NServiceBus.KeyValuePairOf" + key + "And" + value
	type entry struct{ key, value reflect.Value }
	entries := make(map[string]entry, v.Len())
	for k, value := range v.Seq2() {
		s, err := text(k)
		if err != nil {
			return err
		}
		if _, twice := entries[s]; twice {
			return fmt.Errorf("two keys of a map have the text %q", s)
		}
		entries[s] = entry{k, value}
	}
	for _, s := range slices.Sorted(maps.Keys(entries)) {
		e.WriteString("<" + pair + ">")
		if err := e.element("Key", "", entries[s].key, depth+1); err != nil {
			return err
		}
		if err := e.element("Value", "", entries[s].value, depth+1); err != nil {
			return fmt.Errorf("%q: %w", s, err)
		}
		e.WriteString("</" + pair + ">")
	}
	return nil
}

func (e *encoder) scalar(v reflect.Value) error {
	s, err := text(v)
	if err != nil {
		return err
	}
	return e.text(s)
}

// text writes a text as .NET's XmlWriter does. XML 1.0 has no form for most control characters.
func (e *encoder) text(s string) error {
	for i, r := range s {
		switch {
		case r == '&':
			e.WriteString("&amp;")
		case r == '<':
			e.WriteString("&lt;")
		case r == '>':
			e.WriteString("&gt;")
		case r == '\r': // a reader makes a line feed of a bare one
			e.WriteString("&#xD;")
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)):
			return fmt.Errorf("byte %d is no UTF-8", i)
		case r < ' ' && r != '\t' && r != '\n' || r == 0xFFFE || r == 0xFFFF:
			return fmt.Errorf("XML cannot hold the character %U at byte %d", r, i)
		default:
			e.WriteRune(r)
		}
	}
	return nil
}
