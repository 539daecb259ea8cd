// Package jsonloss finds the parts of a Go type's values that encoding/json does not store, or does
// not read back.
package jsonloss

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/internal/jsonmembers"
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

// excluded reports whether a field has nothing to store, or a tag that says so.
func excluded(f reflect.StructField) bool {
	return f.Name == "_" || f.Tag.Get("json") == "-" || empty(f.Type)
}

// empty reports whether the values of a type have nothing to store.
func empty(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Array:
		return t.Len() == 0 || empty(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if !excluded(t.Field(i)) {
				return false
			}
		}
		return true
	default:
		return false
	}
}

// visitStruct visits the fields of a struct that does not encode itself.
func (w *walk) visitStruct(t reflect.Type, path string, addressed bool) {
	s := &structure{walk: w, stored: jsonmembers.Fields(t)}
	s.fields(t, path, nil, addressed, []reflect.Type{t})
}

// structure is a struct with the fields that encoding/json stores, those of embedded structs
// included.
type structure struct {
	*walk
	stored []jsonmembers.Field
}

// fields visits the fields of a struct, or of one that is embedded in it. within are the structs
// around these fields.
func (s *structure) fields(t reflect.Type, path string, index []int, addressed bool, within []reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		if excluded(f) {
			continue
		}
		at, place := path+"."+f.Name, append(slices.Clip(index), i)
		if inner, ok := embedded(f); ok {
			switch {
			case f.Type.Kind() == reflect.Pointer && !f.IsExported():
				s.lose(at, "encoding/json cannot decode into an embedded pointer to the type %v, which is not exported: "+
					"embed the struct itself", inner)
			case slices.Contains(within, inner):
				s.lose(at, "the struct %v is embedded in itself: give the field a name", inner)
			default:
				s.fields(inner, at, place, addressed || f.Type.Kind() == reflect.Pointer, append(slices.Clip(within), inner))
			}
			continue
		}
		s.field(f, at, place, addressed)
	}
}

// field visits a field that is no embedded struct.
func (s *structure) field(f reflect.StructField, path string, place []int, addressed bool) {
	if !f.IsExported() && (!f.Anonymous || f.Type.Kind() != reflect.Struct || writer(f.Type, true) != "" || reader(f.Type) != "") {
		s.lose(path, `the field is not exported: export the field, give its struct the methods MarshalJSON and UnmarshalJSON, `+
			`or exclude the field with the tag json:"-"`)
		return
	}
	found := slices.IndexFunc(s.stored, func(m jsonmembers.Field) bool { return slices.Equal(m.Index, place) })
	if found < 0 {
		s.lose(path, "another field has the same name in JSON: give one of the two another name, by its tag or by that of its "+
			"embedded struct")
		return
	}
	if t := direct(f.Type); s.stored[found].Quoted && writer(t, true) != "" {
		s.lose(path, "the option string of its tag is not for a type that encodes itself: leave the option out")
		return
	}
	s.value(f.Type, path, addressed)
}

// embedded returns the struct whose fields encoding/json regards as fields of the struct that
// contains f.
func embedded(f reflect.StructField) (inner reflect.Type, ok bool) {
	if !f.Anonymous {
		return nil, false
	}
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	inner = direct(f.Type)
	return inner, inner.Kind() == reflect.Struct && !jsonmembers.ValidName(name)
}

// direct returns the type that an unnamed pointer type points to, or t.
func direct(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer && t.Name() == "" {
		return t.Elem()
	}
	return t
}

// The methods by which a type encodes and decodes itself.
const (
	marshalJSON   = "MarshalJSON"
	marshalText   = "MarshalText"
	unmarshalJSON = "UnmarshalJSON"
	unmarshalText = "UnmarshalText"
)

