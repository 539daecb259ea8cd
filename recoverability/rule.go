package recoverability

import (
	"cmp"
	"slices"

	"github.com/holdfast-go/holdfast/resilience"
)

// Rule changes a [Config] for some failures: those of a message of one of Types with an error that
// one of Errors matches. No Types are all types, no Errors all errors. A zero field of the others
// is that of the Config.
//
// A rule with Retry has no Action, and no Immediate, Delayed and Delays unless the policy has a
// Timeout alone.
type Rule struct {
	// Types are wire names. A message has its own type and its base types.
	Types []string
	// Errors match the errors of the rule.
	Errors []Matcher

	// Immediate, Delayed, Delays and ErrorQueue are as in Config.
	Immediate  int
	Delayed    int
	Delays     Delays
	ErrorQueue string

	// Retry, if set, is the policy of the retries: [resilience.Inline] makes them within the
	// delivery, and [resilience.Deferred] as delayed copies. There are no immediate retries beside
	// it, and Delays and the limit of 24 hours do not apply. The Timeout of the policy limits each
	// attempt; a rule with one has no Errors. A policy with a Timeout alone limits each attempt,
	// and the retries are those of the other fields. A message that names a policy itself has that
	// instead: see [Config].Policies. [resilience.Attempt] returns the number of the attempt in
	// handlers, unless the rule has Errors or the policy no Retry.
	Retry resilience.Use

	// Action, if set, is carried out at once, also after an unrecoverable error: [MoveToError],
	// [DeadLetter] or [Discard].
	Action Action
}

// ruled returns c with the first rule that matches, and that rule; the zero Rule if there is none.
func (c Config) ruled(f Failure) (Config, Rule) {
	i := slices.IndexFunc(c.Rules, func(r Rule) bool {
		return (len(r.Types) == 0 || slices.ContainsFunc(r.Types, f.OfType)) &&
			(len(r.Errors) == 0 || anyOf(r.Errors, f.Err))
	})
	if i < 0 {
		return c, Rule{}
	}
	return c.with(&c.Rules[i]), c.Rules[i]
}

// with returns c with the fields of the rule.
func (c Config) with(r *Rule) Config {
	c.Immediate = cmp.Or(r.Immediate, c.Immediate)
	c.Delayed = cmp.Or(r.Delayed, c.Delayed)
	c.Delays.Delay = cmp.Or(r.Delays.Delay, c.Delays.Delay)
	c.Delays.Backoff = cmp.Or(r.Delays.Backoff, c.Delays.Backoff)
	c.Delays.MaxDelay = cmp.Or(r.Delays.MaxDelay, c.Delays.MaxDelay)
	c.Delays.Jitter = cmp.Or(r.Delays.Jitter, c.Delays.Jitter)
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
		bad("Action is to %v, without end: use Immediate and Delayed, or Retry", r.Action)
	}
	r.validateRetry(bad)
}
