package main

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
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
	if err != nil {
		return nil, err
	}
	return planning{c, c.(transport.OutboxStore), p}, nil
}

type planning struct {
	transport.Conn
	transport.OutboxStore
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

func TestAnEndpointIsAdministeredOnSQLTransports(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]func(*testing.T) string{
		"sqlite":   func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "q.db") },
		"postgres": func(t *testing.T) string { return brokertest.Postgres(t) },
	} {
		t.Run(name, func(t *testing.T) {
			setenv(t, transportVar, url(t))
			if r, _ := provision(t, exitOK, "endpoint", "create", "sales", "--dry-run"); len(r.Created) < 3 || !r.DryRun {
				t.Errorf("dry run: %+v", r)
			}
			if r, _ := provision(t, exitOK, "endpoint", "create", "sales", "--instance", "7"); len(r.Created) < 4 || !r.OK {
				t.Errorf("create: %+v", r)
			}
			must(t, "", "endpoint", "subscribe", "sales", "Shop.OrderPlaced")
			if r, _ := provision(t, exitOK, "endpoint", "verify", "sales", "--instance", "7", "--event", "Shop.OrderPlaced"); !r.OK {
				t.Errorf("verify: %+v", r)
			}
			must(t, "", "endpoint", "unsubscribe", "sales", "Shop.OrderPlaced")
			if r, _ := provision(t, exitFailed, "endpoint", "verify", "sales", "--event", "Shop.OrderPlaced"); len(r.Found) != 1 {
				t.Errorf("unsubscribed: %+v", r)
			}
			must(t, "", "endpoint", "delete", "sales", "--instance", "7", "--yes", "--force")
			if out := must(t, "", "queues", "--json"); strings.Contains(out, "sales") || !strings.Contains(out, `"error"`) {
				t.Errorf("left after delete: %s", out)
			}
			if code, _, errs := call(t, "", "endpoint", "subscribe", "sales", "T"); code != exitFailed || !strings.Contains(errs, "endpoint create") {
				t.Errorf("subscribe without a queue: exit code %d, %s", code, errs)
			}
		})
	}
}
