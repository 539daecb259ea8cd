package header_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/header"
)

func TestTypeNamesAreFullNamesOnly(t *testing.T) {
	const strongName = ", Shop, Version=1.2.3.4, Culture=neutral, PublicKeyToken=null"
	for _, test := range []struct {
		name, enclosed string
		want           []string
	}{
		{"nothing", "", nil},
		{"one", "Shop.OrderPlaced", []string{"Shop.OrderPlaced"}},
		{"two", "Shop.OrderPlaced;Shop.IOrderEvent", []string{"Shop.OrderPlaced", "Shop.IOrderEvent"}},
		{"with assemblies", "Shop.OrderPlaced" + strongName + ";Shop.IOrderEvent" + strongName, []string{"Shop.OrderPlaced", "Shop.IOrderEvent"}},
		{"nested class", "Shop.Orders+Placed" + strongName, []string{"Shop.Orders+Placed"}},
		{"generic", "Shop.Changed`1[[Shop.Order, Shop, Version=1.0.0.0]]" + strongName, []string{"Shop.Changed`1[[Shop.Order, Shop, Version=1.0.0.0]]"}},
		{"generic of two", "A`2[[B, X],[C, Y]], Z;D", []string{"A`2[[B, X],[C, Y]]", "D"}},
		{"spaces", " Shop.A , Shop ; Shop.B ", []string{"Shop.A", "Shop.B"}},
		{"empty entries", ";;Shop.A;;, Shop;", []string{"Shop.A"}},
		{"too many closing brackets", "A]], B;C", []string{"A]]", "C"}},
		{"bracket left open", "A[[B, C;D, E", []string{"A[[B, C", "D"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := slices.Collect(header.TypeNames(test.enclosed))
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("TypeNames(%q) (-want +got):\n%s", test.enclosed, diff)
			}
		})
	}
}

func TestTypeNamesStopsWhenToldTo(t *testing.T) {
	for name := range header.TypeNames("A;B") {
		if name != "A" {
			t.Errorf("it went on to %q", name)
		}
		break
	}
}

func TestJoinTypesIsReadBack(t *testing.T) {
	want := []string{"Shop.OrderPlaced", "Shop.IOrderEvent"}
	got := slices.Collect(header.TypeNames(header.JoinTypes(want...)))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for text, names := range map[string][]string{
		"": nil, "Shop.A": {"Shop.A"}, "Shop.A, Holdfast;Shop.B": {"Shop.A", "Shop.B"}, "A, Holdfast;B;C": {"A", "B", "C"},
	} {
		if got := header.JoinTypes(names...); got != text {
			t.Errorf("JoinTypes(%q) = %q, want %q", names, got, text)
		}
	}
}

// Names are whole, trimmed, in order, and reading what was read changes nothing.
func FuzzTypeNames(f *testing.F) {
	for _, s := range []string{
		"Shop.OrderPlaced, Shop, Version=1.0.0.0;Shop.IOrderEvent",
		"A`1[[B, C]], D;E", ";;", "A]],B", "[[[", " , ;", "Bé;€ , x",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, enclosed string) {
		names := slices.Collect(header.TypeNames(enclosed))
		rest := enclosed
		for _, name := range names {
			if name == "" || name != strings.TrimSpace(name) || strings.Contains(name, ";") {
				t.Errorf("%q is not a name", name)
			}
			_, after, found := strings.Cut(rest, name)
			if !found {
				t.Fatalf("%q is not next in %q", name, rest)
			}
			rest = after
		}
		if header.CheckTypes(names...) != nil { // a bracket is open, or the text is not UTF-8
			return
		}
		again := slices.Collect(header.TypeNames(header.JoinTypes(names...)))
		if diff := cmp.Diff(names, again); diff != "" {
			t.Errorf("reading %q again:\n%s", names, diff)
		}
	})
}

func TestCheckTypesRefusesUnreadableNames(t *testing.T) {
	for name, readable := range map[string]bool{
		"Shop.OrderPlaced": true, "Shop.Orders+Placed": true, "Box`1[[Shop.Order, Shop]]": true, "Bé": true, "A]": true, "A B": true,
		"": false, " Shop.A": false, "Shop.A\t": false, "Shop.A\u00a0": false, "A[": false, "A, Shop": false, "A;B": false, "A\xff": false,
	} {
		if err := header.CheckTypes("Shop.Order", name); (err == nil) != readable {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := header.CheckTypes(); err != nil {
		t.Errorf("no names: %v", err)
	}
}

// Names that CheckTypes accepts are read as they were written, alone or together, with assemblies
// or without, and in JSON.
func FuzzJoinTypes(f *testing.F) {
	for _, names := range [][2]string{
		{"Shop.OrderPlaced", "Shop.IOrderEvent"}, {"Box`1[[Shop.Order, Shop]]", "Base"}, {"A[", "B"}, {" A", "B"}, {"A", "\xff"}, {"]", "[]"}, {"", ""},
	} {
		f.Add(names[0], names[1])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		if header.CheckTypes(a, b) != nil {
			return
		}
		for text, want := range map[string][]string{
			header.JoinTypes(a):                           {a},
			header.JoinTypes(a, b):                        {a, b},
			header.JoinTypes(b, a, b):                     {b, a, b},
			a + ", Shop, Version=1.0.0.0;" + b + ", Shop": {a, b},
		} {
			h := header.New(header.Field{Name: header.EnclosedMessageTypes, Value: text})
			written, err := h.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			read, err := header.ParseJSON(string(written))
			if err != nil {
				t.Fatal(err)
			}
			if got := slices.Collect(header.TypeNames(read.Get(header.EnclosedMessageTypes))); !slices.Equal(got, want) {
				t.Errorf("%q is read as %q, want %q", text, got, want)
			}
		}
	})
}

func BenchmarkTypeNames(b *testing.B) {
	const enclosed = "Shop.OrderPlaced, Shop, Version=1.0.0.0, Culture=neutral, PublicKeyToken=null;Shop.IOrderEvent, Shop"
	b.ReportAllocs()
	for b.Loop() {
		for range header.TypeNames(enclosed) {
		}
	}
}

func ExampleTypeNames() {
	const enclosed = "Shop.OrderPlaced, Shop, Version=1.0.0.0;Shop.IOrderEvent, Shop"
	for name := range header.TypeNames(enclosed) {
		fmt.Println(name)
	}
	// Output:
	// Shop.OrderPlaced
	// Shop.IOrderEvent
}
