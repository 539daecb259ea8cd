package sqlserver

import (
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

func TestEveryFormOfAnAddressIsOneQueue(t *testing.T) {
	_, s := newFake(t, nil) // of database shop
	for form, want := range map[string]struct{ quoted, address, name string }{
		"sales":                     {"[dbo].[sales]", "sales@[dbo]@[shop]", "sales"},
		"Shop.Sales":                {"[dbo].[Shop.Sales]", "Shop.Sales@[dbo]@[shop]", "Shop.Sales"},
		"[sales]":                   {"[dbo].[sales]", "sales@[dbo]@[shop]", "sales"},
		"sales@[dbo]":               {"[dbo].[sales]", "sales@[dbo]@[shop]", "sales"},
		"sales@dbo":                 {"[dbo].[sales]", "sales@[dbo]@[shop]", "sales"},
		"sales@dbo@shop":            {"[dbo].[sales]", "sales@[dbo]@[shop]", "sales"},
		"[sales]@[dbo]@[shop]":      {"[dbo].[sales]", "sales@[dbo]@[shop]", "sales"},
		"sales@[dbo]@[SHOP]":        {"[dbo].[sales]", "sales@[dbo]@[shop]", "sales"},
		"sales@[eu]":                {"[eu].[sales]", "sales@[eu]@[shop]", "sales@[eu]"},
		"sales@eu":                  {"[eu].[sales]", "sales@[eu]@[shop]", "sales@[eu]"},
		"sales@[a]]b@]@[other; db]": {"[other; db].[a]]b@].[sales]", "sales@[a]]b@]@[other; db]", "sales@[a]]b@]@[other; db]"},
		"[[x]@[dbo]":                {"[dbo].[[x]", "[[x]@[dbo]@[shop]", "[[x]"},
		"[a@b]":                     {"[dbo].[a@b]", "[a@b]@[dbo]@[shop]", "[a@b]"},
		"it's [fine]":               {"[dbo].[it's [fine]]]", "it's [fine]@[dbo]@[shop]", "it's [fine]"},
		"x]@[dbo]":                  {"[dbo].[x]]]", "x]@[dbo]@[shop]", "x]"},
	} {
		ok(t, s.Check(form))
		for _, same := range []string{form, want.address, want.name} {
			if got := s.table(same).quoted; got != want.quoted {
				t.Errorf("%s is %s, want %s", same, got, want.quoted)
			}
			if got := s.Address(same); got != want.address {
				t.Errorf("%s has the address %q, want %q", same, got, want.address)
			}
			if got := s.ShortName(same); got != want.name {
				t.Errorf("%s is called %q, want %q", same, got, want.name)
			}
		}
	}
	s.Routing = "SubscriptionRouting"
	if got, want := s.subscriber("sales"), "sales@[dbo]@[shop]"; got != want {
		t.Errorf("subscriber %q, want %q", got, want)
	}
}

func TestAMalformedAddressIsNoQueue(t *testing.T) {
	_, s := newFake(t, nil)
	for _, bad := range []string{
		"@", "@[dbo]", "sales@", "sales@[]", "sales@[dbo", "sales@[dbo]x", "sales@[dbo]@", "sales@[dbo]@[shop]@[x]", "[sales", "[]", "[]@[dbo]",
		"sales@[dbo]; DROP TABLE x--@]", "[sales]x", "sales@[dbo]]", "sales@@shop", "sales@[a\x00]", "sales@[\xff]",
		"Holdfast_Tables@[dbo]", "x@[#a]", "x@[dbo]@[" + strings.Repeat("d", 129) + "]", strings.Repeat("@", 1<<20), strings.Repeat("[", 1<<20),
	} {
		err := s.Check(bad)
		if !errors.Is(err, transport.ErrNoQueue) || len(err.Error()) > 2000 {
			t.Errorf("%.100q: %.200v, want ErrNoQueue", bad, err)
		}
		if strings.HasPrefix(bad, "Holdfast") { // the address of another table
			continue
		}
		if s.Address(bad) != bad || s.ShortName(bad) != bad {
			t.Errorf("%.100q has the address %.100q and is called %.100q", bad, s.Address(bad), s.ShortName(bad))
		}
	}
}

func FuzzAddress(f *testing.F) {
	f.Add("sales@[dbo]@[shop]")
	f.Add("[a]]@b]@c")
	s := &schema{Settings: dialect.Settings{Schema: "dbo"}, database: "shop"}
	f.Fuzz(func(t *testing.T, text string) {
		place, err := s.parse(text)
		for _, form := range []string{s.Address(text), s.ShortName(text)} {
			again, err2 := s.parse(form)
			if again != place || (err == nil) != (err2 == nil) {
				t.Errorf("%q is %+v (%v), and its form %q is %+v (%v)", text, place, err, form, again, err2)
			}
			if s.Address(form) != s.Address(text) || s.ShortName(form) != s.ShortName(text) {
				t.Errorf("%q and its form %q are not one queue", text, form)
			}
		}
	})
}
