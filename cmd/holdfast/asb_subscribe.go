package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/servicebus"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/asb"
)

const subscribeHelp = `An event goes by the topic of its full name, and one with base types by the shared topic
"holdfast.hierarchies": a subscription is made on both, which forwards to the endpoint's queue. Topics that are missing are
created. --topic maps a type to another topic, as the tables of the endpoint's Topology do, and --shared says which topics
several types go by; both have to agree with the endpoints that publish.`

// subscribing is what the flags of subscribe and unsubscribe say.
type subscribing struct {
	topics        []string // TYPE=TOPIC
	shared        []string
	noHierarchies bool
}

// subscribeCommand is subscribe or unsubscribe.
func (a *app) subscribeCommand(subscribes bool) *cobra.Command {
	var s subscribing
	cmd := &cobra.Command{
		Use:   "subscribe NAME TYPE...",
		Short: "Subscribe the queue of an endpoint to events",
		Example: `  holdfast asb endpoint subscribe sales Shop.OrderPlaced --transport sb://shop.servicebus.windows.net
  holdfast asb endpoint subscribe sales Shop.OrderPlaced --topic Shop.OrderPlaced=orders --shared orders`,
		Args: endpointAndTypes,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.subscribe(cmd.Context(), &s, args[0], args[1:], subscribes)
		},
	}
	if !subscribes {
		cmd.Use = "unsubscribe NAME TYPE..."
		cmd.Short = "Take back the subscriptions of an endpoint's queue to events"
		cmd.Example = "  holdfast asb endpoint unsubscribe sales Shop.OrderPlaced --transport sb://shop.servicebus.windows.net"
	}
	cmd.Long = cmd.Short + ".\n\n" + subscribeHelp
	s.flags(cmd)
	return cmd
}

func (s *subscribing) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&s.topics, "topic", nil, "the topic of a type, as `TYPE=TOPIC`; may be repeated")
	flags.StringArrayVar(&s.shared, "shared", nil, "a `topic` that several types go by; may be repeated")
	flags.BoolVar(&s.noHierarchies, "no-hierarchies", false, "leave base types out of account, as NServiceBus does")
}

func endpointAndTypes(_ *cobra.Command, args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("want the name of an endpoint and those of event types, have %d names", len(args))
	}
	return nil
}

// topology is what the flags say.
func (s *subscribing) topology() (asb.Topology, error) {
	y := asb.Topology{NoHierarchies: s.noHierarchies, Shared: s.shared, SubscribeTo: map[string][]string{}}
	for _, mapping := range s.topics {
		kind, topic, ok := strings.Cut(mapping, "=")
		if !ok || kind == "" || topic == "" {
			return y, usagef("--topic %q: want TYPE=TOPIC", mapping)
		}
		y.SubscribeTo[kind] = append(y.SubscribeTo[kind], topic)
	}
	return y, nil
}

func (a *app) subscribe(ctx context.Context, s *subscribing, endpoint string, types []string, subscribes bool) error {
	topology, err := s.topology()
	if err != nil {
		return err
	}
	setTopology := func(t *asb.Transport) { t.Topology = topology }
	return a.onServiceBus(ctx, endpoint, setTopology, func(conn transport.Conn, n *servicebus.Namespace) error {
		subscriber, ok := conn.(transport.Subscriber)
		if !ok {
			return fmt.Errorf("endpoint %q: the transport cannot subscribe", endpoint)
		}
		change, done := subscriber.Unsubscribe, "unsubscribed from"
		if subscribes {
			change, done = subscriber.Subscribe, "subscribed to"
			if err := hasQueue(ctx, n, endpoint); err != nil {
				return err
			}
		}
		if err := change(ctx, endpoint, types); err != nil {
			return err
		}
		fmt.Fprintf(a.out, "%s %s %s\n", endpoint, done, strings.Join(types, ", "))
		return nil
	})
}

// hasQueue says what to do where the endpoint's queue is missing. Without the right to look it leaves that to the driver.
func hasQueue(ctx context.Context, n *servicebus.Namespace, endpoint string) error {
	report, err := n.Verify(ctx, transport.Plan{Queues: []transport.Queue{{Name: endpoint, Shared: true}}})
	if err == nil && len(report.Found) > 0 && report.Found[0].State == servicebus.Missing {
		return fmt.Errorf("endpoint %q: %w: holdfast asb endpoint create makes it", endpoint, transport.ErrNoQueue)
	}
	return nil
}
