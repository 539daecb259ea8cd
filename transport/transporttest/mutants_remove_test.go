package transporttest

import (
	"context"

	"github.com/holdfast-go/holdfast/transport"
)

var removeMutants = []mutant{
	{"verify-plan", "Verify reports nothing", func(f *faulty) {
		f.verify = func(context.Context, *faultyConn, transport.Plan) ([]transport.Finding, error) { return nil, nil }
	}},
	{"verify-plan", "Verify creates missing queues", func(f *faulty) {
		f.verify = func(ctx context.Context, c *faultyConn, plan transport.Plan) ([]transport.Finding, error) {
			found, err := c.sound.Verify(ctx, plan)
			if err != nil {
				return nil, err
			}
			return found, c.sound.Install(ctx, plan)
		}
	}},
	{"verify-plan", "Verify reports queues that exist", func(f *faulty) {
		f.verify = func(_ context.Context, _ *faultyConn, plan transport.Plan) (found []transport.Finding, err error) {
			for _, q := range plan.Queues {
				found = append(found, transport.Finding{Kind: "queue", Name: q.Name, State: transport.Missing})
			}
			return found, nil
		}
	}},
	{"verify-subscriptions", "a missing subscription is not reported", func(f *faulty) {
		f.verifySubs = func([]transport.Finding) []transport.Finding { return nil }
	}},
	{"verify-subscriptions", "an existing subscription is reported", func(f *faulty) {
		f.verifySubs = func(found []transport.Finding) []transport.Finding {
			return append(found, transport.Finding{Kind: "subscription", State: transport.Missing})
		}
	}},
	{"remove-queues", "Remove purges the queues", func(f *faulty) {
		f.remove = func(_ context.Context, c *faultyConn, queues []string) error {
			for _, q := range queues {
				c.drain(q, len(c.f.Messages(q)))
			}
			return nil
		}
	}},
	{"remove-queues", "Remove deletes the first queue only", func(f *faulty) {
		f.remove = func(ctx context.Context, c *faultyConn, queues []string) error {
			return c.sound.Remove(ctx, queues[0])
		}
	}},
	{"remove-queues", "Remove deletes the queues of others", func(f *faulty) {
		f.remove = func(ctx context.Context, c *faultyConn, _ []string) error {
			return c.sound.Remove(ctx, c.queues()...)
		}
	}},
	{"remove-queues", "Remove of a missing queue is an error", func(f *faulty) {
		f.remove = func(ctx context.Context, c *faultyConn, queues []string) error {
			for _, q := range queues {
				if _, err := c.sound.Inspect(ctx, q); err != nil {
					return err
				}
			}
			return c.sound.Remove(ctx, queues...)
		}
	}},
}
