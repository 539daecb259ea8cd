package jsonmembers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

type (
	// Base is embedded in Wide.
	Base struct {
		ID    string
		Twice int
	}
	// Other is embedded in Wide too.
	Other struct{ Twice int }
	// Deep is embedded by pointer.
	Deep   struct{ Inner Small }
	hidden struct{ Shown int }
	// Small is a struct in others.
	Small struct {
		A int
		B string `json:",omitempty"`
	}
	// Wide has a field of each kind that encoding/json distinguishes.
	Wide struct {
		Base
		Other
		*Deep
		hidden
		Named   Base `json:"base"`
		Name    string
		NAME    int
		Renamed int `json:"name2,omitempty"`
		Dashed  int `json:"-,"` //nolint:staticcheck // the name is a dash
		Ignored int `json:"-"`
		Invalid int `json:"a\"b"` //nolint:staticcheck // the tag is ignored
		private int
		Quoted  int `json:",string"`
		Time    time.Time
		Any     any
		Raw     json.RawMessage
		Small   Small  `json:",omitzero"`
		Pointer *Small `json:",omitempty"`
		List    []Small
		Map     map[string]Small
		Self    *Wide
	}
)

// The names that a struct knows are those that encoding/json decodes.
func TestKnownMembersAreThoseOfEncodingJSON(t *testing.T) {
	wide := Wide{hidden: hidden{1}, private: 1} // the fields are not stored, or by their promotion
	_ = wide.private
	d := Of(reflect.TypeOf(wide))
	names := []string{
		"ID", "id", "Twice", "Base", "base", "BASE", "Other", "Deep", "Inner", "inner", "hidden", "Shown", "Named", "Name", "name", "NAME",
		"nAmE", "name2", "Renamed", "-", "Dashed", "Ignored", "Invalid", "a\\\"b", "private", "Quoted", "Time", "Small", "\u017Fmall", "Self",
		"\u0053elf", "Li\u017ft", "", "unknown",
	}
	for _, name := range names {
		text := fmt.Sprintf(`{"%s":null}`, name)
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.DisallowUnknownFields()
		err := decoder.Decode(&Wide{})
		if unknown := err != nil && strings.Contains(err.Error(), "unknown field"); d.Unknown([]byte(text)) != unknown {
			t.Errorf("%s is unknown: %v, want %v (%v)", text, !unknown, unknown, err)
		}
	}
}

