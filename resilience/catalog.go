package resilience

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Catalog holds policies by name. It does not change, and is safe for concurrent use. A nil Catalog is empty.
type Catalog struct{ policies map[string]Policy }

// NewCatalog returns a catalog of the policies. It fails with all mistakes in them, joined: see [Policy.Validate]. Two
// policies with one name are a mistake.
func NewCatalog(policies ...Policy) (*Catalog, error) {
	c := &Catalog{make(map[string]Policy, len(policies))}
	var errs []error
	for _, p := range policies {
		errs = append(errs, p.Validate())
		if _, known := c.policies[p.Name]; known {
			errs = append(errs, fmt.Errorf("resilience: policy %.200q: two policies have that name", p.Name))
		}
		c.policies[p.Name] = p.WithDefaults()
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return c, nil
}

// MustCatalog is [NewCatalog] for variables of a package. It panics if there is a mistake.
func MustCatalog(policies ...Policy) *Catalog {
	c, err := NewCatalog(policies...)
	if err != nil {
		panic(err) //nolint:forbidigo // a mistake in a variable of a package, before the start
	}
	return c
}

// Policy returns the policy with a name, with defaults for its zero fields, and reports whether there is one.
func (c *Catalog) Policy(name string) (Policy, bool) {
	if c == nil {
		return Policy{}, false
	}
	p, ok := c.policies[name]
	return p, ok
}

// Names returns the names of the policies in alphabetical order.
func (c *Catalog) Names() []string {
	if c == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(c.policies))
}

// All returns the policies in the alphabetical order of their names, with defaults for their zero fields.
func (c *Catalog) All() []Policy {
	var all []Policy
	for _, name := range c.Names() {
		all = append(all, c.policies[name])
	}
	return all
}

// unknown returns the error for a name without a policy.
func (c *Catalog) unknown(name string) error {
	names := c.Names()
	if len(names) == 0 {
		return fmt.Errorf("resilience: there is no policy %.200q: the catalog is empty", name)
	}
	const most = 20
	more := ""
	if len(names) > most {
		names, more = names[:most], fmt.Sprintf(" and %d more", len(names)-most)
	}
	return fmt.Errorf("resilience: there is no policy %.200q: the catalog has %s%s", name, strings.Join(names, ", "), more)
}
