package recoverability

import (
	"errors"
	"fmt"
)

// Validate returns all errors of c, joined.
func (c Config) Validate() error {
	var errs []error
	where := "recoverability: "
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(where+format, args...)) }
	validateNumbers(bad, c.Immediate, c.Delayed)
	validateMatchers(bad, "Unrecoverable", c.Unrecoverable)
	c.Delays.validate(bad)
	if c.Quarantine.After < None {
		bad("Quarantine.After is %d: use None for no guard", c.Quarantine.After)
	}
	if c.Quarantine.Crashes < 0 {
		bad("Quarantine.Crashes is %d: it must be positive", c.Quarantine.Crashes)
	}
	if idle := c.Quarantine.Idle; idle != 0 && idle < leastIdle {
		bad("Quarantine.Idle is %v: it must be at least %v", idle, leastIdle)
	}
	if c.Memory.Messages < 0 || c.Memory.Bytes < 0 {
		bad("Memory is %d messages and %d bytes: neither can be negative", c.Memory.Messages, c.Memory.Bytes)
	}
	c.RateLimit.validate(bad)
	c.validatePolicies(bad)
	for i, r := range c.Rules {
		where = fmt.Sprintf("recoverability: rule %d: ", i+1)
		r.validate(bad)
	}
	return errors.Join(errs...)
}

func validateNumbers(bad func(format string, args ...any), immediate, delayed int) {
	if immediate < None {
		bad("Immediate is %d: use None for none", immediate)
	}
	if delayed < None {
		bad("Delayed is %d: use None for none", delayed)
	}
}

func validateMatchers(bad func(format string, args ...any), field string, matchers []Matcher) {
	for i, m := range matchers {
		if m == nil {
			bad("matcher %d of %s is nil: Is or When was called with nil", i+1, field)
		}
	}
}