func TestWhatIsKept(t *testing.T) {
	for name, test := range map[string]struct {
		old    string
		change func(w *Wide)
		want   string // a part of the text
		gone   string // no part of the text
	}{
		"nothing changes":            {`{"X": [1, {"y":2}],"Name":"a"}`, func(*Wide) {}, `"X":[1, {"y":2}]`, "\x00"},
		"a field changes":            {`{"X":1,"Name":"a"}`, func(w *Wide) { w.Name = "b" }, `{"X":1,"Name":"b"`, `"a"`},
		"a cleared field":            {`{"X":1,"name2":5}`, func(w *Wide) { w.Renamed = 0 }, `{"X":1,`, "name2"},
		"another case":               {`{"X":1,"NAME2":5}`, func(w *Wide) { w.Renamed = 0 }, `{"X":1,`, "NAME2"},
		"in a struct":                {`{"Small":{"X":1,"A":2}}`, func(w *Wide) { w.Small.A = 3 }, `"Small":{"X":1,"A":3}`, `"A":2`},
		"in a cleared struct":        {`{"Small":{"X":1,"B":"b"}}`, func(w *Wide) { w.Small = Small{} }, `"Small":{"X":1}`, `"b"`},
		"in an embedded struct":      {`{"base":{"X":1}}`, func(w *Wide) { w.Named.ID = "i" }, `"base":{"X":1,"ID":"i"`, "\x00"},
		"a pointer, unchanged":       {`{"Pointer":{"X":1,"A":2}}`, func(w *Wide) { w.Name = "b" }, `"Pointer":{"X":1,"A":2}`, "\x00"},
		"a pointer, changed":         {`{"Pointer":{"X":1,"A":2}}`, func(w *Wide) { w.Pointer.A = 3 }, `"Pointer":{"A":3}`, `"X"`},
		"a pointer, replaced":        {`{"Pointer":{"X":1,"A":2}}`, func(w *Wide) { w.Pointer = &Small{A: 3} }, `"Pointer":{"A":3}`, `"X"`},
		"a pointer, cleared":         {`{"Pointer":{"X":1,"A":2}}`, func(w *Wide) { w.Pointer = nil }, "", `"Pointer"`},
		"an embedded one, cleared":   {`{"Inner":{"X":1,"A":2}}`, func(w *Wide) { w.Deep = nil }, "", `"Inner"`},
		"an embedded one, changed":   {`{"Inner":{"X":1,"A":2}}`, func(w *Wide) { w.Inner.A = 3 }, `"Inner":{"A":3}`, `"X"`},
		"a deleted key":              {`{"Map":{"a":{"X":1},"b":{"X":2}}}`, func(w *Wide) { delete(w.Map, "a") }, `"Map":{"b":{"X":2,"A":0}}`, `"a"`},
		"a changed value of a key":   {`{"Map":{"a":{"X":1},"b":{"X":2}}}`, func(w *Wide) { w.Map["a"] = Small{A: 3} }, `"Map":{"a":{"A":3},"b":{"X":2,"A":0}}`, `"X":1`},
		"elements that swap places":  {`{"List":[{"A":1,"X":1},{"A":2,"X":2}]}`, func(w *Wide) { w.List[0], w.List[1] = w.List[1], w.List[0] }, `"List":[{"A":2,"X":2},{"A":1,"X":1}]`, "\x00"},
		"a removed element":          {`{"List":[{"A":1,"X":1},{"A":2,"X":2}]}`, func(w *Wide) { w.List = w.List[1:] }, `"List":[{"A":2,"X":2}]`, `"X":1`},
		"a removed one of equal":     {`{"List":[{"A":1,"X":1},{"A":1,"X":2}]}`, func(w *Wide) { w.List = w.List[1:] }, `"List":[{"A":1}]`, `"X"`},
		"an element that is doubled": {`{"List":[{"A":1,"X":1}]}`, func(w *Wide) { w.List = append(w.List, w.List[0]) }, `"List":[{"A":1},{"A":1}]`, `"X"`},
		"an added element":           {`{"List":[{"A":1,"X":1}]}`, func(w *Wide) { w.List = append(w.List, Small{A: 3}) }, `"List":[{"A":1,"X":1},{"A":3}]`, "\x00"},
		"any":                        {`{"Any":{"X":1}}`, func(w *Wide) { w.Any = map[string]any{"y": 1} }, `"Any":{"y":1}`, `"X"`},
		"a RawMessage":               {`{"Raw":{"X":1}}`, func(w *Wide) { w.Raw = nil }, `"Raw":null`, `"X"`},
		"behind itself":              {`{"Self":{"Self":{"X":1}}}`, func(w *Wide) { w.Name = "b" }, `{"Self":{"Self":{"X":1,`, "\x00"},
		"a name with an escape":      {`{"\u0058\n":1,"\u004eame":"a"}`, func(w *Wide) { w.Name = "b" }, `{"\u0058\n":1,`, `"a"`},
		"a name that comes twice":    {`{"X":1,"X":2}`, func(w *Wide) { w.Name = "b" }, `{"X":2,`, `"X":1`},
	} {
		got, next := change(t, reflect.TypeFor[Wide](), test.old, func(v reflect.Value) { test.change(v.Interface().(*Wide)) })
		if !strings.Contains(got, test.want) || strings.Contains(got, test.gone) {
			t.Errorf("%s: %s is %s\nwant %s in it, and no %q", name, test.old, got, test.want, test.gone)
		}
		var again Wide
		if err := json.Unmarshal([]byte(got), &again); err != nil {
			t.Fatalf("%s: %s: %v", name, got, err)
		}
		if text, _ := json.Marshal(&again); string(text) != next {
			t.Errorf("%s: %s is read as\n%s, want\n%s", name, got, text, next)
		}
	}
}

// change decodes a text, changes the value, and returns the text that is stored and that of the
// value alone.
func change(t *testing.T, typ reflect.Type, old string, f func(v reflect.Value)) (kept, next string) {
	t.Helper()
	v := reflect.New(typ)
	if err := json.Unmarshal([]byte(old), v.Interface()); err != nil {
		t.Fatal(old, err)
	}
	before, _ := json.Marshal(v.Interface())
	f(v)
	after, err := json.Marshal(v.Interface())
	if err != nil {
		t.Fatal(err)
	}
	d := Of(typ)
	text := d.Keep([]byte(old), before, after)
	if !json.Valid(text) {
		t.Fatalf("%v: %s after %s is no JSON: %s", typ, after, old, text)
	}
	if !d.Unknown([]byte(old)) && !bytes.Equal(compact(t, text), compact(t, after)) {
		var x, y any
		_, _ = json.Unmarshal(text, &x), json.Unmarshal(after, &y)
		if !reflect.DeepEqual(x, y) {
			t.Errorf("%v: %s has no unknown members, and %s became %s", typ, old, after, text)
		}
	}
	return string(text), string(after)
}

