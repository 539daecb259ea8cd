package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/transport"
)

const endpointHelp = `Create, verify, subscribe and delete the queues of an endpoint, on every transport. An endpoint whose
installer is on creates and subscribes by itself. These commands are for one without the right to, and to see what
others have created.

The queues are the endpoint's own, its quarantine, those of its instances, its error queue and its audit queue. Their
settings, such as the queue type on RabbitMQ or the key on Amazon SQS, are options of the transport's URL. What exists
is never changed: to give a queue other settings, delete it while it is empty and create it again. The exception is
create --adopt on PostgreSQL and SQL Server. It adds what is missing to the tables of an endpoint of NServiceBus, which
must have stopped receiving; others may go on sending. It also rewrites tables of earlier versions, whose ids are text:
stop programs of these versions first.

With --outbox URL the commands also work with the outbox NAME.outbox and the inbox NAME.handled in that database
(Config.Outbox). An endpoint that keeps an inbox in the queues' own database (Config.Remember with
SendsAtomicWithReceive) has --inbox instead.

Exit codes: 0 all is there, 1 something is missing or differs, or the command failed, 2 wrong usage, 130 interrupted.`

const endpointExample = `  holdfast endpoint create sales --audit audit --transport amqp://admin:secret@host/shop
  holdfast endpoint verify sales --event Shop.OrderPlaced --json
  holdfast endpoint create billing --outbox postgres://admin:secret@host/billing
  holdfast endpoint subscribe sales Shop.OrderPlaced Shop.OrderShipped
  holdfast endpoint delete sales --instance 7 --yes`

// endpointCommands are the commands on the queues and subscriptions of endpoints.
type endpointCommands struct{ *app }

func (a *endpointCommands) endpointCommand() *cobra.Command {
	return a.group(&cobra.Command{
		Use:     "endpoint",
		Short:   "Create, verify, subscribe and delete the queues of an endpoint",
		Long:    endpointHelp,
		Example: endpointExample,
	}, a.endpointCreateCommand(), a.endpointVerifyCommand(), a.endpointDeleteCommand(), a.endpointHandOverCommand(),
		a.subscribeCommand(), a.unsubscribeCommand())
}

func oneEndpoint(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("want the name of one endpoint, have %d names", len(args))
	}
	return nil
}

func (a *endpointCommands) endpointCreateCommand() *cobra.Command {
	return a.provisionEndpointCommand(&provisioning{creates: true}, &cobra.Command{
		Use:   "create NAME",
		Short: "Create the missing queues of an endpoint",
		Long:  "Create the missing queues of an endpoint, and the topics or exchanges of the given types.\n\n" + endpointHelp,
		Example: `  holdfast endpoint create sales --transport sb://shop.servicebus.windows.net
  holdfast endpoint create sales --audit audit --dry-run
  holdfast endpoint create sales --type Shop.OrderPlaced --transport sqs://eu-central-1
  holdfast endpoint create Sales --adopt --transport postgres://admin:secret@host/shop
  holdfast endpoint create billing --transport amqp://admin:secret@host/shop --outbox postgres://admin:secret@host/billing`,
	})
}

func (a *endpointCommands) endpointVerifyCommand() *cobra.Command {
	var p provisioning
	cmd := a.provisionEndpointCommand(&p, &cobra.Command{
		Use:   "verify NAME",
		Short: "Show which queues of an endpoint are missing or differ",
		Long: "Show which queues of an endpoint are missing, or differ from those that its installer creates.\n\n" +
			endpointHelp,
		Example: `  holdfast endpoint verify sales --audit audit --instance 1 --json
  holdfast endpoint verify sales --event Shop.OrderPlaced --event Shop.Bill`,
	})
	cmd.Flags().StringArrayVar(&p.events, "event", nil, "`type` of an event that the endpoint is subscribed to; may be repeated")
	return cmd
}

