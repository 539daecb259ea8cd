package endpoint

import (
	"errors"
	"fmt"
	"slices"

	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// queueNames translates between the queues of a running endpoint and their addresses for other
// programs. Within the endpoint a queue has one name, its short name, whatever form of its address
// a header, an option or the Config has.
type queueNames struct {
	by   transport.Addresser // nil: the address of a queue is its name
	self string              // the address of the endpoint's queue, which is in every message that the endpoint sends
	own  []ownQueue
}

// ownQueue is a queue that the endpoint receives from.
type ownQueue struct{ name, address string }

func (e *Endpoint) queueNames(conn transport.Conn) queueNames {
	by, ok := conn.(transport.Addresser)
	if !ok {
		return queueNames{self: e.cfg.Name}
	}
	n := queueNames{by: by, self: by.Address(e.cfg.Name)}
	for _, queue := range append(e.queues(), e.cfg.Name+quarantineSuffix) {
		n.own = append(n.own, ownQueue{by.ShortName(queue), by.Address(queue)})
	}
	return n
}

// of returns the short name of a queue.
func (n *queueNames) of(queue string) string {
	if n.by == nil || queue == "" {
		return queue
	}
	return n.by.ShortName(queue)
}

// address returns the address of a queue, from memory for a short name of the endpoint's own
// queues.
func (n *queueNames) address(queue string) string {
	if n.by == nil {
		return queue
	}
	for i := range n.own {
		if n.own[i].name == queue {
			return n.own[i].address
		}
	}
	return n.by.Address(queue)
}

// inPolicy returns c with the short names of its queues.
func (n *queueNames) inPolicy(c recoverability.Config) recoverability.Config {
	c.ErrorQueue, c.Rules = n.of(c.ErrorQueue), slices.Clone(c.Rules)
	for i := range c.Rules {
		r := &c.Rules[i]
		r.ErrorQueue = n.of(r.ErrorQueue)
		if move, ok := r.Action.(recoverability.MoveToError); ok {
			r.Action = recoverability.MoveToError{Queue: n.of(move.Queue)}
		}
	}
	return c
}

// checkQueues finds the mistakes that New finds in the names of queues, where one queue is named in
// several forms.
func (l *live) checkQueues() error {
	var errs []error
	l.e.cfg.validateQueues(l.names.of, func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("endpoint %q: invalid configuration: "+format, append([]any{l.e.cfg.Name}, args...)...))
	})
	return errors.Join(errs...)
}
