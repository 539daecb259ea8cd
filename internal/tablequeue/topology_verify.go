package tablequeue

import (
	"context"
	"errors"
	"slices"

	"github.com/holdfast-go/holdfast/transport"
)

// Verify implements [transport.Verifier].
func (c *Conn) Verify(ctx context.Context, plan transport.Plan) (found []transport.Finding, err error) {
	plan = c.shortPlan(plan)
	err = c.call(ctx, names(plan), func(ctx context.Context) error {
		switch _, err := c.store.Subscriptions(ctx); {
		case errors.Is(err, ErrNotInstalled):
			found = append(found, transport.Finding{Kind: "table", Name: "subscriptions", State: transport.Missing})
		case err != nil:
			return err
		}
		for _, q := range plan.Queues {
			f := transport.Finding{Kind: "queue", Name: q.Name}
			err := c.store.Exists(ctx, q.Name)
			unfit, differs := errors.AsType[*UnfitError](err)
			switch {
			case err == nil, differs && unfit.Foreign && q.Shared:
				continue
			case differs:
				f.State, f.Detail = transport.Differs, unfit.Reason
			case errors.Is(err, transport.ErrNoQueue):
				f.State = transport.Missing
			default:
				return err
			}
			found = append(found, f)
		}
		return nil
	})
	return found, err
}

// VerifySubscriptions implements [transport.SubscriptionVerifier].
func (c *Conn) VerifySubscriptions(ctx context.Context, queue string, types []string) (found []transport.Finding, err error) {
	queue = c.ShortName(queue)
	all, err := ask(ctx, c, []string{queue}, c.store.Subscriptions)
	if err != nil && !errors.Is(err, ErrNotInstalled) {
		return nil, err
	}
	for _, t := range types {
		if !slices.Contains(all, Subscription{Type: t, Queue: queue}) {
			found = append(found, transport.Finding{Kind: "subscription", Name: t, State: transport.Missing, Detail: "of queue " + queue})
		}
	}
	return found, nil
}

func names(plan transport.Plan) (all []string) {
	for _, q := range plan.Queues {
		all = append(all, q.Name)
	}
	return all
}
