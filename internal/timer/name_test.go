package timer

import (
	"strings"
	"testing"
)

func TestNamesOfOwnersDiffer(t *testing.T) {
	texts := map[string]Name{}
	parts := []string{"", "a", "b", "ab", "0,0:", "1,1:ab", "a\x00b", "ü", strings.Repeat("x", MaxName)}
	for _, kind := range parts {
		for _, key := range parts {
			for _, name := range parts {
				n := Name{Kind: kind, Key: key, Name: name}
				if other, twice := texts[n.Text()]; twice {
					t.Errorf("%+v and %+v are both stored as %q", n, other, n.Text())
				}
				texts[n.Text()] = n
				if got, err := Parse(n.Text()); got != n || err != nil {
					t.Errorf("%+v is read as %+v, %v", n, got, err)
				}
			}
		}
	}
}

func TestBadNames(t *testing.T) {
	for what, n := range map[string]Name{
		"empty": {}, "too long": {Name: strings.Repeat("x", MaxName+1)}, "invalid UTF-8": {Name: "\xff"},
		"key too long": {Kind: "k", Key: strings.Repeat("x", MaxName+1), Name: "n"}, "key of invalid UTF-8": {Key: "\xff", Name: "n"},
		"kind of invalid UTF-8": {Kind: "\xff", Name: "n"},
	} {
		if n.Validate() == nil {
			t.Errorf("%s: no error", what)
		}
	}
	for _, n := range []Name{{Name: "\x00"}, {Name: strings.Repeat("ü", MaxName/2)}, {Kind: "k", Key: "1", Name: "n"}} {
		if err := n.Validate(); err != nil {
			t.Errorf("%q: %v", n, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"", "0,0:a", "1,1:abc", "01,0:ab", "9,9:a", "-1,0:a", "1:a", "9223372036854775807,9223372036854775807:a"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := Parse(text); err == nil && n.Text() != text {
			t.Errorf("%q is read as %+v", text, n)
		}
	})
}

func TestNamesForPeople(t *testing.T) {
	if got := (Name{Name: "payment"}).String(); got != "payment" {
		t.Error(got)
	}
	if got := (Name{Kind: "shipping@billing", Key: "17", Name: "payment"}).String(); got != `payment of shipping@billing "17"` {
		t.Error(got)
	}
}
