package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/holdfast-go/holdfast/recoverability"
)

// effective returns the retries that the transport and the transaction mode offer; the others are off.
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
