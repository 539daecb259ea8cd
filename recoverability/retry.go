package recoverability

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/resilience"
)

const (
	// maxDeferred is the longest time that the delays of a deferred policy may add up to.
	maxDeferred = 30 * 24 * time.Hour
	// maxInline is the same of an inline policy, whatever the broker allows: a message that waits
	// keeps the endpoint from its quarantine.
	maxInline = time.Hour
	// maxRetries is the largest number of retries of a policy for messages.
	maxRetries = 10_000
)

// classPanic is the class of a handler's panic.
const classPanic = "panic"

// NamedPolicy returns the policy with a name, of Policies or of a rule, with its defaults. It
// reports false if there is none.
func (c Config) NamedPolicy(name string) (p resilience.Policy, ok bool) {
	if p, ok := c.Policies.Policy(name); ok {
		return p, true
	}
	for i := range c.Rules {
		if use := &c.Rules[i].Retry; use.Mode != 0 && use.Policy.Name == name {
			return use.Policy.WithDefaults(), true
		}
	}
	return resilience.Policy{}, false
}

// RetryOf returns the policy by which a message is retried, before the message is attempted: the
// policy that its header [header.HoldfastPolicy] names, or that of the first rule for its type and
// for all errors. typ is the wire name of the message, or "". The zero Use means that the numbers
// of retries in c count, as for a policy with a Timeout alone.
func (c Config) RetryOf(typ string, headers header.Map) resilience.Use {
	f, rule := c.before(typ, headers)
	return c.use(f, rule)
}

// LimitOf returns the policy whose Timeout limits an attempt at a message, and reports whether
// there is one. The policies are those of [Config.RetryOf], and those with a Timeout alone.
func (c Config) LimitOf(typ string, headers header.Map) (p resilience.Policy, ok bool) {
	f, rule := c.before(typ, headers)
	named, known := c.named(f)
	switch {
	case known && named.Timeout > 0:
		return named, true
	case known && retries(named) && retries(rule.Retry.Policy): // the named policy is in the place of that of the rule
		return resilience.Policy{}, false
	}
	return rule.Retry.Policy, rule.Retry.Policy.Timeout > 0
}

// before returns a message before it is attempted, with the first rule for its type and for all
// errors.
func (c Config) before(typ string, headers header.Map) (Failure, Rule) {
	f := Failure{Type: typ, Headers: headers}
	for i := range c.Rules {
		if r := &c.Rules[i]; len(r.Errors) == 0 && (len(r.Types) == 0 || slices.ContainsFunc(r.Types, f.OfType)) {
			return f, *r
		}
	}
	return f, Rule{}
}

// named returns the policy that a message names.
func (c Config) named(f Failure) (p resilience.Policy, ok bool) {
	if name := f.Headers.Get(header.HoldfastPolicy); name != "" {
		return c.NamedPolicy(name)
	}
	return resilience.Policy{}, false
}

// retries reports whether a policy decides on retries. A policy with a Timeout alone does not.
func retries(p resilience.Policy) bool { return p.Retry != resilience.Retry{} }

// use returns the policy by which a failure that a rule matches is retried; the zero Use if there
// is none.
func (c Config) use(f Failure, rule Rule) resilience.Use {
	if p, ok := c.named(f); ok && retries(p) {
		return resilience.Deferred(p)
	}
	if rule.Retry.Mode == 0 || !retries(rule.Retry.Policy) {
		return resilience.Use{}
	}
	rule.Retry.Policy = rule.Retry.Policy.WithDefaults()
	return rule.Retry
}

// retry returns the action of a policy: giveUp when its retries are used up, and after a panic in
// an inline attempt. A message that failed in quarantine waits for its next attempt in its own
// queue, once: in quarantine all others would wait for it.
func (f Failure) retry(use resilience.Use, giveUp Action) Action {
	inline := use.Mode == resilience.InlineMode
	made := max(0, f.Delayed)
	if inline {
		made = f.Inline
	}
	if made >= use.Policy.Retries() || inline && Class(f.Err) == classPanic {
		return giveUp
	}
	after := use.Policy.DelayFor(made+1, f.chance)
	if mark := errtree.Find[*retryAfterError](f.Err); mark != nil {
		after = mark.after
		if most := use.Policy.Retry.MaxDelay; most > 0 {
			after = min(after, most)
		}
		if inline {
			after = min(after, maxInline)
		}
	}
	switch {
	case !inline, f.Quarantined > 0 && f.Delayed == 0:
		return Delay{For: after}
	case f.Quarantined > 0:
		return giveUp
	}
	return RetryInline{For: after}
}

// TotalDelay returns the sum of the largest delays of a policy, or the longest Duration if that is
// shorter.
func TotalDelay(p resilience.Policy) (total time.Duration) {
	p.Retry.Jitter = resilience.None
	for n := 1; n <= min(p.Retries(), maxRetries); n++ {
		d := p.DelayFor(n, nil)
		if d > longest-total {
			return longest
		}
		total += d
	}
	return total
}

// longestDelay returns the largest delay of a policy.
func longestDelay(p resilience.Policy) time.Duration {
	p.Retry.Jitter = resilience.None
	n := p.Retries()
	if n == 0 {
		return 0
	}
	return p.DelayFor(n, nil)
}

func (c Config) validatePolicies(bad func(format string, args ...any)) {
	known := map[string]resilience.Policy{}
	for _, p := range c.Policies.All() {
		validatePolicy(bad, resilience.Deferred(p))
		known[p.Name] = p
	}
	for i := range c.Rules {
		use := c.Rules[i].Retry
		if use.Mode == 0 {
			continue
		}
		p := use.Policy.WithDefaults()
		if other, ok := known[p.Name]; ok && other != p {
			bad("rule %d: there is another policy %.200q with other values: a message that waits knows the name only", i+1, p.Name)
		}
		known[p.Name] = p
	}
}

