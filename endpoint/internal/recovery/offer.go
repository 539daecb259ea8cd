package recovery

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
	"github.com/holdfast-go/holdfast/transport"
)

// Offer is the retries that the transport and the transaction mode of an endpoint offer.
type Offer struct {
	Endpoint string // the name, for errors
	Limits   transport.Limits
	// CompletesFirst: messages are completed before the handlers run, and have no retries.
	CompletesFirst bool
	// LongestAttempt returns the longest time that an attempt at a message of one of the types may
	// take, without types of any; 0 for no limit.
	LongestAttempt func(types []string) time.Duration
	Log            *slog.Logger
}

// Effective returns c with the offered retries; the others are off.
func (o *Offer) Effective(ctx context.Context, c recoverability.Config) recoverability.Config {
	longest := c.LongestDelay()
	switch {
	case o.CompletesFirst:
		immediate := func(r recoverability.Rule) bool { return r.Immediate > 0 }
		if c.Immediate > 0 || longest > 0 || slices.ContainsFunc(c.Rules, immediate) {
			o.Log.WarnContext(ctx, "retries are off: transaction mode None has none")
		}
		return c.WithoutImmediate().WithoutDelayed()
	case o.Limits.MaxDelay == 0:
		if longest > 0 {
			o.Log.WarnContext(ctx, "delayed retries are off: the transport offers no delays")
		}
		return c.WithoutDelayed()
	case longest > o.Limits.MaxDelay:
		o.Log.WarnContext(ctx,
			"a configured delay exceeds the transport's: messages are moved to the error queue instead",
			slog.Duration("longest", longest), slog.Duration("offered", o.Limits.MaxDelay))
	}
	return c
}

// Check returns an error for each policy of c that the transport cannot carry out.
func (o *Offer) Check(c recoverability.Config) error {
	var errs []error
	bad := func(format string, args ...any) {
		args = append([]any{o.Endpoint}, args...)
		errs = append(errs, fmt.Errorf("endpoint %q: recoverability: "+format, args...))
	}
	for i := range c.Rules {
		r := &c.Rules[i]
		switch r.Retry.Mode {
		case resilience.DeferredMode:
			o.checkDeferred(fmt.Sprintf("rule %d", i+1), r.Retry.Policy, bad)
		case resilience.InlineMode:
			if r.Retry.Policy.Retry != (resilience.Retry{}) { // otherwise each retry is a delivery of its own
				o.checkInline(i+1, r, bad)
			}
		}
	}
	for _, p := range c.Policies.All() {
		o.checkDeferred("Policies", p, bad)
	}
	return errors.Join(errs...)
}

func (o *Offer) checkDeferred(
	where string, p resilience.Policy, bad func(format string, args ...any),
) {
	rules := []recoverability.Rule{{Retry: resilience.Deferred(p)}}
	alone := recoverability.Config{Delayed: recoverability.None, Rules: rules}
	switch longest, most := alone.LongestDelay(), o.Limits.MaxDelay; {
	case p.Retries() == 0:
	case most == 0:
		bad("%s: policy %.200q is deferred, but the transport offers no delays: use resilience.Inline",
			where, p.Name)
	case longest > most:
		bad("%s: policy %.200q has a delay of %v, but the transport offers at most %v: set Retry.MaxDelay",
			where, p.Name, longest, most)
	}
}

// checkInline compares the longest time that a message of the rule may take with the time that the
// broker lets a delivery be unsettled. Half of the time is for the handlers of earlier messages, and
// for settling.
func (o *Offer) checkInline(rule int, r *recoverability.Rule, bad func(format string, args ...any)) {
	most := o.Limits.MaxHold / 2
	if most == 0 {
		return
	}
	p := r.Retry.Policy
	attempts, delays := time.Duration(p.Retries()+1), recoverability.TotalDelay(p)
	limit := cmp.Or(p.Timeout, o.LongestAttempt(r.Types))
	if delays > most || limit > (most-delays)/attempts {
		bad("rule %d: the %d attempts of policy %.200q may take %v each and its delays %v, but the broker delivers a message again "+
			"after %v, and half of that is for them: use resilience.Deferred, or a shorter policy",
			rule, int(attempts), p.Name, limit, delays, 2*most)
	}
}
