// Package names translates between the names of queues, their short names and their addresses.
package names

import (
	"slices"

	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// Queues translates between the queues of a running endpoint and their addresses for other
// programs. Within the endpoint a queue has one name, the short name, whatever form of its address
// a header, an option or the Config has. Queues is safe for concurrent use.
type Queues struct {
	// Self is the address of the endpoint's queue, which is in every message that the endpoint
	// sends.
	Self string

	by  transport.Addresser // nil: the address of a queue is its name
	own map[string]string   // addresses of the queues that the endpoint receives from
}

// New returns the names of an endpoint with a connection. own are the queues that the endpoint
// receives from.
func New(conn transport.Conn, endpoint string, own []string) Queues {
	by, ok := conn.(transport.Addresser)
	if !ok {
		return Queues{Self: endpoint}
	}
	n := Queues{by: by, Self: by.Address(endpoint), own: make(map[string]string, len(own))}
	for _, queue := range own {
		n.own[by.ShortName(queue)] = by.Address(queue)
	}
	return n
}

// Of returns the short name of a queue.
func (n *Queues) Of(queue string) string {
	if n.by == nil || queue == "" {
		return queue
	}
	return n.by.ShortName(queue)
}

// Address returns the address of a queue, from memory for a short name of the endpoint's own
// queues.
func (n *Queues) Address(queue string) string {
	if n.by == nil {
		return queue
	}
	if address, ok := n.own[queue]; ok {
		return address
	}
	return n.by.Address(queue)
}

// InPolicy returns c with the short names of its queues.
func (n *Queues) InPolicy(c recoverability.Config) recoverability.Config {
	c.ErrorQueue, c.Rules = n.Of(c.ErrorQueue), slices.Clone(c.Rules)
	for i := range c.Rules {
		r := &c.Rules[i]
		r.ErrorQueue = n.Of(r.ErrorQueue)
		if move, ok := r.Action.(recoverability.MoveToError); ok {
			r.Action = recoverability.MoveToError{Queue: n.Of(move.Queue)}
		}
	}
	return c
}
