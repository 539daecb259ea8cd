package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/endpointplan"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/rabbitmqtopology"
)

const rabbitEndpointHelp = `Create or verify what an endpoint needs: its queue, its quarantine, its error and audit queue,
an exchange before each of them, and what delays need. The exchanges of its message types and its
subscriptions are left to the endpoint, whose code knows them.

What exists is never changed. A queue with other arguments can be used as it is; to have it as it
should be, delete it while it is empty, and create it again.`

func (a *app) rabbitEndpointCommand() *cobra.Command {
	return a.group(&cobra.Command{
		Use:   "endpoint",
		Short: "Create and verify the queues and exchanges of an endpoint",
		Long:  rabbitEndpointHelp,
	}, a.shapeEndpointCommand("create", true), a.shapeEndpointCommand("verify", false))
}

// shapeEndpointCommand is create or verify.
func (a *app) shapeEndpointCommand(verb string, creates bool) *cobra.Command {
	var e endpointplan.Endpoint
	s := shaping{creates: creates}
	cmd := &cobra.Command{
		Use:   verb + " NAME",
		Short: "Say what is missing of an endpoint, or differs",
		Example: `  holdfast rabbitmq endpoint verify sales --transport amqp://admin:secret@host/shop
  holdfast rabbitmq endpoint verify sales --audit audit --instance 1 --instance 2 --json`,
		Args: oneEndpoint,
		RunE: func(cmd *cobra.Command, args []string) error {
			e.Name = args[0]
			if err := rabbitmqtopology.Check(e); err != nil {
				return usageError{err}
			}
			return a.shape(cmd.Context(), &s, e.Name, fmt.Sprintf("endpoint %q", e.Name), e.Plan())
		},
	}
	if creates {
		cmd.Short = "Create what is missing of an endpoint"
		cmd.Example = `  holdfast rabbitmq endpoint create sales --transport amqp://admin:secret@host/shop
  holdfast rabbitmq endpoint create sales --audit audit --dry-run
  holdfast rabbitmq endpoint create sales --queue-type classic`
	}
	cmd.Long = cmd.Short + ".\n\n" + rabbitEndpointHelp
	endpointFlags(cmd, &e)
	cmd.Flags().StringVar(&s.queueType, "queue-type", "", "`type` of the queues: quorum or classic (default that of the URL, else quorum)")
	s.flags(cmd)
	return cmd
}
