// Package jsonloss finds the parts of a Go type's values that encoding/json does not store, or does
// not read back.
package jsonloss

import (
	"errors"
	"fmt"
	"reflect"
)

// Loss is a part of a value that a round trip through JSON loses, with the reason. It is an error.
type Loss struct {
	// Path leads from the type of the value to the part, such as shop.Order.Lines[].Price.amount.
	Path string
	// Reason says why the part is lost, and what to do.
	Reason string
}

// Error returns the text of the loss.
func (l Loss) Error() string { return fmt.Sprintf("JSON loses %s: %s", l.Path, l.Reason) }

// Of returns the parts that the values of a type lose when a pointer to a value is encoded, and
// decoded. A part of a type that occurs more than once is listed once.
//
// A type with methods for both directions, such as [time.Time], is trusted. So are fields with the
// tag json:"-".
func Of(t reflect.Type) []Loss {
	w := walk{seen: map[visit]bool{}}
	w.value(t, t.String(), true)
	return w.losses
}

// Check returns the losses of a type as an error; nil if there is none.
func Check(t reflect.Type) error {
	var errs []error
	for _, l := range Of(t) {
		errs = append(errs, l)
	}
	return errors.Join(errs...)
}

// NeedsAddress reports whether encoding/json has to encode a pointer to a value of t: the value is,
// or contains, a value of a type that encodes itself by a method of its pointer.
func NeedsAddress(t reflect.Type) bool {
	if own := writer(t, false); own != writer(t, true) {
		return true
	} else if own != "" {
		return false
	}
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); !excluded(f) && NeedsAddress(f.Type) {
				return true
			}
		}
	case reflect.Array:
		return NeedsAddress(t.Elem())
	default: // the values behind pointers and in slices have an address
	}
	return false
}

// walk visits the types that a type contains.
type walk struct {
	seen   map[visit]bool
	losses []Loss
}

// visit is a type at a place whose values have an address, or have none.
type visit struct {
	t         reflect.Type
	addressed bool
}

func (w *walk) lose(path, format string, args ...any) {
	w.losses = append(w.losses, Loss{path, fmt.Sprintf(format, args...)})
}

// value visits a type. addressed reports whether encoding/json can take the address of the values
// there.
func (w *walk) value(t reflect.Type, path string, addressed bool) {
	if w.seen[visit{t, addressed}] {
		return
	}
	w.seen[visit{t, addressed}] = true
	if w.encodesItself(t, path, addressed) {
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		w.visitStruct(t, path, addressed)
	case reflect.Pointer:
		w.value(t.Elem(), path, true)
	case reflect.Slice:
		if t.Elem().Kind() != reflect.Uint8 || writer(t.Elem(), true) != "" { // others are base64
			w.value(t.Elem(), path+"[]", true)
		}
	case reflect.Array:
		if t.Len() > 0 {
			w.value(t.Elem(), path+"[]", addressed)
		}
	case reflect.Map:
		w.key(t.Key(), path)
		w.value(t.Elem(), path+"[]", false)
	case reflect.Interface:
		w.iface(t, path)
	case reflect.Chan, reflect.Func, reflect.Complex64, reflect.Complex128, reflect.UnsafePointer:
		w.lose(path, `encoding/json has no text for a %v: exclude a field of this type with the tag json:"-"`, t)
	default:
	}
}

func (w *walk) iface(t reflect.Type, path string) {
	if t.NumMethod() > 0 {
		w.lose(path, "encoding/json cannot decode into the interface %v: use the type of the value", t)
		return
	}
	w.lose(path, "the type behind an interface is not stored, and a number is read as a float64: "+
		"use the type of the value, or json.RawMessage")
}

// key visits the type of the keys of a map.
func (w *walk) key(t reflect.Type, path string) {
	path += "[key]"
	writes, reads := t.Implements(textMarshaler), reflect.PointerTo(t).Implements(textUnmarshaler)
	switch k := t.Kind(); {
	case k == reflect.String:
		return
	case k >= reflect.Int && k <= reflect.Uintptr && !writes && !reads:
		return
	case !writes || !reads:
		w.lose(path, "encoding/json cannot write and read keys of type %v: "+
			"use keys of text or integers, or a type with MarshalText and UnmarshalText", t)
		return
	}
	w.promotion(t, path, marshalText, false)
}
