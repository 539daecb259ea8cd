package tablequeue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/internal/histories"
	"github.com/holdfast-go/holdfast/transport"
)

// impededFake is a fake in which rows for some queues cannot be written, as with a trigger that
// waits for a row, or a full disk.
type impededFake struct {
	*lockingFake
	faults map[string]error // errLock or errFull, by queue; guarded by the fake's mu
	named  bool             // errors name the statement
}

var errFull = errors.New("fake: disk full")

func newImpededFake(queues ...string) *impededFake {
	return &impededFake{lockingFake: newLockingFake(queues...), faults: map[string]error{}, named: true}
}

func (f *impededFake) parts() Store {
	s := f.lockingFake.parts()
	s.Queues, s.Classify, s.Locks, s.FaultFinder = f, f.Classify, f, f
	return s
}

func (f *impededFake) set(queue string, fault error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults[queue] = fault
}

// fault returns the fault of the first queue that units send to, and the queue.
func (f *impededFake) fault(units []*Unit) (queue string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, q := range destinations(units...) {
		if err := f.faults[q]; err != nil {
			return q, err
		}
	}
	return "", nil
}

func (f *impededFake) Flush(ctx context.Context, units []*Unit) error {
	return f.flush(ctx, units, 100*time.Millisecond)
}

func (f *impededFake) FlushWaiting(ctx context.Context, units []*Unit) error {
	return f.flush(ctx, units, time.Second)
}

func (f *impededFake) flush(ctx context.Context, units []*Unit, wait time.Duration) error {
	queue, err := f.fault(units)
	if errors.Is(err, errLock) {
		time.Sleep(wait)
		queue, err = f.fault(units)
	}
	if err == nil {
		return f.fake.Flush(ctx, units)
	}
	if !f.named {
		return err
	}
	failed := &StatementError{Err: err}
	for _, u := range units {
		if slices.Contains(destinations(u), queue) {
			failed.Units = append(failed.Units, u)
		}
	}
	verb := failed.Units[0].Verb // a statement writes units of one verb
	failed.Units = slices.DeleteFunc(failed.Units, func(u *Unit) bool { return u.Verb != verb })
	if verb == Send {
		failed.Queue = queue
	}
	return failed
}

func (f *impededFake) FailingQueue(_ context.Context, units []*Unit) string {
	queue, _ := f.fault(units)
	return queue
}

func (f *impededFake) Classify(err error) Class {
	if errors.Is(err, errFull) {
		return Impeded
	}
	return f.lockingFake.Classify(err)
}

// isBusy fails the test unless err says that queue takes no messages.
func isBusy(t testing.TB, err error, queue string) {
	t.Helper()
	if busy, ok := errors.AsType[*transport.BusyError](err); !ok || busy.Queue != queue {
		t.Errorf("error %v, want that queue %q is busy", err, queue)
	}
}

func TestARowLockHoldsUpNoOtherQueue(t *testing.T) {
	for name, named := range map[string]bool{"statement known": true, "statement unknown": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newImpededFake("in", "out", "slow")
				f.named = named
				c := open(t, f)
				ds := claimed(t, c, 40)
				f.set("slow", errLock)
				began := time.Now()
				took := make([]time.Duration, len(ds))
				errs := make([]error, len(ds))
				var wg sync.WaitGroup
				for i, d := range ds {
					wg.Go(func() {
						ops := []transport.Operation{op("out", "x")}
						if i%20 == 0 {
							ops = append(ops, op("slow", "y"))
						}
						errs[i] = d.(transport.Completer).CompleteWith(t.Context(), ops)
						took[i] = time.Since(began)
					})
				}
				wg.Wait()
				for i, err := range errs {
					switch {
					case i%20 == 0:
						isBusy(t, err, "slow")
					case err != nil:
						t.Errorf("delivery %d: %v", i, err)
					case took[i] > 3*time.Second: // halving a batch waits for the lock several times
						t.Errorf("delivery %d waited %v", i, took[i])
					}
				}
				if n := f.count("out"); n != 38 {
					t.Errorf("%d messages were sent, want 38", n)
				}
				if all := c.Warnings(); len(all) != 1 || !strings.Contains(all[0], `"slow"`) {
					t.Errorf("warnings %q, want one that names the queue", all)
				}
			})
		})
	}
}

func TestASendInPartsKeepsItsResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newImpededFake("out", "slow")
		c := open(t, f)
		f.set("slow", errLock)
		later := op("out", "c")
		later.After = time.Minute
		receipts, err := c.Dispatch(t.Context(), []transport.Operation{op("out", "a"), op("slow", "b"), later})
		if failed := failedOps(t, err); !slices.Equal(failed, []int{1}) {
			t.Errorf("failed operations %v, want 1", failed)
		}
		isBusy(t, err, "slow")
		if len(receipts) != 3 || receipts[2].Cancel == "" || f.count("out") != 2 {
			t.Errorf("receipts %v, %d messages", receipts, f.count("out"))
		}
	})
}

