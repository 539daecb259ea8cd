package resilience

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Catalog finds policies by name. It is safe for concurrent use. [NewCatalog] makes one. Another
// implementation can be given to a [Runner], for instance with policies of a file: then each call
// validates its policy. A nil Catalog is empty.
type Catalog interface {
	// Policy returns the policy with a name, and reports whether there is one.
	Policy(name string) (p Policy, ok bool)
}

// Policies is a [Catalog] of policies that were validated. It does not change. A nil *Policies is
// empty.
type Policies struct{ policies map[string]Policy }

// NewCatalog returns a catalog of the policies. It fails with all mistakes in them, joined: see
// [Policy.Validate]. Two policies with one name are a mistake.
func NewCatalog(policies ...Policy) (*Policies, error) {
	c := &Policies{make(map[string]Policy, len(policies))}
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
func MustCatalog(policies ...Policy) *Policies {
	c, err := NewCatalog(policies...)
	if err != nil {
		panic(err) //nolint:forbidigo // a mistake in a variable of a package, before the start
	}
	return c
}

// Policy returns the policy with a name, with defaults for its zero fields, and reports whether
// there is one.
func (c *Policies) Policy(name string) (Policy, bool) {
	if c == nil {
		return Policy{}, false
	}
	p, ok := c.policies[name]
	return p, ok
}

// Names returns the names of the policies in alphabetical order.
func (c *Policies) Names() []string {
	if c == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(c.policies))
}

// All returns the policies in the alphabetical order of their names, with defaults for their zero
// fields.
func (c *Policies) All() []Policy {
	var all []Policy
	for _, name := range c.Names() {
		all = append(all, c.policies[name])
	}
	return all
}

// find returns the policy with a name, with defaults for its zero fields.
func find(c Catalog, name string) (Policy, error) {
	if c == nil {
		return Policy{}, unknown(name, nil)
	}
	p, ok := c.Policy(name)
	own, validated := c.(*Policies)
	switch {
	case !ok && validated:
		return Policy{}, unknown(name, own.Names())
	case !ok:
		return Policy{}, fmt.Errorf("resilience: there is no policy %.200q in the catalog, a %T", name, c)
	case validated:
		return p, nil
	}
	return p.WithDefaults(), p.Validate()
}

// unknown returns the error for a name without a policy.
func unknown(name string, names []string) error {
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
