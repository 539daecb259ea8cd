package jsonloss_test

import (
	"encoding/json"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/jsonloss"
)

// The numbers of random types.
const (
	typesShort = 500
	typesSoak  = 5000
)

// Random structs have no losses if and only if their values are equal after a round trip.
// HOLDFAST_SOAK=1 tries 5,000 types.
func TestRandomTypesLoseWhatOfLists(t *testing.T) {
	cases := typesShort
	if os.Getenv("HOLDFAST_SOAK") != "" {
		cases = typesSoak
	}
	complete := 0
	for seed := range cases {
		of := generator{rand.New(rand.NewPCG(uint64(seed), 1))}.structure(3)
		losses := jsonloss.Of(of)
		if len(losses) == 0 {
			complete++
		}
		if equal, text := roundTrip(of, uint64(seed)); equal != (len(losses) == 0) {
			t.Fatalf("type %d: %v\nequal after a round trip: %v\nlosses: %v\n%s", seed, of, equal, losses, text)
		}
	}
	if complete < cases/4 || complete > cases*3/4 {
		t.Errorf("%d of %d types are stored completely: the generator makes too few of one sort", complete, cases)
	}
}

// roundTrip reports whether a filled value of a type is equal after it was encoded and decoded, and
// describes both.
func roundTrip(t reflect.Type, seed uint64) (equal bool, text string) {
	before, after := reflect.New(t), reflect.New(t)
	fill(generator{rand.New(rand.NewPCG(seed, 2))}, before.Elem(), 0)
	body, err := json.Marshal(before.Interface())
	if err == nil {
		err = json.Unmarshal(body, after.Interface())
	}
	return err == nil && reflect.DeepEqual(before.Interface(), after.Interface()),
		fmt.Sprintf("%s, %v\n%+v\n%+v", body, err, before, after)
}

// fill gives a value random contents, also in fields that are not exported. Fields that are
// excluded by their tags stay zero.
func fill(g generator, v reflect.Value, depth int) {
	if !v.CanSet() {
		v = reflect.NewAt(v.Type(), v.Addr().UnsafePointer()).Elem()
	}
	switch t := v.Type(); t {
	case reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Unix(g.Int64N(1e10), g.Int64N(1e9)).UTC()))
		return
	case reflect.TypeFor[big.Int]():
		v.Set(reflect.ValueOf(*new(big.Int).Lsh(big.NewInt(g.Int64()), 70)))
		return
	case reflect.TypeFor[netip.Addr]():
		v.Set(reflect.ValueOf(netip.AddrFrom4([4]byte{10, 0, byte(g.IntN(256)), byte(g.IntN(256))})))
		return
	case reflect.TypeFor[json.RawMessage]():
		v.SetBytes(fmt.Appendf(nil, `{"n":%d}`, g.Int64()))
		return
	}
	switch {
	case v.Kind() == reflect.Interface:
		switch {
		case v.NumMethod() == 0:
			v.Set(reflect.ValueOf(9007199254740993))
		case reflect.TypeFor[time.Time]().Implements(v.Type()):
			v.Set(reflect.ValueOf(time.Unix(g.Int64N(1e10), 0).UTC()))
		}
	case v.Kind() == reflect.Bool:
		v.SetBool(true)
	case v.CanInt():
		v.SetInt(1 + g.Int64N(100))
	case v.CanUint():
		v.SetUint(1 + g.Uint64N(100))
	case v.CanFloat():
		v.SetFloat(float64(1+g.IntN(100)) / 8)
	case v.CanComplex():
		v.SetComplex(1)
	case v.Kind() == reflect.String:
		v.SetString(fmt.Sprintf("t%d<\"日", g.IntN(1e6)))
	case v.Kind() == reflect.Chan:
		v.Set(reflect.MakeChan(v.Type(), 0))
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.Tag.Get("json") != "-" && f.Name != "_" {
				fill(g, v.Field(i), depth+1)
			}
		}
	case v.Kind() == reflect.Array:
		for i := range v.Len() {
			fill(g, v.Index(i), depth+1)
		}
	case depth > 6: // of recursive types
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(g, v.Elem(), depth+1)
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(g, v.Index(0), depth+1)
		fill(g, v.Index(1), depth+1)
	case v.Kind() == reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 2 {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(g, key, depth+1)
			fill(g, value, depth+1)
			v.SetMapIndex(key, value)
		}
	}
}

// generator makes random types.
type generator struct{ *rand.Rand }

func pick[T any](g generator, of []T) T { return of[g.IntN(len(of))] }