func TestAProbeEndsAnImpediment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newImpededFake("in", "slow")
		c := open(t, f)
		ds := claimed(t, c, 5)
		f.set("slow", errLock)
		for _, err := range completeAll(t, ds, func(int) string { return "slow" }) {
			isBusy(t, err, "slow")
		}
		for _, d := range ds {
			if err := d.(transport.Postponer).Postpone(t.Context(), "slow"); err != nil {
				t.Fatal(err)
			}
		}
		r := receiverOf(t, c, "in")
		for range 3 { // probes, which fail
			probe := one(t, r)
			isBusy(t, probe.(transport.Completer).CompleteWith(t.Context(), []transport.Operation{op("slow", "x")}), "slow")
			if err := probe.(transport.Postponer).Postpone(t.Context(), "slow"); err != nil {
				t.Fatal(err)
			}
		}
		f.set("slow", nil)
		began := time.Now()
		for range ds {
			if err := one(t, r).(transport.Completer).CompleteWith(t.Context(), []transport.Operation{op("slow", "x")}); err != nil {
				t.Fatal(err)
			}
		}
		if waited := time.Since(began); waited > 5*time.Second {
			t.Errorf("the messages were sent %v after the end of the lock", waited)
		}
		if n := f.count("slow"); n != 5 || len(c.Warnings()) > 0 {
			t.Errorf("%d messages, warnings %q", n, c.Warnings())
		}
	})
}

func TestAnImpededQueueIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newImpededFake("slow")
		c := open(t, f)
		f.set("slow", errFull)
		_, err := c.Dispatch(t.Context(), []transport.Operation{op("slow", "x")})
		isBusy(t, err, "slow")
		time.Sleep(2 * forgetAfter)
		if all := c.Warnings(); len(all) > 0 {
			t.Errorf("warnings %q about a queue that nothing is sent to", all)
		}
	})
}

func TestAFullDiskOfOneQueueFailsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newImpededFake("in", "out", "full")
		c := open(t, f)
		ds := claimed(t, c, 20)
		f.set("full", errFull)
		for i, err := range completeAll(t, ds, func(i int) string { return []string{"full", "out"}[min(i%4, 1)] }) {
			if i%4 == 0 {
				isBusy(t, err, "full")
			} else if err != nil {
				t.Errorf("delivery %d: %v", i, err)
			}
		}
	})
}

// A database that cannot write at all is in an outage: no queue is blamed.
func TestAFullDatabaseBlamesNoQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newImpededFake("in", "a", "b", "c")
		c := open(t, f)
		ds := claimed(t, c, 30)
		for _, q := range []string{"a", "b", "c"} {
			f.set(q, errFull)
		}
		blamed := 0
		for _, err := range completeAll(t, ds, func(i int) string { return []string{"a", "b", "c"}[i%3] }) {
			isErr(t, err, transport.ErrUnreachable)
			if _, busy := errors.AsType[*transport.BusyError](err); busy {
				blamed++
			}
		}
		// A batch may have had units for one queue only.
		if blamed == len(ds) {
			t.Error("each queue was blamed for a fault of the database")
		}
	})
}

// Queues are locked, full and well in turns. An operation succeeds if and only if its message is in
// the queue, once; a queue that is well fails no operation while the others are locked; when all
// are well again all messages can be sent.
func TestMoodsOfQueues(t *testing.T) {
	histories.Run(t, histories.Count{Short: 1_000, Test: 1_000, Soak: 100_000}, moods)
}

func moods(t *testing.T, r *rand.Rand) {
	queues := []string{"a", "b", "c", "d"}
	f := newImpededFake(append(queues, "in", "well")...)
	f.named = r.IntN(2) == 0
	c := open(t, f)
	ds := claimed(t, c, 20)
	var mu sync.Mutex
	sent := map[string]int{}
	var wg sync.WaitGroup
	for i := range 60 {
		pause := time.Duration(r.IntN(8000)) * time.Millisecond
		var ops []transport.Operation
		for range 1 + r.IntN(3) {
			ops = append(ops, op(append(queues, "well")[r.IntN(len(queues)+1)], fmt.Sprint(i)))
		}
		wg.Go(func() {
			time.Sleep(pause)
			var err error
			completes := i < len(ds)
			if completes {
				err = ds[i].(transport.Completer).CompleteWith(t.Context(), ops)
			} else {
				_, err = c.Dispatch(t.Context(), ops)
			}
			mu.Lock()
			defer mu.Unlock()
			var failed []int
			if err != nil {
				failed = failedOps(t, err)
				if !errors.Is(err, transport.ErrUnreachable) {
					t.Errorf("error %v", err)
				}
			}
			for n, o := range ops {
				switch {
				case completes && err != nil:
				case slices.Contains(failed, n) && o.Queue == "well":
					t.Errorf("operation %d of %d for the queue that is well: %v", n, i, err)
				case !slices.Contains(failed, n):
					sent[o.Queue]++
				}
			}
		})
	}
	for range 10 {
		time.Sleep(time.Duration(r.IntN(1500)) * time.Millisecond)
		f.set(queues[r.IntN(len(queues))], []error{nil, errLock}[r.IntN(2)])
	}
	for _, q := range queues {
		f.set(q, nil)
	}
	wg.Wait()
	for _, q := range append(queues, "well") {
		if n := f.count(q); n != sent[q] {
			t.Errorf("queue %q has %d messages, want %d", q, n, sent[q])
		}
	}
	time.Sleep(5 * time.Second)
	for _, q := range queues {
		send(t, c, op(q, "last"))
	}
}
