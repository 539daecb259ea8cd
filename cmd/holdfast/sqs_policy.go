package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/transport/sqs"
)

func (a *app) sqsCommand() *cobra.Command {
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
func (a *app) onSQS(ctx context.Context, endpoint string, f func(sqs.Admin) error) error {
	if err := a.only("sqs", "sqs"); err != nil {
		return err
	}
	return with(ctx, a, endpoint, "manage policies", f)
}

func (a *app) sqsShowPolicyCommand() *cobra.Command {
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

func (a *app) sqsSetPolicyCommand() *cobra.Command {
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
