package recoverability

import (
	"cmp"
	"slices"
)

// Rule says what is different for some failures. Those are of one of Types and have an error that
// one of Errors means; none of either stands for all. A zero field of the others is that
// of the [Config].
type Rule struct {
	// Types are wire names. A message is of its own type and of its base types.
	Types []string
	// Errors are the errors that the rule is about.
	Errors []Matcher

	// Immediate, Delayed, Delays and ErrorQueue are as in Config.
	Immediate  int
	Delayed    int
	Delays     Delays
	ErrorQueue string

	// Action, when set, is what becomes of the message at once, also after an
	// unrecoverable error: [MoveToError], [DeadLetter] or [Discard].
	Action Action
}

// fits tells whether the rule is about the failure.
func (r *Rule) fits(f Failure) bool {
	return (len(r.Types) == 0 || slices.ContainsFunc(r.Types, f.OfType)) &&
		(len(r.Errors) == 0 || anyOf(r.Errors, f.Err))
}

// ruled is c with what the first rule that fits says, and that rule's Action, if any.
func (c Config) ruled(f Failure) (Config, Action) {
	i := slices.IndexFunc(c.Rules, func(r Rule) bool { return r.fits(f) })
	if i < 0 {
		return c, nil
	}
	return c.with(&c.Rules[i]), c.Rules[i].Action
}

// with is c with what the rule says.
func (c Config) with(r *Rule) Config {
	c.Immediate = cmp.Or(r.Immediate, c.Immediate)
	c.Delayed = cmp.Or(r.Delayed, c.Delayed)
	c.Delays = r.Delays.or(c.Delays)
	c.ErrorQueue = cmp.Or(r.ErrorQueue, c.ErrorQueue)
	return c
}

func (r *Rule) validate(bad func(format string, args ...any)) {
	validateNumbers(bad, r.Immediate, r.Delayed)
	validateMatchers(bad, "Errors", r.Errors)
	r.Delays.validate(bad)
	if slices.Contains(r.Types, "") {
		bad("a name in Types is empty")
	}
	switch r.Action.(type) {
	case nil, MoveToError, DeadLetter, Discard:
	default:
		bad("Action is to %v, without end: use Immediate and Delayed", r.Action)
	}
}
