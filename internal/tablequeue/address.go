package tablequeue

import (
	"slices"

	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.Addresser = (*Conn)(nil)

// Address implements [transport.Addresser]. It is the name of the queue unless the store is a
// [transport.Addresser].
func (c *Conn) Address(queue string) string {
	if a, ok := c.store.(transport.Addresser); ok {
		return a.Address(queue)
	}
	return queue
}

// ShortName implements [transport.Addresser]. Every method of the Conn that takes a queue calls it
// first, so that the store and the Conn's own tables know one name of each queue.
func (c *Conn) ShortName(address string) string {
	if a, ok := c.store.(transport.Addresser); ok {
		return a.ShortName(address)
	}
	return address
}

func (c *Conn) shortNames(addresses []string) []string {
	names := slices.Clone(addresses)
	for i := range names {
		names[i] = c.ShortName(names[i])
	}
	return names
}

// shortPlan returns plan with the short names of its queues.
func (c *Conn) shortPlan(plan transport.Plan) transport.Plan {
	plan.Queues = slices.Clone(plan.Queues)
	for i := range plan.Queues {
		plan.Queues[i].Name = c.ShortName(plan.Queues[i].Name)
	}
	return plan
}