func compact(t *testing.T, text []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, text); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// 2,000 pairs of types, or 50,000 in a soak, of which each has fields that the other does not have:
// what one process does not know, it keeps for the other one, and what it knows is as it has left
// it.
func TestRandomPairsOfTypesKeepTheirMembers(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 13))
	unknown := 0
	pairs := 2000
	if os.Getenv("HOLDFAST_SOAK") != "" {
		pairs = 50_000
	}
	for range pairs {
		ours, theirs := structs(r, 0)
		value := reflect.New(theirs)
		fill(r, value.Elem(), 0)
		var old []byte
		for range 3 { // an empty map that is left out is nil when it is read
			var err error
			if old, err = json.Marshal(value.Interface()); err != nil {
				t.Fatal(err)
			}
			value = reflect.New(theirs)
			if err := json.Unmarshal(old, value.Interface()); err != nil {
				t.Fatal(err)
			}
		}
		if Of(ours).Unknown(old) {
			unknown++
		}
		same, _ := change(t, ours, string(old), func(reflect.Value) {})
		read := reflect.New(theirs)
		if err := json.Unmarshal([]byte(same), read.Interface()); err != nil {
			t.Fatalf("%v: %s: %v", theirs, same, err)
		}
		if again, _ := json.Marshal(read.Interface()); !bytes.Equal(again, old) {
			t.Fatalf("%v has\n%s, and after a process with %v\n%s, and stored\n%s", theirs, old, ours, again, same)
		}
		changed, next := change(t, ours, string(old), func(v reflect.Value) { mutate(r, v.Elem()) })
		read = reflect.New(ours)
		if err := json.Unmarshal([]byte(changed), read.Interface()); err != nil {
			t.Fatalf("%v: %s: %v", ours, changed, err)
		}
		alone := reflect.New(ours)
		if err := json.Unmarshal([]byte(next), alone.Interface()); err != nil {
			t.Fatal(err)
		}
		known, _ := json.Marshal(read.Interface())
		if want, _ := json.Marshal(alone.Interface()); !bytes.Equal(known, want) {
			t.Fatalf("%v wrote\n%s, and reads\n%s of\n%s", ours, next, known, changed)
		}
		checkKept(t, ours, old, []byte(changed))
	}
	if unknown < pairs/2 {
		t.Errorf("only %d of the texts had unknown members", unknown)
	}
}

// checkKept checks that the unknown members of a struct and of the structs within it are kept.
func checkKept(t *testing.T, typ reflect.Type, old, now []byte) {
	t.Helper()
	d := Of(typ)
	was, is := membersOf(old), membersOf(now)
	for _, m := range was {
		_, value, ok := is.find(string(m.name))
		f := d.field(m.name)
		switch {
		case f == nil && (!ok || !bytes.Equal(value, m.value)):
			t.Fatalf("%v: the unknown member %s of\n%s is lost in\n%s", typ, m.name, old, now)
		case f == nil || f.of == nil || f.of.kind != kindStruct:
		case !ok && f.of.unknownHere(m.value):
			t.Fatalf("%v: the struct %s of\n%s is lost in\n%s", typ, m.name, old, now)
		case ok:
			field, _ := typ.FieldByNameFunc(func(name string) bool { return strings.EqualFold(name, string(m.name)) })
			checkKept(t, field.Type, m.value, value)
		}
	}
}

// unknownHere reports whether a struct has unknown members of its own.
func (d *Type) unknownHere(text []byte) bool {
	for _, m := range membersOf(text) {
		if d.field(m.name) == nil {
			return true
		}
	}
	return false
}

var leaves = []reflect.Type{
	reflect.TypeFor[int](), reflect.TypeFor[string](), reflect.TypeFor[bool](), reflect.TypeFor[[]byte](),
	reflect.TypeFor[time.Time](), reflect.TypeFor[json.RawMessage](), reflect.TypeFor[map[string]int](),
}

// structs returns two types of structs that share some fields.
func structs(r *rand.Rand, depth int) (ours, theirs reflect.Type) {
	var a, b []reflect.StructField
	for i := range 1 + r.IntN(6) {
		name := fmt.Sprintf("F%d", i)
		x, y := types(r, depth)
		tag := reflect.StructTag([]string{"", `json:",omitempty"`, `json:",omitzero"`, fmt.Sprintf(`json:"f%d"`, i)}[r.IntN(4)])
		switch r.IntN(4) {
		case 0:
			a = append(a, reflect.StructField{Name: name, Type: x, Tag: tag})
		case 1:
			b = append(b, reflect.StructField{Name: name, Type: y, Tag: tag})
		default:
			a = append(a, reflect.StructField{Name: name, Type: x, Tag: tag})
			b = append(b, reflect.StructField{Name: name, Type: y, Tag: tag})
		}
	}
	return reflect.StructOf(a), reflect.StructOf(b)
}

