package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/errorqueue"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/asb"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
	"github.com/holdfast-go/holdfast/transport/sqs"
)

const deadLettersHelp = `List, return and remove the dead letters of a queue: messages that the broker dead-lettered because they were
delivered too often, or expired where the queue keeps such messages. A running endpoint moves those of its own queues to
its error queue; these commands are for other queues.

The flags are those of holdfast errors. Where no header describes a fault, the broker's reason is shown as the class and
its description as the error.`

// deadLetterQueue is the end of the name of a queue's dead-letter queue.
const deadLetterQueue = "/$DeadLetterQueue"

// brokerCommands are the commands that one broker alone has.
type brokerCommands struct {
	*app
	errors *errorCommands
}

func (a *brokerCommands) asbCommand() *cobra.Command {
	return a.group(&cobra.Command{
		Use:   "asb",
		Short: "Work with the dead letters of Azure Service Bus",
		Long: `Work with the dead letters of queues on Azure Service Bus. Queues and subscriptions of endpoints are
created by holdfast endpoint.`,
	}, a.group(&cobra.Command{
		Use:   "dead-letters",
		Short: "List, return and remove the dead letters of a queue",
		Long:  deadLettersHelp,
	}, a.deadLettersListCommand(), a.deadLettersRetryCommand(), a.deadLettersDiscardCommand()))
}

func (a *brokerCommands) deadLettersListCommand() *cobra.Command {
	return a.errors.listCommand(&selecting{deadLetters: true}, &cobra.Command{
		Use:     "list QUEUE [ID]...",
		Short:   "List the dead letters of a queue",
		Long:    deadLettersHelp,
		Example: `  holdfast asb dead-letters list sales --class MaxDeliveryCountExceeded --transport sb://shop.servicebus.windows.net`,
		Args:    cobra.MinimumNArgs(1),
	})
}

func (a *brokerCommands) deadLettersRetryCommand() *cobra.Command {
	return a.errors.takeCommand(&taking{selecting: selecting{deadLetters: true}, take: (*errorqueue.Queue).Retry}, &cobra.Command{
		Use:     "retry QUEUE [ID]...",
		Aliases: []string{"resubmit"},
		Short:   "Return dead letters to their queue",
		Long: `Return dead letters to their queue with their id and body, without the headers of their failure. Each is sent before it
is removed from the dead letters: killed in between, the command leaves it in both places.

` + deadLettersHelp,
		Example: `  holdfast asb dead-letters retry sales --all --rate 50
  holdfast asb dead-letters retry sales --to sales-2 --first 1`,
		Args: cobra.MinimumNArgs(1),
	})
}

func (a *brokerCommands) deadLettersDiscardCommand() *cobra.Command {
	return a.errors.takeCommand(&taking{selecting: selecting{deadLetters: true}, take: (*errorqueue.Queue).Discard}, &cobra.Command{
		Use:     "discard QUEUE [ID]...",
		Aliases: []string{"purge"},
		Short:   "Remove dead letters for good",
		Long: `Remove dead letters for good. Export them first if they may be missed:
holdfast errors export --queue 'QUEUE` + deadLetterQueue + `'.

` + deadLettersHelp,
		Example: `  holdfast asb dead-letters discard sales --class TTLExpiredException
  holdfast asb dead-letters purge sales --all`,
		Args: cobra.MinimumNArgs(1),
	})
}

// deadLetter returns the entry of a message that the broker may have dead-lettered. Service Bus can
// forward dead letters to an error queue. The headers say which class, error and queue a failure
// has. Without these headers the broker's properties do.
func deadLetter(m *transport.Message) errorqueue.Entry {
	e := errorqueue.EntryOf(m)
	e.Class = cmp.Or(e.Class, m.Native[asb.PropertyDeadLetterReason])
	e.Error = cmp.Or(e.Error, m.Native[asb.PropertyDeadLetterDescription])
	e.Queue = cmp.Or(e.Queue, m.Native[asb.PropertyDeadLetterSource])
	return e
}

const rabbitDelaysHelp = `Create and verify the queues of delayed messages, which all endpoints of a virtual host share: 28 quorum
queues "holdfast.delay-level-00" and up, each with an exchange, and "` + rabbitmq.LostQueue + `", for messages whose
queue had been deleted when they were due.`

const lostHelp = `List the delayed messages whose queue had been deleted when they were due. They stay in the queue
"` + rabbitmq.LostQueue + `" until you return or discard them:

  holdfast errors retry ID... --queue ` + rabbitmq.LostQueue + ` --to QUEUE
  holdfast errors discard ID... --queue ` + rabbitmq.LostQueue + `

Listing counts as a delivery, as it does for an error queue: see holdfast errors --help. Exit codes: 0 there are none,
1 there are some, or the command failed, 2 wrong usage, 130 interrupted.`

func (a *brokerCommands) rabbitCommand() *cobra.Command {
	return a.group(&cobra.Command{
		Use:   "rabbitmq",
		Short: "Work with the delayed messages of RabbitMQ",
		Long: `Work with the delayed messages of a RabbitMQ server. Queues and exchanges of endpoints are created by
holdfast endpoint.`,
	}, a.group(&cobra.Command{
		Use:   "delays",
		Short: "Create and verify the queues of delayed messages, and list lost ones",
		Long:  rabbitDelaysHelp,
	}, a.provisionDelaysCommand("create", true), a.provisionDelaysCommand("verify", false), a.lostDelaysCommand()))
}

