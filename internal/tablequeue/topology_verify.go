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
		if plan.Queues, err = c.withForwards(ctx, plan.Queues); err != nil {
			return err
		}
		for _, q := range plan.Queues {
			remarks, err := c.examine(ctx, q)
			if err != nil {
				return err
			}
			for _, r := range remarks {
				found = append(found, transport.Finding{Kind: "queue", Name: q.Name, State: r.State, Detail: r.Text})
			}
		}
		more, err := c.verifyInboxes(ctx, plan.Inboxes)
		found = append(found, more...)
		if err != nil || len(plan.Records) == 0 {
			return err
		}
		more, err = c.verifyRecords(ctx)
		found = append(found, more...)
		return err
	})
	return found, err
}

func (c *Conn) verifyInboxes(ctx context.Context, inboxes []string) (found []transport.Finding, err error) {
	for _, inbox := range inboxes {
		err := c.store.InboxState(ctx, inbox)
		unfit, differs := errors.AsType[*UnfitError](err)
		switch {
		case errors.Is(err, transport.ErrNoQueue):
			found = append(found, transport.Finding{Kind: "inbox", Name: inbox, State: transport.Missing})
		case differs:
			found = append(found, transport.Finding{Kind: "inbox", Name: inbox, State: transport.Differs, Detail: unfit.Reason})
		case err != nil:
			return found, err
		}
	}
	return found, nil
}

func (c *Conn) verifyRecords(ctx context.Context) (found []transport.Finding, err error) {
	records, err := c.records()
	if err != nil {
		return nil, err
	}
	err = records.RecordsState(ctx)
	unfit, differs := errors.AsType[*UnfitError](err)
	switch {
	case errors.Is(err, transport.ErrNoQueue):
		return []transport.Finding{{Kind: "table", Name: "records", State: transport.Missing}}, nil
	case differs:
		return []transport.Finding{{Kind: "table", Name: "records", State: transport.Differs, Detail: unfit.Reason}}, nil
	}
	return nil, err
}

// Examiner is implemented by a [Store] whose tables may differ from those that the installer
// creates, and yet can be used. Without it [Topology].Exists decides.
type Examiner interface {
	// Examine returns remarks about the table of a queue, which exists and is one of this version
	// or a foreign one.
	Examine(ctx context.Context, q transport.Queue) ([]Remark, error)
}

// Remark is a part of a [transport.Finding] about a queue.
type Remark struct {
	State transport.FindingState
	Text  string
}

// examine compares the table of a queue with the one that the installer creates.
func (c *Conn) examine(ctx context.Context, q transport.Queue) (all []Remark, err error) {
	err = c.store.Exists(ctx, q.Name)
	unfit, differs := errors.AsType[*UnfitError](err)
	switch {
	case errors.Is(err, transport.ErrNoQueue):
		return []Remark{{State: transport.Missing}}, nil
	case err != nil && !differs:
		return nil, err
	case differs && (!unfit.Foreign || !q.Shared):
		all = append(all, Remark{transport.Differs, unfit.Reason})
	}
	if examiner, ok := c.store.(Examiner); ok && (!differs || unfit.Foreign) {
		more, err := examiner.Examine(ctx, q)
		return append(all, more...), err
	}
	return all, nil
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
	return append(all, plan.Inboxes...)
}
