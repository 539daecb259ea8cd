package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/endpointplan"
	"github.com/holdfast-go/holdfast/transport/sqs"
)

func (a *app) sqsEndpointCommand() *cobra.Command {
	return a.group(&cobra.Command{
		Use:   "endpoint",
		Short: "Create and delete the queues and topics of an endpoint",
	}, a.sqsCreateCommand(), a.sqsDeleteCommand())
}

func (a *app) sqsCreateCommand() *cobra.Command {
	var (
		e     endpointplan.Endpoint
		types []string
		shape sqs.Transport
	)
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create what is missing of an endpoint",
		Long: `Create what is missing of an endpoint: its queue, its quarantine, the queue for what SQS gives up and those in which
messages wait for longer than 15 minutes, its error and audit queue, and the topics of types.
What exists is left as it is.`,
		Example: `  holdfast sqs endpoint create sales --type Shop.OrderPlaced --transport sqs://eu-central-1
  holdfast sqs endpoint create sales --audit audit --retention 168h --kms-key alias/shop`,
		Args: oneEndpoint,
		RunE: func(cmd *cobra.Command, args []string) error {
			e.Name = args[0]
			if err := e.Check(); err != nil {
				return usageError{err}
			}
			plan := e.Plan()
			for _, t := range types {
				plan.Types = append(plan.Types, []string{t})
			}
			apply := func(t *sqs.Transport) {
				t.Retention, t.KMSKey, t.ReceiveLimit, t.ShortDelays = shape.Retention, shape.KMSKey, shape.ReceiveLimit, shape.ShortDelays
			}
			return a.onSQS(cmd.Context(), e.Name, apply, func(c amazonConn) error {
				if err := c.Install(cmd.Context(), plan); err != nil {
					return err
				}
				fmt.Fprintf(a.out, "%s: all is there\n", e.Name)
				return nil
			})
		},
	}
	endpointFlags(cmd, &e)
	flags := cmd.Flags()
	flags.StringArrayVar(&types, "type", nil, "a `type` that is published, or a base type of one; may be repeated")
	flags.DurationVar(&shape.Retention, "retention", 0, "how long queues keep a message (default 4 days)")
	flags.StringVar(&shape.KMSKey, "kms-key", "", "`key` by which the queues are encrypted: an id, alias or ARN")
	flags.IntVar(&shape.ReceiveLimit, "receive-limit", 0, "how often SQS may hand out a message; -1 for no limit (default 100)")
	flags.BoolVar(&shape.ShortDelays, "short-delays", false, "create no queues for delays over 15 minutes")
	return cmd
}

func (a *app) sqsDeleteCommand() *cobra.Command {
	var instances []string
	cmd := &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete the queues of an endpoint, with all that is in them",
		Long: `Delete the queues of an endpoint, with all that is in them, and their subscriptions: its own, its quarantine, the one
for what SQS gives up, and those in which messages wait. Topics, the error queue and the audit queue belong to others too, and stay.
SQS takes a minute until a queue of the same name can be created again.`,
		Example: "  holdfast sqs endpoint delete sales --transport sqs://eu-central-1",
		Args:    oneEndpoint,
		RunE: func(cmd *cobra.Command, args []string) error {
			name := args[0]
			queues := []string{name, name + ".quarantine", name + sqs.DeadLettersSuffix}
			for _, instance := range instances {
				queues = append(queues, name+"-"+instance)
			}
			return a.onSQS(cmd.Context(), name, asItIs, func(c amazonConn) error {
				if err := c.Remove(cmd.Context(), queues...); err != nil {
					return err
				}
				fmt.Fprintf(a.out, "%s: its queues are gone\n", name)
				return nil
			})
		},
	}
	cmd.Flags().StringArrayVar(&instances, "instance", nil, "`ID` of an instance with a queue of its own; may be repeated")
	return cmd
}
