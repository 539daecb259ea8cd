package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

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

func (a *app) endpointCommand() *cobra.Command {
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

func (a *app) endpointCreateCommand() *cobra.Command {
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

func (a *app) endpointVerifyCommand() *cobra.Command {
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
func (a *app) provisionEndpointCommand(p *provisioning, cmd *cobra.Command) *cobra.Command {
	var e endpointSpec
	e.instanceFlag(cmd)
	flags := cmd.Flags()
	flags.StringVar(&e.errors, "error", "error", "the error `queue`")
	flags.StringVar(&e.audit, "audit", "", "the audit `queue`; none unless set")
	flags.StringArrayVar(&e.types, "type", nil, "a message `type` that the endpoint publishes or a base type of one; may be repeated")
	e.databaseFlags(a, cmd)
	p.flags(cmd)
	cmd.Args = oneEndpoint
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		e.name = args[0]
		t, err := a.target()
		if err != nil {
			return err
		}
		if err := e.database(a, cmd); err != nil {
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

func (a *app) subscribeCommand() *cobra.Command {
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

func (a *app) unsubscribeCommand() *cobra.Command {
	return a.changeCommand(transport.Subscriber.Unsubscribe, "unsubscribed from", &cobra.Command{
		Use:     "unsubscribe NAME TYPE...",
		Short:   "Delete the subscriptions of an endpoint's queue to events",
		Example: "  holdfast endpoint unsubscribe sales Shop.OrderPlaced --transport sb://shop.servicebus.windows.net",
	})
}

// change is Subscribe or Unsubscribe.
type change func(s transport.Subscriber, ctx context.Context, queue string, types []string) error

// changeCommand completes a command that changes subscriptions.
func (a *app) changeCommand(change change, done string, cmd *cobra.Command) *cobra.Command {
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) < 2 {
			return fmt.Errorf("want the name of an endpoint and those of event types, have %d names", len(args))
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, queue, types := cmd.Context(), args[0], args[1:]
		err := with(ctx, a, queue, "subscribe", func(s transport.Subscriber) error {
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
