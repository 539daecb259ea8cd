package main

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// planned is a transport that keeps the plan that it is to install.
type planned struct {
	inmemory.Transport
	plan transport.Plan
}

func (p *planned) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	c, err := p.Transport.Open(ctx, env)
	return planning{c, p}, err
}

type planning struct {
	transport.Conn
	of *planned
}

func (p planning) Install(_ context.Context, plan transport.Plan) error {
	p.of.plan = plan
	return nil
}

func TestThePlanIsThatOfAnEndpoint(t *testing.T) {
	var p planned
	e, err := endpoint.New(endpoint.Config{
		Name: "sales", Transport: &p, AuditQueue: "audit", Instance: "7", InstanceQueue: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	of := endpointSpec{name: "sales", instances: []string{"7"}, errors: "error", audit: "audit"}
	if diff := cmp.Diff(byName(p.plan), byName(of.plan())); diff != "" {
		t.Errorf("an endpoint installs (-), and the plan of the flags is (+):\n%s", diff)
	}
}

// byName is a plan without the order of its queues.
func byName(plan transport.Plan) map[string]transport.Queue {
	queues := make(map[string]transport.Queue)
	for _, q := range plan.Queues {
		queues[q.Name] = q
	}
	if plan.Delays {
		queues["(delays)"] = transport.Queue{}
	}
	return queues
}
