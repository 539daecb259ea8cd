package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/transport"
)

const endpointDeleteHelp = `Delete the queues of an endpoint with all messages in them, and their subscriptions: its own queue, its
quarantine, those of the given instances, and those that the transport has added for them. Topics, the error queue and
the audit queue are shared with other endpoints and stay. Amazon SQS takes a minute until a queue of the same name can
be created again.

With --outbox URL its outbox and its inbox are deleted too, with stored messages that were not sent: see
holdfast outbox drain. The variable ` + databaseVar + ` has no effect here.

Without --yes nothing is deleted: the command shows each queue with its messages, and ends with exit code 2. While
messages are being handled the command refuses, and on RabbitMQ and Azure Service Bus, which do not say so: stop the
endpoint first, and add --force.`

// deletion holds the flags of endpoint delete.
type deletion struct {
	endpointSpec
	yes, force, dryRun bool
}

func (a *app) endpointDeleteCommand() *cobra.Command {
	d := deletion{endpointSpec: endpointSpec{errors: "-"}}
	cmd := &cobra.Command{
		Use:   "delete NAME --yes",
		Short: "Delete the queues of an endpoint with all messages in them",
		Long:  endpointDeleteHelp,
		Example: `  holdfast endpoint delete sales --dry-run
  holdfast endpoint delete sales --instance 7 --transport sqs://eu-central-1 --yes`,
		Args: oneEndpoint,
		RunE: func(cmd *cobra.Command, args []string) error {
			d.name = args[0]
			t, err := a.target()
			if err != nil {
				return err
			}
			if err := d.database(a, cmd); err != nil {
				return err
			}
			if err := d.check(0); err != nil {
				return err
			}
			return a.deleteEndpoint(cmd.Context(), &d, t)
		},
	}
	d.instanceFlag(cmd)
	d.databaseFlags(a, cmd)
	flags := cmd.Flags()
	flags.BoolVar(&d.yes, "yes", false, "delete them: required")
	flags.BoolVar(&d.dryRun, "dry-run", false, "show what would be deleted, and delete nothing")
	flags.BoolVar(&d.force, "force", false, "delete queues of which messages are, or may be, being handled, too")
	return cmd
}

// deleteEndpoint shows the queues, the outbox and the inbox of an endpoint, and deletes all of them
// if the user confirms.
func (a *app) deleteEndpoint(ctx context.Context, d *deletion, t target) error {
	sites, busy := d.sites(t), []string(nil)
	for i := range sites {
		handled, err := a.showOwn(ctx, d, sites[i])
		if err != nil {
			return err
		}
		busy = append(busy, handled...)
	}
	switch {
	case d.dryRun:
		return nil
	case !d.yes:
		return usagef("nothing was deleted: confirm with --yes")
	case len(busy) > 0 && !d.force:
		return fmt.Errorf("nothing was deleted: messages of %s are being handled, or the broker does not say: "+
			"stop the endpoint first, and add --force", strings.Join(busy, ", "))
	}
	for _, s := range sites {
		err := withTarget(ctx, a, s.target, d.name, "delete queues", func(r transport.Remover) error {
			return r.Remove(ctx, s.own()...)
		})
		if err != nil {
			return err
		}
	}
	fmt.Fprintf(a.out, "%s: its queues are deleted\n", d.name)
	return nil
}

// own returns the names of the queues and inboxes that belong to the endpoint alone.
func (s site) own() (names []string) {
	for _, q := range s.plan.Queues {
		if !q.Shared {
			names = append(names, q.Name)
		}
	}
	return append(names, s.plan.Inboxes...)
}

// showOwn prints what a site has of the endpoint, and returns the queues of which messages are
// being handled.
func (a *app) showOwn(ctx context.Context, d *deletion, s site) (busy []string, err error) {
	err = withTarget(ctx, a, s.target, d.name, "count messages", func(conn transport.Inspector) error {
		for _, q := range s.plan.Queues {
			if q.Shared {
				continue
			}
			stats, err := conn.Inspect(ctx, q.Name)
			switch {
			case errors.Is(err, transport.ErrNoQueue):
				fmt.Fprintf(a.out, "%s: there is no such queue\n", q.Name)
				continue
			case err != nil:
				return err
			}
			for _, q := range stats {
				fmt.Fprintln(a.out, contentOf(q))
				if q.Unsettled != 0 {
					busy = append(busy, q.Name)
				}
			}
		}
		return a.showInboxes(ctx, conn, s.plan.Inboxes)
	})
	return busy, err
}

// contentOf describes the messages of a queue, as far as the broker counts them.
func contentOf(q transport.QueueStats) string {
	text := q.Name + ": messages are not counted"
	if q.Ready >= 0 {
		text = fmt.Sprintf("%s: %d ready", q.Name, q.Ready)
	}
	if q.Unsettled >= 0 {
		text += fmt.Sprintf(", %d being handled", q.Unsettled)
	}
	if q.Delayed >= 0 {
		text += fmt.Sprintf(", %d delayed", q.Delayed)
	}
	return text
}

func (a *app) showInboxes(ctx context.Context, conn transport.Inspector, inboxes []string) error {
	counter, ok := conn.(transport.InboxInspector)
	for _, inbox := range inboxes {
		if !ok {
			fmt.Fprintf(a.out, "%s: not counted\n", inbox)
			continue
		}
		stats, err := counter.InspectInbox(ctx, inbox)
		switch {
		case errors.Is(err, transport.ErrNoQueue):
			fmt.Fprintf(a.out, "%s: there is no such inbox\n", inbox)
		case err != nil:
			return err
		default:
			fmt.Fprintf(a.out, "%s: about %d ids of handled messages\n", inbox, stats.Rows)
		}
	}
	return nil
}