// provisionEndpointCommand completes create or verify.
func (a *endpointCommands) provisionEndpointCommand(
	p *provisioning, cmd *cobra.Command,
) *cobra.Command {
	var e endpointSpec
	e.instanceFlag(cmd)
	flags := cmd.Flags()
	flags.StringVar(&e.errors, "error", "error", "the error `queue`")
	flags.StringVar(&e.audit, "audit", "", "the audit `queue`; none unless set")
	flags.StringArrayVar(&e.types, "type", nil, "a message `type` that the endpoint publishes or a base type of one; may be repeated")
	e.databaseFlags(a.app, cmd)
	p.flags(cmd)
	cmd.Args = oneEndpoint
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		e.name = args[0]
		t, err := a.target()
		if err != nil {
			return err
		}
		if err := e.database(a.app, cmd); err != nil {
			return err
		}
		if err := e.check(t.maxName); err != nil {
			return err
		}
		if p.adopts {
			if err := t.adopt(); err != nil {
				return err
			}
		}
		return a.provision(cmd.Context(), p, e.name, fmt.Sprintf("endpoint %q", e.name), e.sites(t)...)
	}
	return cmd
}

func (a *endpointCommands) subscribeCommand() *cobra.Command {
	return a.changeCommand(transport.Subscriber.Subscribe, "subscribed to", &cobra.Command{
		Use:   "subscribe NAME TYPE...",
		Short: "Subscribe the queue of an endpoint to events",
		Long: `Subscribe the queue of an endpoint to events. Topics or exchanges that are missing are created. On Azure
Service Bus the topics of types are options of the URL (topic=TYPE=TOPIC, shared_topic=TOPIC, no_hierarchies=true) and
have to agree with the endpoints that publish. On Amazon SQS name the types that derive from a base type too, if their
publishers use the topic of the concrete type only, as NServiceBus does.`,
		Example: `  holdfast endpoint subscribe sales Shop.OrderPlaced Shop.OrderShipped --transport sqs://eu-central-1
  holdfast endpoint subscribe sales Shop.Bill --transport 'sb://host?topic=Shop.Bill=bills&shared_topic=bills'`,
	})
}

func (a *endpointCommands) unsubscribeCommand() *cobra.Command {
	return a.changeCommand(transport.Subscriber.Unsubscribe, "unsubscribed from", &cobra.Command{
		Use:     "unsubscribe NAME TYPE...",
		Short:   "Delete the subscriptions of an endpoint's queue to events",
		Example: "  holdfast endpoint unsubscribe sales Shop.OrderPlaced --transport sb://shop.servicebus.windows.net",
	})
}

// change is Subscribe or Unsubscribe.
type change func(s transport.Subscriber, ctx context.Context, queue string, types []string) error

// changeCommand completes a command that changes subscriptions.
func (a *endpointCommands) changeCommand(
	change change, done string, cmd *cobra.Command,
) *cobra.Command {
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) < 2 {
			return fmt.Errorf("want the name of an endpoint and those of event types, have %d names", len(args))
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, queue, types := cmd.Context(), args[0], args[1:]
		err := with(ctx, a.app, queue, "subscribe", func(s transport.Subscriber) error {
			if isMissing(ctx, s, queue) {
				return transport.ErrNoQueue
			}
			return change(s, ctx, queue, types)
		})
		if errors.Is(err, transport.ErrNoQueue) {
			err = fmt.Errorf("%w: holdfast endpoint create creates it", err)
		}
		if err != nil {
			return fmt.Errorf("endpoint %q: %w", queue, err)
		}
		fmt.Fprintf(a.out, "%s %s %s\n", queue, done, strings.Join(types, ", "))
		return nil
	}
	return cmd
}

// isMissing reports whether there is no such queue. Where it cannot know, the driver finds it out.
func isMissing(ctx context.Context, conn any, queue string) bool {
	v, ok := conn.(transport.Verifier)
	if !ok {
		return false
	}
	found, err := v.Verify(ctx, transport.Plan{Queues: []transport.Queue{{Name: queue, Shared: true}}})
	return err == nil && slices.ContainsFunc(found, func(f transport.Finding) bool {
		return f.State == transport.Missing && f.Name == queue
	})
}

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

func (a *endpointCommands) endpointDeleteCommand() *cobra.Command {
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
			if err := d.database(a.app, cmd); err != nil {
				return err
			}
			if err := d.check(0); err != nil {
				return err
			}
			return a.deleteEndpoint(cmd.Context(), &d, t)
		},
	}
	d.instanceFlag(cmd)
	d.databaseFlags(a.app, cmd)
	flags := cmd.Flags()
	flags.BoolVar(&d.yes, "yes", false, "delete them: required")
	flags.BoolVar(&d.dryRun, "dry-run", false, "show what would be deleted, and delete nothing")
	flags.BoolVar(&d.force, "force", false, "delete queues of which messages are, or may be, being handled, too")
	return cmd
}

