package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/resilience"
)

// effective returns the retries that the transport and the transaction mode offer; the others are
// off.
func (l *live) effective(ctx context.Context) recoverability.Config {
	c := l.e.cfg.Recoverability.WithDefaults()
	longest := c.LongestDelay()
	switch {
	case l.e.cfg.SendOnly:
	case l.e.cfg.Transactions == None:
		immediate := func(r recoverability.Rule) bool { return r.Immediate > 0 }
		if c.Immediate > 0 || longest > 0 || slices.ContainsFunc(c.Rules, immediate) {
			l.e.cfg.Logger.WarnContext(ctx, "retries are off: transaction mode None has none")
		}
		return c.WithoutImmediate().WithoutDelayed()
	case l.limits.MaxDelay == 0:
		if longest > 0 {
			l.e.cfg.Logger.WarnContext(ctx, "delayed retries are off: the transport offers no delays")
		}
		return c.WithoutDelayed()
	case longest > l.limits.MaxDelay:
		l.e.cfg.Logger.WarnContext(ctx, "a configured delay exceeds the transport's: messages are moved to the error queue instead",
			slog.Duration("longest", longest), slog.Duration("offered", l.limits.MaxDelay))
	}
	return c
}

// rules returns an error for each rule that names a type which no message has.
func (r *registry) rules(rules []recoverability.Rule) error {
	var errs []error
	for i, rule := range rules {
		for _, name := range rule.Types {
			if name != "" && !slices.ContainsFunc(r.all, func(t *messageType) bool { return slices.Contains(t.types, name) }) {
				errs = append(errs, fmt.Errorf(
					"recoverability: rule %d: no message in Config.Messages is called %q or has that base", i+1, name))
			}
		}
	}
	return errors.Join(errs...)
}

// validateRetries reports policies that the other fields do not allow.
func (c Config) validateRetries(bad func(format string, args ...any)) {
	uses := c.Recoverability.Rules
	for i := range uses {
		switch use := uses[i].Retry; {
		case use.Mode == 0, use.Policy.Retry == resilience.Retry{}: // a time limit alone
		case c.Transactions == None:
			bad("recoverability: rule %d: policy %.200q has retries, but Transactions is None, which has none: use %v", i+1, use.Policy.Name, ReceiveOnly)
		case use.Mode == resilience.DeferredMode:
			c.validateRemember(use.Policy, bad)
		}
	}
	for _, p := range c.Recoverability.Policies.All() {
		if c.Transactions == None && p.Retry != (resilience.Retry{}) {
			bad("recoverability: policy %.200q of Policies has retries, but Transactions is None, which has none: use %v", p.Name, ReceiveOnly)
		}
		c.validateRemember(p, bad)
	}
}

// validateRemember reports a policy whose retries may begin when the ids of the message are
// forgotten.
func (c Config) validateRemember(p resilience.Policy, bad func(format string, args ...any)) {
	remember := c.Remember
	if c.Outbox != nil && remember == 0 {
		remember = defaultRemember
	}
	if total := recoverability.TotalDelay(p); remember > 0 && total > remember {
		bad("recoverability: the delays of policy %.200q add up to %v, but Remember is %v: duplicates that arrive later are not "+
			"recognized: raise Remember", p.Name, total, remember)
	}
}

// checkRetries returns an error for each policy that the transport cannot carry out.
func (l *live) checkRetries() error {
	if l.e.cfg.SendOnly {
		return nil
	}
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("endpoint %q: recoverability: "+format, append([]any{l.e.cfg.Name}, args...)...))
	}
	for i := range l.e.cfg.Recoverability.Rules {
		r := &l.e.cfg.Recoverability.Rules[i]
		switch r.Retry.Mode {
		case resilience.DeferredMode:
			l.checkDeferred(fmt.Sprintf("rule %d", i+1), r.Retry.Policy, bad)
		case resilience.InlineMode:
			if r.Retry.Policy.Retry != (resilience.Retry{}) { // otherwise each retry is a delivery of its own
				l.checkInline(i+1, r, bad)
			}
		}
	}
	for _, p := range l.e.cfg.Recoverability.Policies.All() {
		l.checkDeferred("Policies", p, bad)
	}
	return errors.Join(errs...)
}

func (l *live) checkDeferred(where string, p resilience.Policy, bad func(format string, args ...any)) {
	alone := recoverability.Config{Delayed: recoverability.None, Rules: []recoverability.Rule{{Retry: resilience.Deferred(p)}}}
	switch longest, most := alone.LongestDelay(), l.limits.MaxDelay; {
	case p.Retries() == 0:
	case most == 0:
		bad("%s: policy %.200q is deferred, but the transport offers no delays: use resilience.Inline", where, p.Name)
	case longest > most:
		bad("%s: policy %.200q has a delay of %v, but the transport offers at most %v: set Retry.MaxDelay", where, p.Name, longest, most)
	}
}

// checkInline compares the longest time that a message of the rule may take with the time that the
// broker lets a delivery be unsettled. Half of that is for the handlers of messages that came
// before it, and for settling.
func (l *live) checkInline(rule int, r *recoverability.Rule, bad func(format string, args ...any)) {
	most := l.limits.MaxHold / 2
	if most == 0 {
		return
	}
	p := r.Retry.Policy
	attempts, delays := time.Duration(p.Retries()+1), recoverability.TotalDelay(p)
	limit := cmp.Or(p.Timeout, l.e.longestAttempt(r.Types))
	if delays > most || limit > (most-delays)/attempts {
		bad("rule %d: the %d attempts of policy %.200q may take %v each and its delays %v, but the broker delivers a message again "+
			"after %v, and half of that is for them: use resilience.Deferred, or a shorter policy",
			rule, int(attempts), p.Name, limit, delays, 2*most)
	}
}

// longestAttempt returns the longest time that an attempt at a message of one of the types may
// take, without types of any; 0 where there is no limit.
func (e *Endpoint) longestAttempt(types []string) (longest time.Duration) {
	for _, t := range e.types.all {
		of := func(name string) bool { return slices.Contains(types, name) }
		if len(types) > 0 && !slices.ContainsFunc(t.types, of) {
			continue
		}
		longest = max(longest, cmp.Or(t.timeout, time.Duration(len(t.calls))*e.cfg.HandlerTimeout))
	}
	return longest
}
