package asb

import (
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/transport"
)

func TestEveryFormOfAnAddressIsOneQueue(t *testing.T) {
	for _, test := range []struct{ hierarchy, form, address, name string }{
		{"", "sales", "sales", "sales"},
		{"", "ns/sales", "ns/sales", "ns/sales"},
		{"ns", "Shop.Sales", "ns/Shop.Sales", "Shop.Sales"},
		{"ns", "ns/Shop.Sales", "ns/Shop.Sales", "Shop.Sales"},
		{"ns", "ns", "ns/ns", "ns"},
		{"ns", "nsx", "ns/nsx", "nsx"},
		{"ns", "ns2/x", "ns/ns2/x", "ns2/x"},
		{"ns", "ns.x", "ns/ns.x", "ns.x"},
		{"ns", "ns/ns/x", "ns/ns/x", "ns/ns/x"}, // ns/x would be the queue x
		{"ns", "ns/ns", "ns/ns", "ns"},
		{"a/b", "a/x", "a/b/a/x", "a/x"},
		{"a/b", "a/b/x", "a/b/x", "x"},
		{"ns", "sales/$DeadLetterQueue", "ns/sales/$DeadLetterQueue", "sales/$DeadLetterQueue"},
		{"ns", "ns/sales/$DeadLetterQueue", "ns/sales/$DeadLetterQueue", "sales/$DeadLetterQueue"},
	} {
		c := &core{naming: newNaming(&Transport{Hierarchy: test.hierarchy})}
		for _, same := range []string{test.form, test.address, test.name} {
			if got := c.Address(same); got != test.address {
				t.Errorf("%q in hierarchy %q has the address %q, want %q", same, test.hierarchy, got, test.address)
			}
			if got := c.ShortName(same); got != test.name {
				t.Errorf("%q in hierarchy %q is called %q, want %q", same, test.hierarchy, got, test.name)
			}
		}
	}
}

func TestAMalformedAddressIsNoQueue(t *testing.T) {
	c := &core{naming: newNaming(&Transport{Hierarchy: "ns"})}
	for _, bad := range []string{
		"", "ns/", "ns//", "sales/", "a b", "ä", "a\x00", "ns/a?b", "/$DeadLetterQueue", "sales/$deadletterqueue/x",
		`"public"."sales"`, strings.Repeat("x", 1<<20),
	} {
		_, _, err := c.naming.queue(bad)
		if !errors.Is(err, transport.ErrNoQueue) || len(err.Error()) > 2000 {
			t.Errorf("%.100q: %.200v, want ErrNoQueue", bad, err)
		}
		if c.Address(bad) != bad || c.ShortName(bad) != bad {
			t.Errorf("%.100q has the address %.100q and is called %.100q", bad, c.Address(bad), c.ShortName(bad))
		}
	}
}

func FuzzAddress(f *testing.F) {
	f.Add("ns", "ns/Shop.Sales")
	f.Fuzz(func(t *testing.T, hierarchy, text string) {
		if hierarchy != "" && !validEntity(hierarchy) {
			t.Skip("Open refuses that hierarchy")
		}
		c := &core{naming: newNaming(&Transport{Hierarchy: hierarchy})}
		for _, form := range []string{c.Address(text), c.ShortName(text)} {
			if c.Address(form) != c.Address(text) || c.ShortName(form) != c.ShortName(text) {
				t.Errorf("in hierarchy %q, %q and its form %q are not one queue", hierarchy, text, form)
			}
		}
	})
}