// deleteEndpoint shows the queues, the outbox and the inbox of an endpoint, and deletes all of them
// if the user confirms.
func (a *endpointCommands) deleteEndpoint(ctx context.Context, d *deletion, t target) error {
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
		err := withTarget(ctx, a.app, s.target, d.name, "delete queues", func(r transport.Remover) error {
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
func (a *endpointCommands) showOwn(
	ctx context.Context, d *deletion, s site,
) (busy []string, err error) {
	err = withTarget(ctx, a.app, s.target, d.name, "count messages", func(conn transport.Inspector) error {
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

func (a *endpointCommands) showInboxes(
	ctx context.Context, conn transport.Inspector, inboxes []string,
) error {
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

const handOverHelp = `Make the queue of an endpoint one of NServiceBus on PostgreSQL and SQL Server, so that an endpoint of NServiceBus
receives from it. NServiceBus ignores leases and delays in the queue. So the command fails while a message is leased, and
names the instances; it moves delayed messages to the table NAME.Delayed, where NServiceBus reads them; and it removes the
columns that NServiceBus's tables do not have, so that no Go instance receives from the queue any more, and Go endpoints
keep delayed messages for it at their own side. The ids of the rows get a unique index first.

Stop all instances of the endpoint before: an idle one has no leases. Other endpoints may go on sending. The command may be
interrupted, and repeated until it succeeds. At the end it lists other queues of the endpoint that still have messages,
such as its quarantine: NServiceBus does not receive from those. "holdfast endpoint create NAME --adopt" takes the queue
over again.

The time zone of the command's session has to be that of NServiceBus's sessions, in which it reads the times of delayed
messages: that of the server, unless an option of the URL or PGTZ sets another.`

func (a *endpointCommands) endpointHandOverCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "hand-over NAME",
		Short:   "Hand the queue of an endpoint over to NServiceBus",
		Long:    handOverHelp,
		Example: "  holdfast endpoint hand-over sales --transport postgres://host/shop",
		Args:    oneEndpoint,
	}
	asJSON := cmd.Flags().Bool("json", false, "print JSON: one object")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		e := endpointSpec{name: args[0], errors: "-"}
		if err := e.check(0); err != nil {
			return err
		}
		err := with(cmd.Context(), a.app, e.name, "hand queues over to NServiceBus", func(h transport.HandOverer) error {
			done, err := h.HandOver(cmd.Context(), e.name, a.handOverProgress())
			if err != nil {
				return err
			}
			if done.Remaining == nil {
				done.Remaining = []transport.QueueStats{}
			}
			return a.show(*asJSON, done, func(w io.Writer) { printHandedOver(w, e.name, done) })
		})
		if err != nil {
			return fmt.Errorf("endpoint %q: %w", e.name, err)
		}
		return nil
	}
	return cmd
}

// handOverProgress returns the function that shows the progress on standard error every few
// seconds.
func (a *endpointCommands) handOverProgress() func(transport.HandOverProgress) {
	const every = 2 * time.Second
	next := time.Now().Add(every)
	return func(p transport.HandOverProgress) {
		if now := time.Now(); now.After(next) {
			next = now.Add(every)
			fmt.Fprintf(a.err, "moved %d of %d delayed messages\n", p.Moved, p.Total)
		}
	}
}

func printHandedOver(w io.Writer, name string, done transport.HandedOver) {
	if done.Already && done.Moved == 0 {
		fmt.Fprintf(w, "%s: already handed over: the queue is one of NServiceBus\n", name)
	} else {
		fmt.Fprintf(w, "%s: the queue is one of NServiceBus; %d delayed messages were moved to %s.Delayed\n", name, done.Moved, name)
	}
	if len(done.Remaining) == 0 {
		return
	}
	fmt.Fprintln(w, "messages remain in these queues, from which NServiceBus does not receive:")
	for _, q := range done.Remaining {
		fmt.Fprintf(w, "  %s\t%d ready\t%d in flight\t%d delayed\n", q.Name, q.Ready, q.Unsettled, q.Delayed)
	}
}