// types returns the types of one field in two versions of a struct.
func types(r *rand.Rand, depth int) (ours, theirs reflect.Type) {
	if depth == 2 || r.IntN(3) == 0 {
		leaf := leaves[r.IntN(len(leaves))]
		return leaf, leaf
	}
	a, b := structs(r, depth+1)
	switch r.IntN(6) {
	case 0:
		return reflect.PointerTo(a), reflect.PointerTo(b)
	case 1:
		return reflect.SliceOf(a), reflect.SliceOf(b)
	case 2:
		return reflect.MapOf(leaves[1], a), reflect.MapOf(leaves[1], b)
	case 3:
		return reflect.ArrayOf(2, a), reflect.ArrayOf(2, b)
	}
	return a, b
}

// fill sets a value at random.
func fill(r *rand.Rand, v reflect.Value, depth int) {
	if r.IntN(5) == 0 && depth > 0 && v.Type() != leaves[5] {
		v.SetZero()
		return
	}
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.Unix(r.Int64N(1e9), 0).UTC()))
		return
	case json.RawMessage:
		v.SetBytes([]byte(`{"X":` + fmt.Sprint(r.IntN(100)) + `}`))
		return
	}
	switch v.Kind() {
	case reflect.Int:
		v.SetInt(r.Int64N(3))
	case reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case reflect.String:
		v.SetString([]string{"", "a", "\"{[,:\\", "ä<>&\u2028"}[r.IntN(4)])
	case reflect.Uint8:
		v.SetUint(r.Uint64N(256))
	case reflect.Struct:
		for i := range v.NumField() {
			fill(r, v.Field(i), depth+1)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(r, v.Elem(), depth+1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), r.IntN(4), 4))
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			fill(r, v.Index(i), depth+1)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range r.IntN(4) {
			e := reflect.New(v.Type().Elem()).Elem()
			fill(r, e, depth+1)
			v.SetMapIndex(reflect.ValueOf(fmt.Sprint("k", r.IntN(5))), e)
		}
	default:
	}
}

// mutate changes a part of a value at random.
func mutate(r *rand.Rand, v reflect.Value) {
	switch {
	case v.Kind() == reflect.Struct && v.NumField() > 0 && v.Type() != leaves[4]:
		for range 1 + r.IntN(2) {
			mutate(r, v.Field(r.IntN(v.NumField())))
		}
	case v.Kind() == reflect.Pointer && !v.IsNil() && r.IntN(2) == 0:
		mutate(r, v.Elem())
	case v.Kind() == reflect.Slice && v.Len() > 1 && v.Type() != leaves[5] && r.IntN(2) == 0:
		switch r.IntN(3) {
		case 0:
			reflect.Swapper(v.Interface())(0, 1)
		case 1:
			v.Set(v.Slice(1, v.Len()))
		default:
			mutate(r, v.Index(0))
		}
	case v.Kind() == reflect.Map && v.Len() > 0 && r.IntN(2) == 0:
		v.SetMapIndex(v.MapKeys()[0], reflect.Value{})
	default:
		fill(r, v, 1)
	}
}

// FuzzKeep finds texts on which the functions fail.
func FuzzKeep(f *testing.F) {
	f.Add(`{"X":1,"Small":{"X":[1,{"a":"\""}]},"List":[{"A":1}]}`, `{"Name":"b"}`)
	f.Fuzz(func(t *testing.T, old, next string) {
		var w, x Wide
		if json.Unmarshal([]byte(old), &w) != nil || json.Unmarshal([]byte(next), &x) != nil {
			return
		}
		kept, after := change(t, reflect.TypeFor[Wide](), old, func(v reflect.Value) { v.Elem().Set(reflect.ValueOf(x)) })
		var again Wide
		if err := json.Unmarshal([]byte(kept), &again); err != nil {
			t.Fatalf("%s: %v", kept, err)
		}
		if text, _ := json.Marshal(&again); string(text) != after {
			t.Errorf("%s and %s are %s, which is read as %s", old, after, kept, text)
		}
	})
}

// BenchmarkUnknown is the cost of a step of a saga whose state has no unknown members.
func BenchmarkUnknown(b *testing.B) {
	text, err := json.Marshal(Wide{Name: "order 4711", Pointer: &Small{A: 1}, List: []Small{{1, "a"}, {2, "b"}}, Map: map[string]Small{"x": {3, "c"}}})
	if err != nil {
		b.Fatal(err)
	}
	d := Of(reflect.TypeFor[Wide]())
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if d.Unknown(text) {
			b.Fatal("an unknown member")
		}
	}
}
