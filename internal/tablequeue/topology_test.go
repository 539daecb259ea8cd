package tablequeue

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// sweeping is a Sweeper of queues with a number of expired rows. DueForSweep returns them with err.
type sweeping struct {
	queues []string
	rows   map[string]int64
	err    error
}

func (s sweeping) DueForSweep(context.Context) ([]string, error) { return s.queues, s.err }

func (s sweeping) SweepSome(_ context.Context, queue string) (int64, error) {
	n := min(s.rows[queue], MaxSwept)
	switch s.rows[queue] -= n; queue {
	case "broken":
		return 0, errors.New("a broken queue")
	case "gone":
		return 0, transport.ErrNoQueue
	}
	return n, nil
}

func TestASweepGoesOnAfterAnError(t *testing.T) {
	s := sweeping{
		[]string{"a", "broken", "gone", "b"}, map[string]int64{"a": 2*MaxSwept + 1, "b": MaxSwept}, errors.New("half a list"),
	}
	err := Sweep(t.Context(), s)
	if s.rows["a"] != 0 || s.rows["b"] != 0 {
		t.Errorf("rows left: %v", s.rows)
	}
	if err == nil || err.Error() != "half a list\na broken queue" {
		t.Errorf("error %v, want each once, and none of a queue that is gone", err)
	}
}

// listing is a store whose list of queues has names, and ends with err. Queues without a table are
// gone.
type listing struct {
	*fake
	names []string
	err   error
}

func (l listing) parts() Store {
	s := l.fake.parts()
	s.Topology = l
	return s
}

func (l listing) List(context.Context) ([]string, error) { return l.names, l.err }

func (l listing) Inspect(ctx context.Context, queue string) (transport.QueueStats, error) {
	if strings.HasPrefix(queue, "gone") {
		return transport.QueueStats{}, transport.ErrNoQueue
	}
	return l.fake.Inspect(ctx, queue)
}

// A queue that is removed during an inspection of all queues is left out.
func TestAQueueRemovedDuringInspectionIsLeftOut(t *testing.T) {
	c := open(t, listing{fake: newFake("a", "b"), names: []string{"a", "gone", "b"}})
	stats, err := c.Inspect(t.Context())
	var names []string
	for _, s := range stats {
		names = append(names, s.Name)
	}
	if want := []string{"a", "b"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("queues %q, %v, want %q", names, err, want)
	}
	_, err = c.Inspect(t.Context(), "a", "gone")
	isErr(t, err, transport.ErrNoQueue)
	c = open(t, listing{fake: newFake("a"), names: []string{"a"}, err: errors.ErrUnsupported})
	stats, err = c.Inspect(t.Context())
	isErr(t, err, errors.ErrUnsupported)
	if stats != nil {
		t.Errorf("%v of half a list", stats)
	}
}

// foreseeing is a store that foresees the failure of each queue.
type foreseeing struct {
	*fake
	sweeping
}

func (f foreseeing) parts() Store {
	s := f.fake.parts()
	s.Sweeper, s.Warner = f, f
	return s
}

func (foreseeing) Warnings(_ context.Context, queues []string) ([]string, error) {
	return queues, nil
}

func TestWarningsOfTheQueuesInUseAreKeptByTheSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, foreseeing{newFake("b", "a", "unused"), sweeping{}})
		receiverOf(t, c, "b")
		receiverOf(t, c, "a")
		if got := c.Warnings(); len(got) > 0 {
			t.Errorf("warnings %q before a sweep", got)
		}
		time.Sleep(sweepEvery + time.Second)
		if got := c.Warnings(); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("warnings %q, want those of the queues that are received from", got)
		}
		_ = c.Close()
	})
}