// provisionDelaysCommand is create or verify.
func (a *brokerCommands) provisionDelaysCommand(verb string, creates bool) *cobra.Command {
	p := provisioning{creates: creates}
	cmd := &cobra.Command{
		Use:     verb,
		Short:   "Show which parts of delays are missing or differ",
		Example: "  holdfast rabbitmq delays " + verb + " --transport amqp://admin:secret@host/shop",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.onlyRabbitMQ(); err != nil {
				return err
			}
			t, err := a.target()
			if err != nil {
				return err
			}
			return a.provision(cmd.Context(), &p, programName, "delays", site{t, transport.Plan{Delays: true}})
		},
	}
	if creates {
		cmd.Short = "Create the missing parts of delays"
	}
	cmd.Long = cmd.Short + ".\n\n" + rabbitDelaysHelp
	p.flags(cmd)
	return cmd
}

func (a *brokerCommands) onlyRabbitMQ() error { return a.only("rabbitmq", "amqp", "amqps") }

func (a *brokerCommands) lostDelaysCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lost",
		Short: "List delayed messages whose queue was gone",
		Long:  lostHelp,
		Example: `  holdfast rabbitmq delays lost --transport amqp://admin:secret@host/shop
  holdfast rabbitmq delays lost --json | jq -r 'select(.queue == "sales").id'`,
		Args: cobra.NoArgs,
	}
	asJSON := cmd.Flags().Bool("json", false, "print JSON: one object per line")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return a.lostDelays(cmd.Context(), *asJSON) }
	return cmd
}

// lostMessage is a delayed message whose queue had been deleted when it was due.
type lostMessage struct {
	ID    string `json:"id"`
	Type  string `json:"type,omitempty"`
	Queue string `json:"queue,omitempty"` // its destination
}

func (a *brokerCommands) lostDelays(ctx context.Context, asJSON bool) error {
	if err := a.onlyRabbitMQ(); err != nil {
		return err
	}
	s := &selecting{queue: rabbitmq.LostQueue}
	n, err := a.errors.list(ctx, s, nil, asJSON, "ID\tTYPE\tTO", func(m *transport.Message, e errorqueue.Entry) (any, []string) {
		l := lostMessage{e.ID, e.Type, rabbitmq.DelayedTo(m)}
		return l, []string{column(l.ID), column(l.Type), column(cmp.Or(l.Queue, "?"))}
	})
	switch {
	case errors.Is(err, transport.ErrNoQueue):
		return fmt.Errorf("lost delays: %w: holdfast rabbitmq delays create creates the queues of delays", err)
	case err != nil:
		return fmt.Errorf("lost delays: %w", err)
	case n > 0:
		return fmt.Errorf("%s in %s: return or discard them with holdfast errors (see --help)", plural(n), rabbitmq.LostQueue)
	case !asJSON:
		fmt.Fprintln(a.out, "no delayed message was lost")
	}
	return nil
}

func (a *brokerCommands) sqsCommand() *cobra.Command {
	return a.group(&cobra.Command{
		Use:   "sqs",
		Short: "Work with the policies of queues on Amazon SQS",
		Long: `Work with the policies by which queues on Amazon SQS accept messages of topics. Queues and subscriptions of
endpoints are created by holdfast endpoint.

Region and credentials come from the URL (sqs://eu-central-1?profile=name) or from where the AWS tools look for them.`,
	}, a.group(&cobra.Command{
		Use:   "policy",
		Short: "Show and set the topics that a queue accepts",
	}, a.sqsShowPolicyCommand(), a.sqsSetPolicyCommand()))
}

// onSQS calls f with a connection to Amazon SQS.
func (a *brokerCommands) onSQS(
	ctx context.Context, endpoint string, f func(sqs.Admin) error,
) error {
	if err := a.only("sqs", "sqs"); err != nil {
		return err
	}
	return with(ctx, a.app, endpoint, "manage policies", f)
}

func (a *brokerCommands) sqsShowPolicyCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "show QUEUE",
		Short:   "Show the policy of a queue, as JSON",
		Example: "  holdfast sqs policy show billing --transport sqs://eu-central-1",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onSQS(cmd.Context(), "", func(c sqs.Admin) error {
				text, err := c.Policy(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				var b bytes.Buffer
				if err := json.Indent(&b, []byte(cmp.Or(text, "{}")), "", "  "); err != nil {
					return fmt.Errorf("policy of %q: %w", args[0], err)
				}
				fmt.Fprintln(a.out, b.String())
				return nil
			})
		},
	}
}

func (a *brokerCommands) sqsSetPolicyCommand() *cobra.Command {
	var wide bool
	cmd := &cobra.Command{
		Use:   "set QUEUE TYPE...",
		Short: "Let a queue accept messages of the topics of types",
		Long: `Let the policy of a queue accept the topics of types, beside those that it accepts already. Other statements are
unchanged. The topics need not exist.`,
		Example: `  holdfast sqs policy set billing Shop.OrderPlaced --transport sqs://eu-central-1
  holdfast sqs policy set billing Shop.OrderPlaced --wide`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if t, err := a.target(); err == nil && wide {
				if t, ok := t.Transport.(*sqs.Transport); ok {
					t.WidePolicy = true
				}
			}
			return a.onSQS(cmd.Context(), args[0], func(c sqs.Admin) error {
				if err := c.LetIn(cmd.Context(), args[0], args[1:]); err != nil {
					return err
				}
				fmt.Fprintf(a.out, "%s accepts the topics of %s\n", args[0], strings.Join(args[1:], ", "))
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&wide, "wide", false, "accept all topics with the topic prefix, instead of each by its name")
	return cmd
}
