// Package endpointplan says which queues an endpoint needs, for those who create and verify them from outside.
package endpointplan

import (
	"errors"
	"slices"

	"github.com/holdfast-go/holdfast/transport"
)

// Endpoint is an endpoint by what of its configuration shows at the broker.
type Endpoint struct {
	Name      string
	Instances []string // those with a queue of their own
	Error     string   // the error queue
	Audit     string   // the audit queue; "" is none
}

// Check refuses names that no endpoint has.
func (e Endpoint) Check() error {
	switch {
	case e.Name == "":
		return errors.New("the endpoint has no name")
	case e.Error == "":
		return errors.New("an endpoint has an error queue")
	case slices.Contains(e.Instances, ""):
		return errors.New("an instance has no id")
	}
	return nil
}

// Plan is what the endpoint needs. What its message types need is left to the endpoint, whose code knows them.
func (e Endpoint) Plan() transport.Plan {
	queues := []transport.Queue{{Name: e.Name}, {Name: e.Name + ".quarantine", Counted: true}}
	for _, instance := range e.Instances {
		queues = append(queues, transport.Queue{Name: e.Name + "-" + instance})
	}
	for _, name := range []string{e.Error, e.Audit} {
		if name != "" {
			queues = append(queues, transport.Queue{Name: name, Shared: true})
		}
	}
	return transport.Plan{Queues: queues, Delays: true}
}
