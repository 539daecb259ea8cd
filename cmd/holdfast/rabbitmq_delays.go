package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/errorqueue"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

const rabbitDelaysHelp = `Create and verify the queues of delayed messages, which all endpoints of a virtual host share: 28 quorum
queues "holdfast.delay-level-00" and up, each with an exchange, and "` + rabbitmq.LostQueue + `", for messages whose
queue had been deleted when they were due.`

const lostHelp = `List the delayed messages whose queue had been deleted when they were due. They stay in the queue
"` + rabbitmq.LostQueue + `" until you return or discard them:

  holdfast errors retry ID... --queue ` + rabbitmq.LostQueue + ` --to QUEUE
  holdfast errors discard ID... --queue ` + rabbitmq.LostQueue + `

Listing counts as a delivery, as it does for an error queue: see holdfast errors --help. Exit codes: 0 there are none,
1 there are some, or the command failed, 2 wrong usage, 130 interrupted.`

func (a *app) rabbitCommand() *cobra.Command {
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
func (a *app) provisionDelaysCommand(verb string, creates bool) *cobra.Command {
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

func (a *app) onlyRabbitMQ() error { return a.only("rabbitmq", "amqp", "amqps") }

func (a *app) lostDelaysCommand() *cobra.Command {
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

func (a *app) lostDelays(ctx context.Context, asJSON bool) error {
	if err := a.onlyRabbitMQ(); err != nil {
		return err
	}
	s := &selecting{queue: rabbitmq.LostQueue}
	n, err := a.list(ctx, s, nil, asJSON, "ID\tTYPE\tTO", func(m *transport.Message, e errorqueue.Entry) (any, []string) {
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
