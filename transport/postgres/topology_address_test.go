package postgres

import (
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

func TestEveryFormOfAnAddressIsOneQueue(t *testing.T) {
	t.Parallel()
	s := newStore(settings{Settings: dialect.Settings{Schema: "shop"}})
	for form, want := range map[string]struct{ address, name string }{
		"sales":              {`"shop"."sales"`, "sales"},
		`"sales"`:            {`"shop"."sales"`, "sales"},
		`"shop"."sales"`:     {`"shop"."sales"`, "sales"},
		"Go.Peer":            {`"shop"."Go.Peer"`, "Go.Peer"},
		`"Go.Peer"`:          {`"shop"."Go.Peer"`, "Go.Peer"},
		`"shop"."Go.Peer"`:   {`"shop"."Go.Peer"`, "Go.Peer"},
		"shop.sales":         {`"shop"."shop.sales"`, "shop.sales"},
		`"public"."Go.Peer"`: {`"public"."Go.Peer"`, `"public"."Go.Peer"`},
		`"Shop"."sales"`:     {`"Shop"."sales"`, `"Shop"."sales"`},
		`"a""b.c"."d"".e"`:   {`"a""b.c"."d"".e"`, `"a""b.c"."d"".e"`},
		`a"b`:                {`"shop"."a""b"`, `a"b`},
		`"a""b"`:             {`"shop"."a""b"`, `a"b`},
		`"""a"`:              {`"shop"."""a"`, `"""a"`},
		`[dbo]@sales`:        {`"shop"."[dbo]@sales"`, `[dbo]@sales`},
		`Ünï cödé`:           {`"shop"."Ünï cödé"`, `Ünï cödé`},
	} {
		ok(t, s.Check(form))
		for _, same := range []string{form, want.address, want.name} {
			if got := s.table(same).quoted; got != want.address {
				t.Errorf("%s is %s, want %s", same, got, want.address)
			}
			if got := s.Address(same); got != want.address {
				t.Errorf("%s has the address %s, want %s", same, got, want.address)
			}
			if got := s.ShortName(same); got != want.name {
				t.Errorf("%s is called %s, want %s", same, got, want.name)
			}
		}
	}
}

func TestAMalformedAddressIsNoQueue(t *testing.T) {
	t.Parallel()
	s := newStore(settings{Settings: dialect.Settings{Schema: "shop"}})
	for _, bad := range []string{
		`"`, `""`, `"a`, `"a""`, `""."a"`, `"a".""`, `"a".`, `"a".b`, `"a"b`, `"a""b`, `"a"."b`, `"a"."b"."c"`, `"a"."b"c`, `"a" . "b"`, `"a"."b" `,
		`"a"; DROP TABLE b; --`, "\"a\"\x00.\"b\"", "\"a\"\x00", "\"a\x00\".\"b\"", "\"a\".\"\xff\"",
		`"` + strings.Repeat("x", 64) + `"."a"`, `"a"."` + strings.Repeat("x", 64) + `"`, strings.Repeat(`"`, 1<<20), `"` + strings.Repeat("x", 1<<20),
	} {
		err := s.Check(bad)
		if !errors.Is(err, transport.ErrNoQueue) || len(err.Error()) > 2000 {
			t.Errorf("%.100q: %.200v, want ErrNoQueue", bad, err)
		}
		if s.Address(bad) != bad || s.ShortName(bad) != bad {
			t.Errorf("%.100q has the address %.100q and is called %.100q", bad, s.Address(bad), s.ShortName(bad))
		}
	}
}

func FuzzAddress(f *testing.F) {
	f.Add(`"shop"."Go.Peer"`)
	f.Add(`"a""b"`)
	s := newStore(settings{Settings: dialect.Settings{Schema: "shop"}})
	f.Fuzz(func(t *testing.T, text string) {
		schema, table, err := s.parse(text)
		for _, form := range []string{s.Address(text), s.ShortName(text)} {
			schema2, table2, err2 := s.parse(form)
			if err == nil && (err2 != nil || schema2 != schema || table2 != table) || err != nil && form != text {
				t.Errorf("%q is %q.%q (%v), and its form %q is %q.%q (%v)", text, schema, table, err, form, schema2, table2, err2)
			}
			if s.Address(form) != s.Address(text) || s.ShortName(form) != s.ShortName(text) {
				t.Errorf("%q and its form %q are not one queue", text, form)
			}
		}
	})
}