var (
	jsonMarshaler   = reflect.TypeFor[json.Marshaler]()
	textMarshaler   = reflect.TypeFor[encoding.TextMarshaler]()
	jsonUnmarshaler = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// writer returns the method that encodes a value of t, or "". A value without an address has no
// methods of its pointer.
func writer(t reflect.Type, addressed bool) string {
	if addressed && t.Kind() != reflect.Interface && t.Kind() != reflect.Pointer {
		t = reflect.PointerTo(t)
	}
	switch {
	case t.Implements(jsonMarshaler):
		return marshalJSON
	case t.Implements(textMarshaler):
		return marshalText
	}
	return ""
}

// reader returns the method that decodes a value of t, or "".
func reader(t reflect.Type) string {
	switch p := reflect.PointerTo(t); {
	case p.Implements(jsonUnmarshaler):
		return unmarshalJSON
	case p.Implements(textUnmarshaler):
		return unmarshalText
	}
	return ""
}

// encodesItself reports whether values of t need no further look: methods of t encode and decode
// them.
func (w *walk) encodesItself(t reflect.Type, path string, addressed bool) bool {
	if t.Kind() == reflect.Interface || t.Kind() == reflect.Pointer { // the value behind a pointer has these methods
		return false
	}
	writes, reads := writer(t, addressed), reader(t)
	if of := writer(t, true); of != writes && reads != "" {
		w.lose(path, "the values of a map have no address, and the method %s of *%v is not called: use a map of pointers", of, t)
		return true
	}
	if writes != "" && w.promotion(t, path, writes, addressed) || reads != "" && w.promotion(t, path, reads, addressed) {
		return true
	}
	switch {
	case writes == "":
		return false // a reader of several forms reads the ordinary form too
	case reads != "":
		return true
	case changes(t):
		w.lose(path, "%v has the method %s, and none that reads this text: give *%v an UnmarshalJSON", t, writes, t)
		return true
	}
	return false
}

// promotion visits a struct that has a method from an embedded field, which knows this field alone.
// It reports whether another field is lost.
func (w *walk) promotion(t reflect.Type, path, method string, addressed bool) (lost bool) {
	from, ok := promoted(t, method)
	if !ok {
		return false
	}
	for i := range t.NumField() {
		if f := t.Field(i); i != from && !excluded(f) {
			lost = true
			w.lose(path+"."+f.Name, "%v has the method %s from its embedded field %s, and %s knows that field alone: "+
				"give the embedded field a name", t, method, t.Field(from).Name, method)
		}
	}
	if lost {
		w.value(t.Field(from).Type, path+"."+t.Field(from).Name, addressed)
	}
	return lost
}

// promoted returns the embedded field from which a struct has a method. It reports false for a
// method that the type declares.
func promoted(t reflect.Type, method string) (field int, ok bool) {
	if t.Kind() != reflect.Struct || !generated(t, method) {
		return 0, false
	}
	least := 0
	for i := range t.NumField() {
		if f := t.Field(i); f.Anonymous && has(f.Type, method) {
			if d := depth(f.Type, method); !ok || d < least {
				field, least, ok = i, d, true
			}
		}
	}
	return field, ok
}

// depth returns the number of embedded fields between a type and the declaration of its method.
func depth(t reflect.Type, method string) int {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if from, ok := promoted(t, method); ok {
		return 1 + depth(t.Field(from).Type, method)
	}
	return 0
}

// has reports whether a type or its pointer has a method.
func has(t reflect.Type, method string) bool {
	_, ok := methodOf(t, method)
	if !ok && t.Kind() != reflect.Interface {
		_, ok = methodOf(reflect.PointerTo(t), method)
	}
	return ok
}

// generated reports whether the compiler has made the method of a struct: the method is that of an
// embedded field.
func generated(t reflect.Type, method string) bool {
	m, ok := methodOf(t, method)
	if !ok {
		if m, ok = methodOf(reflect.PointerTo(t), method); !ok {
			return false
		}
	}
	f := runtime.FuncForPC(m.Func.Pointer())
	if f == nil {
		return false
	}
	file, _ := f.FileLine(f.Entry())
	return file == "<autogenerated>"
}

// methodOf is t.MethodByName. The linker keeps all methods of a program with a name that is not
// constant.
func methodOf(t reflect.Type, method string) (reflect.Method, bool) {
	switch method {
	case marshalJSON:
		return t.MethodByName("MarshalJSON")
	case marshalText:
		return t.MethodByName("MarshalText")
	case unmarshalJSON:
		return t.MethodByName("UnmarshalJSON")
	default:
		return t.MethodByName("UnmarshalText")
	}
}

// changes reports whether a value of t, which encodes itself and does not decode itself, is not
// equal after a round trip. If t encodes no value that is made here, the answer is no.
func changes(t reflect.Type) (changed bool) {
	defer func() {
		if recover() != nil {
			changed = false
		}
	}()
	before, after := reflect.New(t), reflect.New(t)
	fill(before.Elem(), nil)
	text, err := json.Marshal(before.Interface())
	if err != nil {
		return false
	}
	return json.Unmarshal(text, after.Interface()) != nil || !reflect.DeepEqual(before.Interface(), after.Interface())
}

// fill gives a value other contents than zero, except for what encodes itself. within are the types
// around the value.
func fill(v reflect.Value, within []reflect.Type) {
	t := v.Type()
	for _, outer := range within {
		if outer == t {
			return
		}
	}
	if len(within) > 0 && writer(t, true) != "" {
		return
	}
	within = append(within[:len(within):len(within)], t)
	switch {
	case v.Kind() == reflect.Bool:
		v.SetBool(true)
	case v.CanInt():
		v.SetInt(1)
	case v.CanUint():
		v.SetUint(1)
	case v.CanFloat():
		v.SetFloat(1)
	case v.Kind() == reflect.String:
		v.SetString("x")
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(t.Elem()))
		fill(v.Elem(), within)
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(t, 1, 1))
		fill(v.Index(0), within)
	case v.Kind() == reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), within)
		}
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			if f := t.Field(i); f.IsExported() && !excluded(f) {
				fill(v.Field(i), within)
			}
		}
	}
}
