package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/recovery"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/resilience"
)

// offeredRetries returns the retries that the transport and the transaction mode offer; the others
// are off. It returns an error for each policy that the transport cannot carry out.
func (l *live) offeredRetries(ctx context.Context) (recoverability.Config, error) {
	c := l.e.cfg.Recoverability.WithDefaults()
	if l.e.cfg.SendOnly {
		return c, nil
	}
	offer := recovery.Offer{
		Endpoint: l.e.cfg.Name, Limits: l.Limits, CompletesFirst: l.e.cfg.Transactions == None,
		LongestAttempt: l.e.longestAttempt, Log: l.e.cfg.Logger,
	}
	if err := offer.Check(l.e.cfg.Recoverability); err != nil {
		return c, err //nolint:wrapcheck // the error names the endpoint
	}
	return offer.Effective(ctx, c), nil
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
