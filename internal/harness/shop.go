package harness

import (
	"log/slog"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport"
)

type (
	// PlaceOrder is the shop's command that most tests send.
	PlaceOrder struct{ ID string }
	// OrderPlaced is the event that follows.
	OrderPlaced struct{ ID string }
	// ShipOrder is a command that a handler sends.
	ShipOrder struct{ ID string }
	// OrderAccepted is a reply.
	OrderAccepted struct{ ID string }
)

// Messages returns the registrations of the shop's messages. The caller may append.
func Messages() []endpoint.Message {
	return []endpoint.Message{
		endpoint.Command[PlaceOrder]("Shop.PlaceOrder"),
		endpoint.Event[OrderPlaced]("Shop.OrderPlaced", "Shop.IOrderEvent"),
		endpoint.Command[ShipOrder]("Shop.ShipOrder"),
		endpoint.Response[OrderAccepted]("Shop.OrderAccepted"),
	}
}

// Sales returns a configuration of the endpoint "sales", for the caller to change.
func Sales(t transport.Transport, handlers ...endpoint.Handler) endpoint.Config {
	return endpoint.Config{
		Name: "sales", Transport: t, Messages: Messages(), Handlers: handlers, Install: true,
		Routes: []endpoint.Route{
			endpoint.RouteTo[ShipOrder]("shipping"), endpoint.RouteTo[PlaceOrder]("sales"),
		},
		Logger: slog.New(slog.DiscardHandler),
	}
}
