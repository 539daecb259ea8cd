package transporttest

import (
	"slices"

	"github.com/holdfast-go/holdfast/transport"
)

// forms returns the name of a queue and the other forms of its address that a driver writes itself,
// each once.
func forms(a transport.Addresser, queue string) []string {
	all := []string{queue}
	for _, form := range []string{a.Address(queue), a.ShortName(queue)} {
		if !slices.Contains(all, form) {
			all = append(all, form)
		}
	}
	return all
}

func addressForms(t *test) {
	c := t.open()
	a := as[transport.Addresser](t, c)
	for _, q := range []string{t.name("in"), t.name("Shop.Sales"), t.name("no queue, and no name?")} {
		address, name := a.Address(q), a.ShortName(q)
		for _, form := range forms(a, q) {
			if got := a.Address(form); got != address {
				t.Errorf("Address of %q is %q, and of its form %q %q", q, address, form, got)
			}
			if got := a.ShortName(form); got != name {
				t.Errorf("ShortName of %q is %q, and of its form %q %q", q, name, form, got)
			}
		}
	}
}

func addressReaches(t *test) {
	c := t.open()
	a := as[transport.Addresser](t, c)
	q := t.queue(c, "Shop.Sales")
	other := t.queue(c, "Shop.Sales.Other")
	for _, form := range forms(a, q) {
		t.send(c, form, "to "+form)
		if i, ok := c.(transport.Inspector); ok {
			t.eventually("the message is counted by each form of the address", func() bool {
				stats, err := i.Inspect(t.ctx(), form)
				if err != nil || len(stats) != 1 || stats[0].Name != a.ShortName(q) {
					t.Fatalf("Inspect of %q: %+v, %v, want %q", form, stats, err, a.ShortName(q))
				}
				return told(stats[0].Ready, 1)
			})
		}
		for _, by := range forms(a, q) {
			r := t.receiver(c, by)
			d := t.one(r, "to "+form)
			t.do("Release", d.Release)
			t.leave(by)
		}
		t.holds(c, q, "to "+form)
	}
	t.empty(c, other)
}
