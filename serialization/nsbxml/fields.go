package nsbxml

import (
	"cmp"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/serialization"
)

// form is how values of a Go type are written.
type form int

const (
	formText form = iota // a scalar of scalar.go
	formBytes
	formStruct
	formList
	formMap
	formPointer
)

// field is a field of a struct.
type field struct {
	name  string // of its element
	item  string // of the elements of a list; "": that of their type
	index []int
}

var (
	timeType     = reflect.TypeFor[time.Time]()
	durationType = reflect.TypeFor[time.Duration]()
	timeSpanType = reflect.TypeFor[serialization.TimeSpan]()
	numberType   = reflect.TypeFor[json.Number]()
	marshaler    = reflect.TypeFor[encoding.TextMarshaler]()
	unmarshaler  = reflect.TypeFor[encoding.TextUnmarshaler]()
)

func isDuration(t reflect.Type) bool { return t == durationType || t == timeSpanType }

// isText reports whether values of t are written by their own methods, which a pointer to one has
// too.
func isText(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return t.Kind() != reflect.Pointer && p.Implements(marshaler) && p.Implements(unmarshaler)
}

func isBytes(t reflect.Type) bool {
	return t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8 && !isText(t.Elem())
}

// formOf returns the form of a type, or an error that says why there is none.
func formOf(t reflect.Type) (form, error) {
	if t == timeType || isText(t) {
		return formText, nil
	}
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Float32, reflect.Float64,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return formText, nil
	case reflect.Struct:
		return formStruct, nil
	case reflect.Pointer:
		return formPointer, nil
	case reflect.Map:
		if key, err := formOf(t.Key()); err != nil || key != formText {
			return 0, fmt.Errorf("keys of type %v have no form in NServiceBus's XML", t.Key())
		}
		return formMap, nil
	case reflect.Slice:
		if isBytes(t) {
			return formBytes, nil
		}
		return formList, nil
	default:
		return 0, fmt.Errorf("values of type %v have no form in NServiceBus's XML", t)
	}
}

// typeName returns the name that .NET has for a type: that of a list's elements, and part of that
// of a map's.
func typeName(t reflect.Type) (string, error) {
	switch {
	case t == timeType:
		return "DateTime", nil
	case isDuration(t):
		return "TimeSpan", nil
	case t == numberType:
		return "Decimal", nil
	case t.Kind() == reflect.Array && t.Len() == 16 && isText(t):
		return "Guid", nil
	case isBytes(t):
		return "ArrayOfByte", nil
	case t.Kind() == reflect.Pointer:
		return typeName(t.Elem())
	}
	if t.Name() != "" && t.PkgPath() != "" {
		name, _, generic := strings.Cut(t.Name(), "[")
		if generic {
			return "", fmt.Errorf("the generic type %v has no name in NServiceBus's XML: name the elements in the xml tag", t)
		}
		return name, nil
	}
	switch t.Kind() {
	case reflect.String:
		return "String", nil
	case reflect.Bool:
		return "Boolean", nil
	case reflect.Float32:
		return "Single", nil
	case reflect.Float64:
		return "Double", nil
	case reflect.Int8:
		return "SByte", nil
	case reflect.Uint8:
		return "Byte", nil
	case reflect.Int, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		sign := ""
		if t.Kind() >= reflect.Uint {
			sign = "U"
		}
		return fmt.Sprintf("%sInt%d", sign, t.Bits()), nil
	default:
		return "", fmt.Errorf("lists and maps of %v have no form in NServiceBus's XML", t)
	}
}

var allFields sync.Map // reflect.Type to []field or error

// fieldsOf returns the fields of a struct type, those of embedded structs included.
func fieldsOf(t reflect.Type) ([]field, error) {
	known, ok := allFields.Load(t)
	if !ok {
		fields, err := makeFields(t)
		known = fields
		if err != nil {
			known = err
		}
		allFields.Store(t, known)
	}
	if err, failed := known.(error); failed {
		return nil, err
	}
	return known.([]field), nil //nolint:errcheck // the map holds nothing else
}

func makeFields(t reflect.Type) ([]field, error) {
	var fields []field
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("xml"), ",")
		embedded := f.Anonymous && f.Type.Kind() == reflect.Struct && f.Type != timeType && !isText(f.Type)
		if name == "-" || !f.IsExported() && !embedded {
			continue
		}
		if options != "" {
			return nil, fmt.Errorf("field %s of %v: the xml tag has options, which NServiceBus's XML does not know", f.Name, t)
		}
		if embedded {
			inner, err := makeFields(f.Type)
			if err != nil {
				return nil, err
			}
			for _, in := range inner {
				in.index = append(slices.Clone(f.Index), in.index...)
				fields = append(fields, in)
			}
			continue
		}
		name, item, _ := strings.Cut(name, ">")
		if _, err := formOf(f.Type); err != nil {
			return nil, fmt.Errorf("field %s of %v: %w", f.Name, t, err)
		}
		fields = append(fields, field{name: cmp.Or(name, f.Name), item: item, index: f.Index})
	}
	names := make(map[string]bool)
	for _, f := range fields {
		if names[f.name] {
			return nil, fmt.Errorf("two fields of %v are named %s", t, f.name)
		}
		names[f.name] = true
	}
	return fields, nil
}
