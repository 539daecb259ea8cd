package jsonmembers

import (
	"cmp"
	"encoding"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"unicode"
)

// kind is the kind of values of a [Type].
type kind int

const (
	kindStruct  kind = iota + 1
	kindPointer      // and a value behind an embedded pointer
	kindList         // a slice or an array
	kindMap
)

// Type describes the values of a Go type as JSON. A nil Type is one whose values have no unknown
// members. It does not change, and is safe for concurrent use.
type Type struct {
	kind   kind
	elem   *Type             // of a pointer, a list or a map
	fields map[string]*field // of a struct, by the names of their members
	folded map[string]*field // by these names without case
}

// field is a field of a struct, or of a struct that is embedded in it.
type field struct {
	name string // of the member
	of   *Type  // nil: its value has no unknown members
}

// Of returns the description of a Go type.
func Of(t reflect.Type) *Type { return of(t, map[reflect.Type]*Type{}) }

// of returns the description of t. seen has the types that contain t.
func of(t reflect.Type, seen map[reflect.Type]*Type) *Type {
	if known, ok := seen[t]; ok {
		return known
	}
	if encodesItself(t) || encodesItself(reflect.PointerTo(t)) {
		return nil
	}
	d := &Type{}
	switch t.Kind() {
	case reflect.Struct:
		d.kind = kindStruct
		seen[t] = d
		d.addFields(t, seen)
		return d
	case reflect.Pointer:
		d.kind = kindPointer
	case reflect.Slice, reflect.Array:
		d.kind = kindList
	case reflect.Map:
		d.kind = kindMap
	default:
		return nil
	}
	seen[t] = d
	if d.elem = of(t.Elem(), seen); d.elem == nil {
		delete(seen, t)
		return nil
	}
	return d
}

var itself = []reflect.Type{
	reflect.TypeFor[json.Marshaler](), reflect.TypeFor[encoding.TextMarshaler](),
	reflect.TypeFor[json.Unmarshaler](), reflect.TypeFor[encoding.TextUnmarshaler](),
}

func encodesItself(t reflect.Type) bool { return slices.ContainsFunc(itself, t.Implements) }

// addFields adds the fields that encoding/json finds in a struct, in their order: of several names
// that differ in case, the first is found for a member whose name is that of no field.
func (d *Type) addFields(t reflect.Type, seen map[reflect.Type]*Type) {
	d.fields, d.folded = map[string]*field{}, map[string]*field{}
	for _, c := range dominant(candidates(t)) {
		f := &field{name: c.name}
		if !c.quoted {
			f.of = of(c.typ, seen)
		}
		if f.of != nil && c.pointer {
			f.of = &Type{kind: kindPointer, elem: f.of}
		}
		d.fields[c.name] = f
		if name := fold(c.name); d.folded[name] == nil {
			d.folded[name] = f
		}
	}
}

// field returns the field of a member, or nil for an unknown member.
func (d *Type) field(name []byte) *field {
	if f := d.fields[string(name)]; f != nil {
		return f
	}
	return d.folded[fold(string(name))]
}

// fold returns a name without case: each letter is the first that [unicode.SimpleFold] regards as
// equal.
func fold(name string) string {
	return strings.Map(func(r rune) rune {
		for {
			next := unicode.SimpleFold(r)
			if next <= r {
				return next
			}
			r = next
		}
	}, name)
}

// Field is a field of a struct, or of a struct that is embedded in it, that encoding/json stores.
type Field struct {
	// Index is the place of the field, as in [reflect.StructField].
	Index []int
	// Quoted reports whether the option string of the tag applies to the field.
	Quoted bool
}

// Fields returns the fields that encoding/json stores of a struct, in their order. It has no field
// whose name in JSON is hidden by another.
func Fields(t reflect.Type) []Field {
	found := dominant(candidates(t))
	fields := make([]Field, len(found))
	for i, c := range found {
		fields[i] = Field{Index: c.index, Quoted: c.quoted}
	}
	return fields
}

// candidate is a field of a struct, or of an embedded struct, before the names are compared.
type candidate struct {
	name    string
	index   []int
	typ     reflect.Type
	tagged  bool // the tag has the name
	quoted  bool // the tag has the option string
	pointer bool // behind an embedded pointer
}

// embedded is a struct whose fields are looked at.
type embedded struct {
	typ     reflect.Type
	index   []int
	pointer bool
}

// candidates returns the fields of t, level by level, as encoding/json does.
func candidates(t reflect.Type) (found []candidate) {
	next := []embedded{{typ: t}}
	count := map[reflect.Type]int{}
	visited := map[reflect.Type]bool{}
	for len(next) > 0 {
		level, counts := next, count
		next, count = nil, map[reflect.Type]int{}
		for _, e := range level {
			if visited[e.typ] {
				continue
			}
			visited[e.typ] = true
			for i := range e.typ.NumField() {
				c, inner := fieldAt(e, i)
				switch {
				case inner != nil:
					if count[inner.typ]++; count[inner.typ] == 1 {
						next = append(next, *inner)
					}
				case c.name != "":
					found = append(found, c)
					if counts[e.typ] > 1 { // embedded twice at this level: neither counts
						found = append(found, c)
					}
				}
			}
		}
	}
	return found
}

// fieldAt returns a field of a struct as a candidate, whose name is "" for a field that is not
// stored, or as a struct that is embedded.
func fieldAt(e embedded, i int) (c candidate, inner *embedded) {
	f := e.typ.Field(i)
	t := f.Type
	if f.Anonymous {
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if !f.IsExported() && t.Kind() != reflect.Struct {
			return c, nil
		}
	} else if !f.IsExported() {
		return c, nil
	}
	tag := f.Tag.Get("json")
	if tag == "-" {
		return c, nil
	}
	name, options, _ := strings.Cut(tag, ",")
	if !ValidName(name) {
		name = ""
	}
	index := append(slices.Clip(e.index), i)
	t = f.Type
	if t.Name() == "" && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if name == "" && f.Anonymous && t.Kind() == reflect.Struct {
		return c, &embedded{t, index, e.pointer || t != f.Type}
	}
	return candidate{
		name: cmp.Or(name, f.Name), index: index, typ: f.Type, tagged: name != "", pointer: e.pointer,
		quoted: slices.Contains(strings.Split(options, ","), "string") && basic(t),
	}, nil
}

// basic reports whether the option string applies to a type.
func basic(t reflect.Type) bool {
	return t.Kind() >= reflect.Bool && t.Kind() <= reflect.Float64 || t.Kind() == reflect.String
}

// ValidName reports whether encoding/json accepts a name in a tag.
func ValidName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", r) && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
}

// dominant returns the candidates that hide all others of their name, in the order of the struct.
func dominant(all []candidate) (fields []candidate) {
	byName := map[string][]candidate{}
	for _, c := range all {
		byName[c.name] = append(byName[c.name], c)
	}
	for _, same := range byName {
		slices.SortStableFunc(same, func(a, b candidate) int {
			return cmp.Or(cmp.Compare(len(a.index), len(b.index)), boolean(b.tagged)-boolean(a.tagged))
		})
		if len(same) > 1 && len(same[0].index) == len(same[1].index) && same[0].tagged == same[1].tagged {
			continue
		}
		fields = append(fields, same[0])
	}
	slices.SortFunc(fields, func(a, b candidate) int { return slices.Compare(a.index, b.index) })
	return fields
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}
