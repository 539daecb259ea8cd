package bench

import (
	"context"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/servicebus"
	"github.com/holdfast-go/holdfast/transport/asb"
)

// ServiceBus is a namespace of Azure Service Bus. Its queues are removed with the right to manage it.
func ServiceBus(t *asb.Transport) Broker { return busBroker{t} }

type busBroker struct{ transport *asb.Transport }

func (b busBroker) Remove(ctx context.Context, _ string, queues []string) error {
	n, err := servicebus.Of(b.transport)
	if err != nil {
		return err
	}
	return n.Remove(ctx, queues...)
}
