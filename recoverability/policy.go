package recoverability

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/resilience"
)

// Policy decides on a failure. It must be safe for concurrent use and must not block. It may call
// [Failure.Decide] for the decision of the default policy.
type Policy func(Failure) Action

// None turns off a field of this package's structs whose zero is a default.
const None = -1

// Defaults of [Config].
const (
	DefaultImmediate  = 5
	DefaultDelayed    = 3
	DefaultDelay      = 10 * time.Second
	DefaultErrorQueue = "error"
)

// maxRetryTime is the time after the first failure in which delayed retries may begin.
const maxRetryTime = 24 * time.Hour

// Config configures recoverability. A zero field is its default.
type Config struct {
	// Immediate is the number of immediate retries in each cycle. Default: 5. [None] turns them
	// off.
	Immediate int
	// Delayed is the number of delayed retries, each of which begins a new cycle. Default: 3.
	// [None] turns them off.
	Delayed int
	// Delays are the delays before the delayed retries. Default: 10 s, 20 s, 30 s and so on.
	Delays Delays
	// ErrorQueue is the queue to which a message is moved that failed for good. Default: "error".
	ErrorQueue string
	// Unrecoverable matches the errors after which a message is not attempted again, beside those
	// that [Unrecoverable] or [resilience.NonRetryable] marks.
	Unrecoverable []Matcher
	// Rules change the fields above for some message types and some errors. Only the first rule
	// that matches a failure applies.
	Rules []Rule
	// Policies is the catalog of the policies that a message can name in its header
	// [header.HoldfastPolicy], beside those of the Rules. A [resilience.Runner] can have the same
	// catalog: then no two policies have one name. Each of them can be used for messages. A message
	// that names a policy is retried by that policy, deferred, whatever the Rules say about
	// retries. A policy with a Timeout alone limits each attempt, and the retries are those of the
	// Rules and of the fields above. A name that is not known is logged when the message fails, and
	// has no effect.
	Policies *resilience.Policies
	// Quarantine protects the endpoint against messages that crash the process.
	Quarantine Quarantine
	// Memory bounds the data that the process keeps about failed messages.
	Memory Memory
	// RateLimit limits attempts during an outage of a dependency. Default: no limit.
	RateLimit RateLimit
	// Policy, if set, decides on failures in place of the default policy, [Config.Decide].
	Policy Policy
	// FaultHeaders, if set, changes the headers that a move to an error queue adds, for instance to
	// remove secrets. It is called for every failure and must be safe for concurrent use. If it
	// panics, the headers are not changed.
	FaultHeaders func(fault *header.Map, f Failure)
}

// Memory bounds the memory of failed messages in a process: the number of failures, for brokers
// that do not count, and the class and beginning of the errors. A zero field is its default.
type Memory struct {
	// Messages is the number of messages. Default: 1,000. The endpoint remembers at least 8 times
	// its Concurrency: otherwise, at a broker that does not count, a message that is forgotten
	// before it fails again is retried for ever.
	Messages int
	// Bytes is the size of the texts. Default: 1 MiB. Beyond it only counts are remembered.
	Bytes int
}

// WithDefaults returns c with defaults for its zero fields.
func (c Config) WithDefaults() Config {
	c.Immediate = cmp.Or(c.Immediate, DefaultImmediate)
	c.Delayed = cmp.Or(c.Delayed, DefaultDelayed)
	c.Delays.Delay = cmp.Or(c.Delays.Delay, DefaultDelay)
	c.ErrorQueue = cmp.Or(c.ErrorQueue, DefaultErrorQueue)
	c.Quarantine.Crashes = cmp.Or(c.Quarantine.Crashes, DefaultCrashes)
	c.Quarantine.Idle = cmp.Or(c.Quarantine.Idle, DefaultIdle)
	if c.Quarantine.After == 0 {
		c.Quarantine.After = max(c.Immediate+1, DefaultCrashes)
		for _, r := range c.Rules {
			c.Quarantine.After = max(c.Quarantine.After, r.Immediate+1)
		}
	}
	c.Memory.Messages = cmp.Or(c.Memory.Messages, 1000)
	c.Memory.Bytes = cmp.Or(c.Memory.Bytes, 1<<20)
	return c
}

// WithoutImmediate returns c without immediate retries, also in its rules.
func (c Config) WithoutImmediate() Config {
	c.Immediate, c.Rules = None, slices.Clone(c.Rules)
	for i := range c.Rules {
		c.Rules[i].Immediate = None
	}
	return c
}

// WithoutDelayed returns c without delayed retries, also in its rules.
func (c Config) WithoutDelayed() Config {
	c.Delayed, c.Rules = None, slices.Clone(c.Rules)
	for i := range c.Rules {
		c.Rules[i].Delayed = None
	}
	return c
}

// ErrorQueues returns the error queues that c and its rules name, each once. Those of a Policy are
// not known.
func (c Config) ErrorQueues() []string {
	queues := []string{c.WithDefaults().ErrorQueue}
	add := func(queue string) {
		if queue != "" && !slices.Contains(queues, queue) {
			queues = append(queues, queue)
		}
	}
	for _, r := range c.Rules {
		add(r.ErrorQueue)
		if move, ok := r.Action.(MoveToError); ok {
			add(move.Queue)
		}
	}
	return queues
}

// Decide is the default policy; it does not call c.Policy. The first rule that matches applies. An
// unrecoverable error goes to the error queue. If the rule has a Retry, or the message names one of
// Policies, that policy decides. Otherwise an error with [RetryAfter] is retried after that time,
// while Delayed allows. Any other is retried at once while Immediate allows; then after a delay of
// Delays, while Delayed allows and no more than 24 hours have passed since the message first
// failed; then it goes to the error queue. So a message that always fails is attempted
// (Immediate+1)·(Delayed+1) times, 24 by default.
func (c Config) Decide(f Failure) Action {
	c, rule := c.WithDefaults().ruled(f)
	action := rule.Action
	giveUp := MoveToError{Queue: c.ErrorQueue}
	switch {
	case action == MoveToError{}:
		return giveUp
	case action != nil:
		return action
	case c.unrecoverable(f.Err):
		return giveUp
	}
	if use := c.use(f, rule); use != (resilience.Use{}) {
		return f.retry(use, giveUp)
	}
	delayable := f.Delayed < c.Delayed && f.Now.Sub(f.FirstFailure) <= maxRetryTime
	mark := errtree.Find[*retryAfterError](f.Err)
	switch {
	case mark != nil && delayable:
		return Delay{For: mark.after}
	case f.Immediate <= c.Immediate:
		return Retry{}
	case delayable:
		return Delay{For: c.Delays.delay(f)}
	}
	return giveUp
}

func (c Config) unrecoverable(err error) bool {
	return IsUnrecoverable(err) || resilience.IsNonRetryable(err) || anyOf(c.Unrecoverable, err)
}

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