func (r *Rule) validateRetry(bad func(format string, args ...any)) {
	if r.Retry == (resilience.Use{}) {
		return
	}
	name := r.Retry.Policy.Name
	if retries(r.Retry.Policy) && (r.Immediate != 0 || r.Delayed != 0 || r.Delays != (Delays{})) {
		bad("Retry is set beside Immediate, Delayed or Delays: policy %.200q has all numbers: leave them out", name)
	}
	if r.Action != nil {
		bad("Retry is set beside Action, which is carried out at once: leave one of them out")
	}
	if r.Retry.Policy.Timeout > 0 && len(r.Errors) > 0 {
		bad("the Timeout of policy %.200q is for attempts, before there is an error: set it in a rule without Errors, or for the "+
			"message", name)
	}
	validatePolicy(bad, r.Retry)
}

// validatePolicy reports what makes a policy unusable for messages.
func validatePolicy(bad func(format string, args ...any), use resilience.Use) {
	p := use.Policy
	if err := p.Validate(); err != nil {
		bad("%w", err)
		return
	}
	if n := p.Retries(); n > maxRetries {
		bad("policy %.200q: Retry.Max is %d: a message has at most %d retries", p.Name, n, maxRetries)
		return
	}
	switch total := TotalDelay(p); use.Mode {
	case resilience.DeferredMode:
		if total > maxDeferred {
			bad("policy %.200q: its delays add up to %v: the most is %v", p.Name, total, maxDeferred)
		}
	case resilience.InlineMode:
		if total > maxInline {
			bad("policy %.200q: its delays add up to %v: inline the most is %v: use resilience.Deferred", p.Name, total, maxInline)
		}
	default:
		bad("Retry has %v: use resilience.Inline or resilience.Deferred", use.Mode)
	}
}

// Delays are the delays between delayed retries. They grow from one to the next, by the formula of
// [resilience.Policy.DelayFor]. A zero field is its default.
type Delays struct {
	// Delay is the first delay, and with Linear the growth of each. Default: 10 s.
	Delay time.Duration
	// Backoff is the growth of the delays. Default: [resilience.Linear].
	Backoff resilience.Backoff
	// MaxDelay is the longest delay. Default: no bound. [None] is no bound in a [Rule] where the
	// Config has one.
	MaxDelay time.Duration
	// Jitter is the largest share of a delay, from 0 to 1, that a random part takes off, so that
	// messages that failed together are not retried together: with 0.5, 10 s is a delay from 5 s to
	// 10 s. The random part depends on the message's id alone, so the same failure always has the
	// same delay. Default: no jitter. [None] is no jitter in a Rule where the Config has one.
	Jitter float64
}

// delay returns the delay before the next cycle.
func (d Delays) delay(f Failure) time.Duration {
	before := min(max(0, f.Delayed), math.MaxInt-1)
	retry := resilience.Retry{Delay: d.Delay, Backoff: cmp.Or(d.Backoff, resilience.Linear), MaxDelay: d.MaxDelay, Jitter: d.Jitter}
	return resilience.Policy{Retry: retry}.DelayFor(before+1, f.chance)
}

// chance returns a number from 0 up to 1, uniform over messages and their retries, and always the
// same for one.
func (f Failure) chance() float64 { return chance(f.MessageID, f.Delayed+f.Inline) }

func chance(id string, delayed int) float64 {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, id, " ", delayed) // never fails
	x := h.Sum64()
	x = (x ^ x>>32) * 0x9e3779b97f4a7c15 // ids that differ in a digit differ in all bits
	x = (x ^ x>>29) * 0xbf58476d1ce4e5b9
	return float64((x^x>>32)>>11) / (1 << 53)
}

// longest is the longest Duration.
const longest = time.Duration(math.MaxInt64)

func (d Delays) validate(bad func(format string, args ...any)) {
	if d.Delay < 0 {
		bad("Delays.Delay is negative: %v; 0 is the default", d.Delay)
	}
	if d.Backoff < 0 || d.Backoff > resilience.Exponential {
		bad("Delays.Backoff is %v: use resilience.Constant, Linear or Exponential", d.Backoff)
	}
	if d.MaxDelay < None {
		bad("Delays.MaxDelay is negative: %v; use None for no bound", d.MaxDelay)
	}
	if d.Jitter != None && !(d.Jitter >= 0 && d.Jitter <= 1) { // nor NaN
		bad("Delays.Jitter is %v: it is a share from 0 to 1, or None", d.Jitter)
	}
}

// LongestDelay returns the longest delay of c, its rules and its policies, or 0 where there are no
// delayed retries. The delays of [RetryAfter] and of a Policy are not known.
func (c Config) LongestDelay() time.Duration {
	c = c.WithDefaults()
	d := c.lastDelay()
	for i := range c.Rules {
		switch r := &c.Rules[i]; {
		case !retries(r.Retry.Policy):
			d = max(d, c.with(r).lastDelay())
		case r.Retry.Mode == resilience.DeferredMode:
			d = max(d, longestDelay(r.Retry.Policy))
		}
	}
	for _, p := range c.Policies.All() {
		d = max(d, longestDelay(p))
	}
	return d
}

// lastDelay returns the longest delay that begins within a day, without jitter.
func (c Config) lastDelay() (last time.Duration) {
	const enough = 10_000
	c.Delays.Jitter = 0
	var waited time.Duration
	for n := 0; n < min(c.Delayed, enough) && waited <= maxRetryTime; n++ {
		last = c.Delays.delay(Failure{Delayed: n})
		if last > maxRetryTime {
			return last
		}
		waited += last
	}
	return last
}
