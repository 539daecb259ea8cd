package transporttest

import (
	"context"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/transport"
)

// dispatching changes the operations that are dispatched.
func dispatchingOps(change func(ops []transport.Operation) []transport.Operation) func(*faulty) {
	return func(f *faulty) {
		f.dispatch = func(ctx context.Context, c *faultyConn, ops []transport.Operation) ([]transport.Receipt, error) {
			return c.sound.Dispatch(ctx, change(slices.Clone(ops)))
		}
	}
}

// each changes each operation with a name.
func eachNamed(change func(op *transport.Operation)) func(ops []transport.Operation) []transport.Operation {
	return func(ops []transport.Operation) []transport.Operation {
		for i := range ops {
			if ops[i].Name != "" {
				change(&ops[i])
			}
		}
		return ops
	}
}

var timerMutants = []mutant{
	{"timer-replaces", "all names are one", dispatchingOps(eachNamed(func(op *transport.Operation) { op.Name = "one" }))},
	{"timer-removed", "nothing is removed", func(f *faulty) {
		f.dispatch = func(ctx context.Context, c *faultyConn, ops []transport.Operation) ([]transport.Receipt, error) {
			var kept []transport.Operation
			for _, op := range ops {
				if op.Message != nil {
					kept = append(kept, op)
				}
			}
			return c.sound.Dispatch(ctx, kept)
		}
	}},
	{"timer-leased", "a leased message is not replaced", func(f *faulty) {
		f.dispatch = func(ctx context.Context, c *faultyConn, ops []transport.Operation) ([]transport.Receipt, error) {
			if len(c.unsettled()) > 0 {
				eachNamed(func(op *transport.Operation) { op.Name += "-2" })(ops)
			}
			return c.sound.Dispatch(ctx, ops)
		}
	}},
	{"timer-order", "what is removed is removed first", dispatchingOps(func(ops []transport.Operation) []transport.Operation {
		slices.SortStableFunc(ops, func(a, b transport.Operation) int {
			switch {
			case a.Message == nil && b.Message != nil:
				return -1
			case a.Message != nil && b.Message == nil:
				return 1
			}
			return 0
		})
		return ops
	})},
	{"timer-names", "names are compared without case", dispatchingOps(eachNamed(func(op *transport.Operation) {
		op.Name = strings.ToLower(op.Name)
	}))},
	{"timer-names", "spaces around a name are lost", dispatchingOps(eachNamed(func(op *transport.Operation) {
		op.Name = strings.TrimSpace(op.Name)
	}))},
	{"timer-tx", "a timer is removed at once", func(f *faulty) {
		f.beginStore = func(ctx context.Context, c *faultyConn, e transport.OutboxEntry) (transport.Tx, error) {
			for _, op := range e.Ops {
				if op.Name != "" && op.Message == nil {
					if _, err := c.sound.Dispatch(ctx, []transport.Operation{op}); err != nil {
						return nil, err
					}
				}
			}
			return c.beginSoundly(ctx, e)
		}
	}},
	{"timer-refused", "names are ignored where there are no timers", func(f *faulty) {
		f.dispatch = func(ctx context.Context, c *faultyConn, ops []transport.Operation) ([]transport.Receipt, error) {
			receipts, err := c.sound.Dispatch(ctx, ops)
			if err == nil || len(ops) != 1 || ops[0].Name == "" {
				return receipts, err
			}
			return []transport.Receipt{{}}, nil
		}
	}},
}
