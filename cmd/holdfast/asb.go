package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/endpointplan"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/servicebus"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/asb"
)

const asbHelp = `Create and verify what endpoints need in a namespace of Azure Service Bus, subscribe them to
events, and look after the dead letters of their queues.

An endpoint with the installer on creates and subscribes by itself. These commands are for where it has
no right to manage the namespace, and to look at what others have created.

Exit codes: 0 all is there, 1 something is missing or differs, or the command failed,
2 wrong usage, 130 interrupted.`

const asbExample = `  holdfast asb endpoint create sales --transport sb://shop.servicebus.windows.net
  holdfast asb endpoint subscribe sales Shop.OrderPlaced Shop.OrderShipped
  holdfast asb endpoint verify sales --json
  holdfast asb dead-letters list sales
  holdfast asb dead-letters retry sales --all`

func (a *app) asbCommand() *cobra.Command {
	return a.group(&cobra.Command{
		Use:     "asb",
		Short:   "Create, subscribe and verify endpoints at Azure Service Bus, and look after dead letters",
		Long:    asbHelp,
		Example: asbExample,
	}, a.asbEndpointCommand(), a.deadLettersCommand())
}

const asbEndpointHelp = `Create or verify the queues that an endpoint needs: its own, its quarantine, its error and audit
queue. What exists is never changed. The topics of its events come with subscribing, or are made by the endpoint that publishes.`

func (a *app) asbEndpointCommand() *cobra.Command {
	return a.group(&cobra.Command{
		Use:   "endpoint",
		Short: "Create, subscribe and verify the queues of an endpoint",
		Long:  asbEndpointHelp,
	}, a.asbQueuesCommand("create", true), a.asbQueuesCommand("verify", false), a.subscribeCommand(true), a.subscribeCommand(false))
}

// asbQueuesCommand is create or verify.
func (a *app) asbQueuesCommand(verb string, creates bool) *cobra.Command {
	var e endpointplan.Endpoint
	var events expecting
	s := shaping{creates: creates}
	cmd := &cobra.Command{
		Use:   verb + " NAME",
		Short: "Say what is missing of an endpoint, or not fit for it",
		Example: `  holdfast asb endpoint verify sales --transport sb://shop.servicebus.windows.net
  holdfast asb endpoint verify sales --audit audit --instance 1 --json
  holdfast asb endpoint verify sales --event Shop.OrderPlaced --event Shop.Bill`,
		Args: oneEndpoint,
		RunE: func(cmd *cobra.Command, args []string) error {
			e.Name = args[0]
			if err := e.Check(); err != nil {
				return usageError{err}
			}
			return a.shapeQueues(cmd.Context(), &s, &e, &events)
		},
	}
	if creates {
		cmd.Short = "Create what is missing of an endpoint"
		cmd.Example = `  holdfast asb endpoint create sales --transport sb://shop.servicebus.windows.net
  holdfast asb endpoint create sales --audit audit --dry-run`
	}
	cmd.Long = cmd.Short + ".\n\n" + asbEndpointHelp
	endpointFlags(cmd, &e)
	s.flags(cmd)
	if !creates {
		events.flags(cmd)
	}
	return cmd
}

// expecting is what verify is told of events.
type expecting struct {
	subscribing
	types []string
}

func (e *expecting) flags(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&e.types, "event", nil, "`type` of an event that the endpoint is to be subscribed to; may be repeated")
	e.subscribing.flags(cmd)
}

// look adds to a report what is wrong with the subscriptions.
func (e *expecting) look(ctx context.Context, n *servicebus.Namespace, t *asb.Transport, endpoint string, r *servicebus.Report) error {
	found, err := n.VerifySubscriptions(ctx, t.Subscriptions(endpoint, e.types...))
	r.Found = append(r.Found, found...)
	r.OK = len(r.Found) == 0
	return err
}

// asbTransport is the transport that the user named, which has to be of Azure Service Bus.
func (a *app) asbTransport() (target, *asb.Transport, error) {
	t, err := a.target()
	if err != nil {
		return t, nil, err
	}
	bus, ok := t.Transport.(*asb.Transport)
	if !ok {
		return t, nil, usagef("asb: the transport is %s: give one with sb://", t.broker)
	}
	return t, bus, nil
}

// onServiceBus runs f with a connection to the namespace of the URL, as an endpoint of that name.
func (a *app) onServiceBus(ctx context.Context, endpoint string, prepare func(*asb.Transport), f func(transport.Conn, *servicebus.Namespace) error) (err error) {
	t, bus, err := a.asbTransport()
	if err != nil {
		return err
	}
	if prepare != nil {
		prepare(bus)
	}
	namespace, err := servicebus.Of(bus)
	if err != nil {
		return usageError{err}
	}
	conn, err := a.open(ctx, t, endpoint)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return f(conn, namespace)
}

// shapeQueues creates or verifies what the endpoint needs, and prints what came of it.
func (a *app) shapeQueues(ctx context.Context, s *shaping, e *endpointplan.Endpoint, events *expecting) error {
	what := fmt.Sprintf("endpoint %q", e.Name)
	topology, err := events.topology()
	if err != nil {
		return err
	}
	var bus *asb.Transport
	setTopology := func(t *asb.Transport) { bus, t.Topology = t, topology }
	return a.onServiceBus(ctx, e.Name, setTopology, func(conn transport.Conn, n *servicebus.Namespace) error {
		var report servicebus.Report
		var err error
		switch {
		case !s.creates:
			if report, err = n.Verify(ctx, e.Plan()); err == nil {
				err = events.look(ctx, n, bus, e.Name, &report)
			}
		case s.dryRun:
			report, err = n.Preview(ctx, e.Plan())
		default:
			report, err = n.Create(ctx, conn, e.Plan())
		}
		if err == nil {
			err = a.printQueuesReport(report, what, s.asJSON)
		}
		if err == nil {
			err = report.Err()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
}

func (a *app) printQueuesReport(r servicebus.Report, what string, asJSON bool) error {
	s := shaped{report: r, dryRun: r.DryRun}
	for _, q := range r.Created {
		s.created = append(s.created, "queue\t"+q)
	}
	for _, f := range r.Found {
		s.found = append(s.found, fmt.Sprintf("%s\t%s\t%s\t%s", f.State, f.Kind, f.Name, f.Detail))
	}
	return a.printShaped(s, what, asJSON)
}
