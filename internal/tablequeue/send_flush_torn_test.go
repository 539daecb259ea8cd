package tablequeue

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// tornFake is a fake in which units for a queue lose a conflict at each try.
type tornFake struct {
	*fake
	queues map[string]bool
	fails  atomic.Int64
}

var errTorn = errors.New("fake: deadlock")

func (f *tornFake) parts() Store {
	s := f.fake.parts()
	s.Queues, s.Classify = f, f.Classify
	return s
}

func (f *tornFake) Flush(ctx context.Context, units []*Unit) error {
	time.Sleep(10 * time.Millisecond) // in which a batch gathers
	for _, q := range destinations(units...) {
		if f.queues[q] {
			f.fails.Add(1)
			return errTorn
		}
	}
	return f.fake.Flush(ctx, units)
}

func (f *tornFake) Classify(err error) Class {
	if errors.Is(err, errTorn) {
		return Conflict
	}
	return f.fake.Classify(err)
}

// Units that lose a conflict at each try fail alone. If all do, the number of tries has a bound.
func TestUnitsThatAlwaysConflictFailAlone(t *testing.T) {
	for name, torn := range map[string][]string{"one queue": {"odd"}, "each queue": {"odd", "out"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &tornFake{fake: newFake("odd", "out"), queues: map[string]bool{}}
				for _, q := range torn {
					f.queues[q] = true
				}
				c := open(t, f)
				const n = 100
				errs := make([]error, n)
				var all sync.WaitGroup
				for i := range n {
					queue := "out"
					if i == 42 {
						queue = "odd"
					}
					all.Go(func() { _, errs[i] = c.Dispatch(t.Context(), []transport.Operation{op(queue, "x")}) })
				}
				all.Wait()
				for i, err := range errs {
					if want := i == 42 || len(torn) > 1; (err != nil) != want {
						t.Errorf("message %d: %v", i, err)
					}
				}
				if most := int64(4 * conflicts * (maxTorn + 1)); f.fails.Load() > most {
					t.Errorf("%d failed writes, want at most %d", f.fails.Load(), most)
				}
			})
		})
	}
}
