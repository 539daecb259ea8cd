package rabbitmq_test

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

type ShipOrder struct{ OrderID string }

func ship(context.Context, *endpoint.Session, ShipOrder) error { return nil }

// The program examples/twotransports runs such an endpoint.
func ExampleTransport() {
	shipping, err := endpoint.New(endpoint.Config{ // it connects when it is run
		Name: "shipping", Install: true,
		Transport: &rabbitmq.Transport{
			URL:       "amqps://app:secret@broker.example/shop", // the virtual host is shop
			Heartbeat: 5 * time.Second,
		},
		Messages:       []endpoint.Message{endpoint.Command[ShipOrder]("Shop.ShipOrder")},
		Handlers:       []endpoint.Handler{endpoint.Handle(ship)},
		Recoverability: recoverability.Config{Immediate: 3, Delayed: recoverability.None},
	})
	fmt.Println(shipping != nil, err)
	// Output: true <nil>
}

// What is wrong with the configuration shows before anything is connected to.
func ExampleTransport_queueType() {
	broker := &rabbitmq.Transport{URL: "amqp://broker.example", QueueType: "stream"}
	_, err := broker.Open(context.Background(), transport.Env{Endpoint: "shipping"})
	fmt.Println(err)
	// Output: rabbitmq: queue type "stream": use "quorum" or "classic"
}
