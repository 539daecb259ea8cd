package jsonloss

import (
	"reflect"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/internal/jsonmembers"
)

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
