package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/rabbitmqtopology"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

const rabbitHelp = `Create and verify what endpoints need at a RabbitMQ server: queues, the exchanges before
them, and the queues in which delayed messages wait.

An endpoint with the installer on does that by itself. These commands are for where it has no
right to configure, and to look at what others have created.

Topology, delivery limit and queue type are those of the URL, such as
?topology=direct&delivery_limit=-1&queue_type=classic, the last also of --queue-type; what has to
be a quorum queue is one all the same. To verify needs the right to configure, although it
changes nothing: RabbitMQ compares arguments only for those who may create. It
shows no bindings over AMQP either: create sets them again, at no harm. Policies that drop or
refuse messages are found with ?management=http://host:15672, by the same user.

Exit codes: 0 all is there, 1 something is missing or differs, or the command failed,
2 wrong usage, 130 interrupted.`

const rabbitExample = `  holdfast rabbitmq endpoint create sales --transport amqp://admin:secret@host/shop
  holdfast rabbitmq endpoint verify sales --json
  holdfast rabbitmq delays verify
  holdfast rabbitmq delays lost`

func (a *app) rabbitCommand() *cobra.Command {
	return a.group(&cobra.Command{
		Use:     "rabbitmq",
		Short:   "Create and verify what endpoints need at a RabbitMQ server",
		Long:    rabbitHelp,
		Example: rabbitExample,
	}, a.rabbitEndpointCommand(), a.rabbitDelaysCommand())
}

// do creates or verifies what a plan says.
func (s *shaping) do(ctx context.Context, conn transport.Conn, plan transport.Plan) (rabbitmqtopology.Report, error) {
	switch {
	case !s.creates:
		return rabbitmqtopology.Verify(ctx, conn, plan)
	case s.dryRun:
		return rabbitmqtopology.Preview(ctx, conn, plan)
	default:
		return rabbitmqtopology.Create(ctx, conn, plan)
	}
}

// onRabbit runs f with a connection to the RabbitMQ server of the URL, as an endpoint of that name.
func (a *app) onRabbit(ctx context.Context, endpoint, queueType string, f func(transport.Conn) error) (err error) {
	target, err := a.target()
	if err != nil {
		return err
	}
	t, ok := target.Transport.(*rabbitmq.Transport)
	if !ok {
		return usagef("rabbitmq: the transport is %s: give one with amqp:// or amqps://", target.broker)
	}
	switch rabbitmq.QueueType(queueType) {
	case "":
	case rabbitmq.Quorum, rabbitmq.Classic:
		t.QueueType = rabbitmq.QueueType(queueType)
	default:
		return usagef("--queue-type %q: want quorum or classic", queueType)
	}
	conn, err := a.open(ctx, target, endpoint)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return f(conn)
}

// shape creates or verifies what the endpoint, or what delays need, and prints what came of it.
func (a *app) shape(ctx context.Context, s *shaping, endpoint, what string, plan transport.Plan) error {
	return a.onRabbit(ctx, endpoint, s.queueType, func(conn transport.Conn) error {
		report, err := s.do(ctx, conn, plan)
		if err != nil {
			return err
		}
		if err := a.printShape(report, what, s.asJSON); err != nil {
			return err
		}
		if err := report.Err(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
}

func (a *app) printShape(r rabbitmqtopology.Report, what string, asJSON bool) error {
	s := shaped{report: r, dryRun: r.DryRun}
	for _, p := range r.Created {
		s.created = append(s.created, p.Kind+"\t"+p.Name)
	}
	for _, f := range r.Found {
		s.found = append(s.found, fmt.Sprintf("%s\t%s\t%s\t%s", f.State, f.Kind, f.Name, f.Detail))
	}
	if err := a.printShaped(s, what, asJSON); err != nil {
		return err
	}
	if r.NotRead != "" && !asJSON {
		fmt.Fprintln(a.out, r.NotRead)
	}
	return nil
}
