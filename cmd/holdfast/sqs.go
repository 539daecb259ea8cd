package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/sqs"
)

const sqsHelp = `Create and delete what endpoints need at Amazon SQS and SNS, subscribe their queues, and look at
the policies by which queues let topics in.

An endpoint with the installer on does that by itself. These commands are for where it has
no right to: docs/transports/sqs.md has the rights that each takes.

Region and credentials come from the URL (sqs://eu-central-1?profile=name) or from where the AWS
tools look for them.`

const sqsExample = `  holdfast sqs endpoint create sales --type Shop.OrderPlaced --transport sqs://eu-central-1
  holdfast sqs subscribe billing Shop.OrderPlaced
  holdfast sqs policy show billing
  holdfast sqs endpoint delete billing`

func (a *app) sqsCommand() *cobra.Command {
	return a.group(&cobra.Command{
		Use:     "sqs",
		Short:   "Create what endpoints need at Amazon SQS and SNS",
		Long:    sqsHelp,
		Example: sqsExample,
	}, a.sqsEndpointCommand(), a.sqsSubscribeCommand(), a.sqsPolicyCommand())
}

// amazonConn is what these commands use of a connection.
type amazonConn interface {
	transport.Installer
	transport.Subscriber
	transport.Remover
	sqs.Admin
}

// onSQS runs f with a connection to Amazon SQS, as an endpoint of that name. shape may change the transport before.
func (a *app) onSQS(ctx context.Context, endpoint string, shape func(*sqs.Transport), f func(amazonConn) error) (err error) {
	target, err := a.target()
	if err != nil {
		return err
	}
	t, ok := target.Transport.(*sqs.Transport)
	if !ok {
		return usagef("sqs: the transport is %s: give one with sqs://", target.broker)
	}
	shape(t)
	conn, err := a.open(ctx, target, endpoint)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	own, ok := conn.(amazonConn)
	if !ok {
		return fmt.Errorf("sqs: %T cannot create queues", conn)
	}
	return f(own)
}

func asItIs(*sqs.Transport) {}

func (a *app) sqsSubscribeCommand() *cobra.Command {
	var wide bool
	cmd := &cobra.Command{
		Use:   "subscribe QUEUE TYPE...",
		Short: "Have the messages of types arrive in a queue",
		Long: `Have the messages of types arrive in a queue: create the topics that are missing, have the queue's
policy let them in, and subscribe it. What is there already stays as it is.`,
		Example: "  holdfast sqs subscribe billing Shop.OrderPlaced Shop.OrderCancelled --transport sqs://eu-central-1",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onSQS(cmd.Context(), args[0], widely(wide), func(c amazonConn) error {
				if err := c.Subscribe(cmd.Context(), args[0], args[1:]); err != nil {
					return err
				}
				fmt.Fprintf(a.out, "%s is subscribed to %s\n", args[0], strings.Join(args[1:], ", "))
				return nil
			})
		},
	}
	wideFlag(cmd, &wide)
	return cmd
}

func wideFlag(cmd *cobra.Command, wide *bool) {
	cmd.Flags().BoolVar(wide, "wide", false, "let in all topics with the topic prefix, instead of each by its name")
}

func widely(wide bool) func(*sqs.Transport) {
	return func(t *sqs.Transport) { t.WidePolicy = wide }
}
