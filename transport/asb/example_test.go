package asb_test

import (
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/asb"
)

type ShipOrder struct{ OrderID string }

func ship(context.Context, *endpoint.Session, ShipOrder) error { return nil }

func ExampleTransport() {
	shipping, err := endpoint.New(endpoint.Config{ // it connects when it is run
		Name: "shipping", Install: true,
		Transport: &asb.Transport{
			// Instead of a key: Namespace, and a Credential of package azidentity.
			ConnectionString: "Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=app;SharedAccessKey=c2VjcmV0",
			Hierarchy:        "prod", // the queue is prod/shipping
		},
		Messages:       []endpoint.Message{endpoint.Command[ShipOrder]("Shop.ShipOrder")},
		Handlers:       []endpoint.Handler{endpoint.Handle(ship)},
		Recoverability: recoverability.Config{Immediate: 3, Delayed: recoverability.None},
	})
	fmt.Println(shipping != nil, err)
	// Output: true <nil>
}

// An error of the configuration is reported before the transport connects.
func ExampleTransport_connectionString() {
	broker := &asb.Transport{ConnectionString: "sb://app:secret@shop.servicebus.windows.net"}
	_, err := broker.Open(context.Background(), transport.Env{Endpoint: "shipping"})
	fmt.Println(err)
	// Output: asb: the connection string is not valid: write "Endpoint=sb://NAME.servicebus.windows.net/;SharedAccessKeyName=…;SharedAccessKey=…", as the portal shows it
}

// Events of .NET endpoints that share one topic are distinguished by a property for each of their
// types.
func ExampleTopology() {
	topology := asb.Topology{
		PublishTo:   map[string]string{"Shop.OrderPlaced": "orders", "Shop.OrderCancelled": "orders"},
		SubscribeTo: map[string][]string{"Shop.IOrderEvent": {"orders"}}, // a base type of both
		Shared:      []string{"orders"},
	}
	fmt.Println(len(topology.PublishTo), "types by", topology.Shared)
	// Output: 2 types by [orders]
}