var (
	good = []reflect.Type{
		reflect.TypeFor[bool](), reflect.TypeFor[int](), reflect.TypeFor[uint8](), reflect.TypeFor[int64](), reflect.TypeFor[float32](),
		reflect.TypeFor[string](), reflect.TypeFor[number](), reflect.TypeFor[[]byte](), reflect.TypeFor[time.Time](),
		reflect.TypeFor[json.RawMessage](), reflect.TypeFor[netip.Addr](), reflect.TypeFor[*big.Int](), reflect.TypeFor[key](),
		reflect.TypeFor[Base](), reflect.TypeFor[guarded](), reflect.TypeFor[tree](), reflect.TypeFor[stamped](),
		reflect.TypeFor[own](), reflect.TypeFor[reads](), reflect.TypeFor[plain](), reflect.TypeFor[time.Duration](), reflect.TypeFor[struct{}](),
	}
	doubtful = []reflect.Type{
		reflect.TypeFor[big.Int](), reflect.TypeFor[cents](), reflect.TypeFor[money](), reflect.TypeFor[noted](), reflect.TypeFor[secretly](),
		reflect.TypeFor[any](), reflect.TypeFor[fmt.Stringer](), reflect.TypeFor[chan int](), reflect.TypeFor[complex128](),
		reflect.TypeFor[writes](), reflect.TypeFor[upper](), reflect.TypeFor[wrapped](), reflect.TypeFor[Chain](),
	}
	keys = []reflect.Type{
		reflect.TypeFor[string](), reflect.TypeFor[string](), reflect.TypeFor[int8](), reflect.TypeFor[uint64](), reflect.TypeFor[key](),
		reflect.TypeFor[netip.Addr](), reflect.TypeFor[number](), reflect.TypeFor[time.Time](), reflect.TypeFor[writes](), reflect.TypeFor[bool](),
	}
	embeds = []reflect.Type{
		reflect.TypeFor[Base](), reflect.TypeFor[Other](), reflect.TypeFor[*Base](), reflect.TypeFor[*Other](), reflect.TypeFor[Chain](),
	}
	tags = []reflect.StructTag{
		"", "", "", "", `json:"-"`, `json:"name"`, `json:"ID"`, `json:",omitempty"`, `json:"-,"`, `json:",string"`, `json:"a<b,omitzero"`, `json:"bad\\name"`,
	}
)

func (g generator) structure(depth int) reflect.Type {
	var fields []reflect.StructField
	names := map[string]bool{}
	for i := range 1 + g.IntN(4) {
		f := reflect.StructField{Name: fmt.Sprintf("F%d", i), Type: g.value(depth - 1), Tag: pick(g, tags)}
		switch g.IntN(16) {
		case 0:
			f.Name, f.PkgPath = fmt.Sprintf("f%d", i), "test"
		case 1, 2, 3:
			f.Type, f.Anonymous = pick(g, embeds), true
			f.Name = f.Type.Name()
			if f.Type.Kind() == reflect.Pointer {
				f.Name = f.Type.Elem().Name()
			}
		}
		if !names[f.Name] {
			fields = append(fields, f)
		}
		names[f.Name] = true
	}
	return reflect.StructOf(slices.Clip(fields))
}

func (g generator) value(depth int) reflect.Type {
	if depth == 0 {
		if g.IntN(12) == 0 {
			return pick(g, doubtful)
		}
		return pick(g, good)
	}
	switch g.IntN(8) {
	case 0:
		return g.structure(depth)
	case 1:
		return reflect.SliceOf(g.value(depth - 1))
	case 2:
		return reflect.ArrayOf(g.IntN(3), g.value(depth-1))
	case 3:
		return reflect.MapOf(pick(g, keys), g.value(depth-1))
	case 4:
		return reflect.PointerTo(g.value(depth - 1))
	}
	return g.value(0)
}

// NeedsAddress is true of the types whose values have another text without an address.
func TestNeedsAddressOfPointerMethods(t *testing.T) {
	for seed := range typesShort {
		of := generator{rand.New(rand.NewPCG(uint64(seed), 1))}.structure(3)
		value := reflect.New(of)
		fill(generator{rand.New(rand.NewPCG(uint64(seed), 2))}, value.Elem(), 0)
		pointer, perr := json.Marshal(value.Interface())
		copied, err := json.Marshal(value.Elem().Interface())
		if (string(pointer) != string(copied) || (perr == nil) != (err == nil)) && !jsonloss.NeedsAddress(of) {
			t.Fatalf("type %d: %v\n%s\n%s", seed, of, pointer, copied)
		}
	}
	for of, want := range map[reflect.Type]bool{
		reflect.TypeFor[big.Int]():                true,
		reflect.TypeFor[struct{ A [2]big.Int }](): true,
		reflect.TypeFor[struct{ A *big.Int }]():   false,
		reflect.TypeFor[struct{ A []big.Int }]():  false,
		reflect.TypeFor[struct{ A time.Time }]():  false,
		reflect.TypeFor[tree]():                   false,
	} {
		if got := jsonloss.NeedsAddress(of); got != want {
			t.Errorf("%v: %v, want %v", of, got, want)
		}
	}
}

func BenchmarkOf(b *testing.B) {
	var all [100]reflect.Type
	for i := range all {
		all[i] = generator{rand.New(rand.NewPCG(uint64(i), 1))}.structure(4)
	}
	for b.Loop() {
		for _, t := range all {
			jsonloss.Of(t)
		}
	}
}
