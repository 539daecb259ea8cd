package tablequeue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// lockingFake is a fake whose tables can be locked.
type lockingFake struct {
	*fake
	locks    map[string]bool // guarded by the fake's mu
	hastened []int64         // likewise
}

var errLock = errors.New("fake: lock timeout")

func newLockingFake(queues ...string) *lockingFake {
	return &lockingFake{fake: newFake(queues...), locks: map[string]bool{}}
}

func (f *lockingFake) parts() Store {
	s := f.fake.parts()
	s.Queues, s.Classify, s.Locks, s.Hastener = f, f.Classify, f, f
	return s
}

func (f *lockingFake) set(queue string, locked bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.locks[queue] = locked
}

func (f *lockingFake) Flush(ctx context.Context, units []*Unit) error {
	f.mu.Lock()
	locked := slices.ContainsFunc(destinations(units...), func(q string) bool { return f.locks[q] })
	f.mu.Unlock()
	if locked {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.called("lock timeout")
		return errLock
	}
	return f.fake.Flush(ctx, units)
}

func (f *lockingFake) FlushWaiting(ctx context.Context, units []*Unit) error {
	return f.fake.Flush(ctx, units)
}

func (f *lockingFake) Locked(_ context.Context, queues []string) ([]bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.called("locked %d", len(queues))
	locked := make([]bool, len(queues))
	for i, q := range queues {
		locked[i] = f.locks[q]
	}
	return locked, nil
}

func (f *lockingFake) Hasten(_ context.Context, queue string, seqs []int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hastened = append(f.hastened, seqs...)
	for _, r := range f.rows[queue] {
		if slices.Contains(seqs, r.Seq) && r.lease == 0 {
			r.visible = time.Now()
		}
	}
	return nil
}

func (f *lockingFake) Classify(err error) Class {
	if errors.Is(err, errLock) {
		return Locked
	}
	return f.fake.Classify(err)
}

func TestALockedTableFailsOnlyWhatIsSentToIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newLockingFake("in", "out", "locked")
		c := open(t, f)
		f.set("locked", true)
		ds := claimed(t, c, 20)
		errs := completeAll(t, ds, func(i int) string {
			if i%10 == 0 {
				return "locked"
			}
			return "out"
		})
		for i, err := range errs {
			var busy *transport.BusyError
			switch {
			case i%10 == 0 && (!errors.As(err, &busy) || busy.Queue != "locked" || !errors.Is(err, transport.ErrUnreachable)):
				t.Errorf("error %v of delivery %d, want that its queue is busy", err, i)
			case i%10 != 0 && err != nil:
				t.Errorf("delivery %d: %v", i, err)
			}
		}
		if n := f.count("out"); n != 18 {
			t.Errorf("%d messages were sent, want 18", n)
		}
		waits := f.callsOf("lock timeout")
		_, err := c.Dispatch(t.Context(), []transport.Operation{op("out", "a"), op("locked", "b")})
		if diff := cmp.Diff([]int{1}, failedOps(t, err)); diff != "" {
			t.Error(diff)
		}
		if n := f.callsOf("lock timeout"); n != waits {
			t.Error("a send to a queue that is known to be locked waited for the lock")
		}
	})
}

func TestPostponedDeliveriesComeWhenTheLockEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newLockingFake("in", "locked")
		c := open(t, f)
		f.set("locked", true)
		ds := claimed(t, c, 3)
		for _, err := range completeAll(t, ds, func(int) string { return "locked" }) {
			if err == nil {
				t.Error("a message was sent to a locked table")
			}
		}
		for _, d := range ds {
			if err := d.(transport.Postponer).Postpone(t.Context(), "locked"); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), postponedFor-time.Second)
		defer cancel()
		r := receiverOf(t, c, "in")
		if again, err := r.Receive(ctx, 3); len(again) != 0 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("received %d (%v) while the table was locked", len(again), err)
		}
		f.set("locked", false)
		began := time.Now()
		again, err := r.Receive(t.Context(), 3)
		if err != nil || len(again) != 3 {
			t.Fatalf("received %d, %v, want 3", len(again), err)
		}
		if waited := time.Since(began); waited > lockPoll {
			t.Errorf("they came %v after the end of the lock", waited)
		}
		for _, d := range again {
			if n := d.Attempt().N; n != 1 {
				t.Errorf("attempt %d, want 1", n)
			}
		}
		for _, err := range completeAll(t, again, func(int) string { return "locked" }) {
			if err != nil {
				t.Error(err)
			}
		}
		if looks := f.callsOf("locked"); c.unusable.known.Load() != 0 || looks == 0 {
			t.Errorf("%d looks, known %d", looks, c.unusable.known.Load())
		}
	})
}

// A lock that is on no table, such as on the row that is completed, is waited for as ever.
func TestALockOnNoTableIsWaitedFor(t *testing.T) {
	f := newLockingFake("in")
	c := open(t, f)
	d := claimed(t, c, 1)[0]
	row := &rowLocked{lockingFake: f}
	c.store.Queues, c.store.Locks = row, row
	if err := d.Complete(t.Context()); err != nil {
		t.Fatal(err)
	}
	if row.patient != 1 {
		t.Errorf("waited %d times, want once", row.patient)
	}
}

// rowLocked has a row that is locked for longer than Flush waits.
type rowLocked struct {
	*lockingFake
	patient int
}

func (f *rowLocked) Flush(context.Context, []*Unit) error { return errLock }

func (f *rowLocked) FlushWaiting(ctx context.Context, units []*Unit) error {
	f.patient++
	return f.lockingFake.FlushWaiting(ctx, units)
}

// Missing queues are looked for once: what is sent there within a second afterwards fails no batch.
func TestAMissingQueueFailsOneBatchInASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("in", "out")
		c := open(t, f)
		ds := claimed(t, c, 40)
		f.onFlush = func([]*Unit) error {
			time.Sleep(10 * time.Millisecond) // so that the rest gathers
			return nil
		}
		before := f.callsOf("flush")
		for i, err := range completeAll(t, ds, func(i int) string {
			if i%4 == 0 {
				return fmt.Sprintf("missing %d", i%8)
			}
			return "out"
		}) {
			if i%4 == 0 {
				isErr(t, err, transport.ErrNoQueue)
			} else if err != nil {
				t.Errorf("delivery %d: %v", i, err)
			}
		}
		if n := f.callsOf("flush") - before; n > 8 {
			t.Errorf("%d flushes of 40 deliveries: batches were halved", n)
		}
		flushes, looks := f.callsOf("flush"), f.callsOf("missing")
		for range 10 {
			_, err := c.Dispatch(t.Context(), []transport.Operation{op("missing 0", "x")})
			isErr(t, err, transport.ErrNoQueue)
		}
		if f.callsOf("flush") != flushes || f.callsOf("missing") != looks {
			t.Error("the database was asked for a queue that was missing just now")
		}
		f.mu.Lock()
		f.rows["missing 0"] = nil
		f.mu.Unlock()
		time.Sleep(missingAge + time.Millisecond)
		send(t, c, op("missing 0", "found"))
	})
}

func TestNamesOfMissingQueuesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, newFake())
		for i := range 3 * maxMissing {
			_, err := c.Dispatch(t.Context(), []transport.Operation{op(fmt.Sprint(i), "x")})
			isErr(t, err, transport.ErrNoQueue)
		}
		if n := len(c.unusable.missing); n > maxMissing {
			t.Errorf("%d names are remembered, want at most %d", n, maxMissing)
		}
	})
}

// A queue that this process creates takes messages at once.
func TestAnInstalledQueueIsNotMissing(t *testing.T) {
	c := open(t, newFake())
	_, err := c.Dispatch(t.Context(), []transport.Operation{op("q", "x")})
	isErr(t, err, transport.ErrNoQueue)
	if err := c.Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "q"}}}); err != nil {
		t.Fatal(err)
	}
	send(t, c, op("q", "y"))
}

func published(id string) transport.Operation {
	return transport.Operation{Message: msg(id), Types: []string{"T"}}
}

func TestASubscriberWithoutATableIsLeftOut(t *testing.T) {
	subscribed := func() *fake {
		f := newFake("in", "a", "b", "c")
		f.subs = []Subscription{{"T", "a"}, {"T", "b"}, {"T", "c"}, {"T", "bad name"}}
		return f
	}
	for name, publish := range map[string]func(t *testing.T, f *fake, c *Conn, id string) error{
		"alone": func(t *testing.T, _ *fake, c *Conn, id string) error {
			_, err := c.Dispatch(t.Context(), []transport.Operation{published(id)})
			return err
		},
		"with a completion": func(t *testing.T, _ *fake, c *Conn, id string) error {
			return claimed(t, c, 1)[0].(transport.Completer).CompleteWith(t.Context(), []transport.Operation{published(id)})
		},
		"in a user's transaction": func(t *testing.T, f *fake, c *Conn, id string) error {
			tx := &usersTx{}
			_, err := c.DispatchIn(t.Context(), tx, []transport.Operation{published(id)})
			f.mu.Lock()
			defer f.mu.Unlock()
			for i := range tx.rows {
				f.insert(&tx.rows[i])
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := subscribed()
				c := open(t, f)
				if err := publish(t, f, c, "1"); err != nil {
					t.Fatal(err)
				}
				f.mu.Lock()
				delete(f.rows, "b") // while the subscriptions are known
				f.mu.Unlock()
				for range 2 {
					if err := publish(t, f, c, "2"); err != nil {
						t.Fatal(err)
					}
				}
				if a, b := f.count("a"), f.count("c"); a != 3 || b != 3 {
					t.Errorf("the other subscribers have %d and %d events, want 3 each", a, b)
				}
			})
		})
	}
}

// A handler's transaction that met a subscriber without a table is repeated, as after a conflict.
func TestATransactionIsRepeatedWithoutALostSubscriber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("in", "a", "b")
		f.subs = []Subscription{{"T", "a"}, {"T", "b"}}
		c := open(t, f)
		send(t, c, published("known"))
		f.mu.Lock()
		delete(f.rows, "b")
		f.mu.Unlock()
		d := claimed(t, c, 1)[0].(transport.Transactor)
		for try := range 2 {
			tx, err := d.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			err = tx.Complete(t.Context(), []transport.Operation{published("x")})
			if again := err != nil && tx.(transport.ConflictDetector).Conflict(fmt.Errorf("dispatch: %w", err)); again != (try == 0) {
				t.Fatalf("try %d: %v, to be repeated: %v", try, err, again)
			}
		}
		if n := f.count("a"); n != 2 {
			t.Errorf("%d events, want 2", n)
		}
	})
}

// All subscribers get an event, or none: one whose queue is busy refuses it for all.
func TestABusySubscriberRefusesTheWholePublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newLockingFake("a", "b")
		f.subs = []Subscription{{"T", "a"}, {"T", "b"}}
		c := open(t, f)
		f.set("b", true)
		_, err := c.Dispatch(t.Context(), []transport.Operation{op("b", "finds it")})
		isErr(t, err, transport.ErrUnreachable)
		_, err = c.Dispatch(t.Context(), []transport.Operation{published("x")})
		isErr(t, err, transport.ErrUnreachable)
		if n := f.count("a"); n != 0 {
			t.Errorf("one subscriber got %d events that were refused", n)
		}
	})
}

// What was inserted and rolled back has no receipt.
func TestARowThatWasRolledBackHasNoReceipt(t *testing.T) {
	f := newFake("q")
	c := open(t, f)
	tries := 0
	f.onFlush = func(units []*Unit) error {
		if tries++; tries == 1 {
			units[0].Rows[0].Seq = 7 // and then the transaction was ended
			return errConflict
		}
		return errRefused
	}
	later := op("q", "x")
	later.After = time.Hour
	receipts, err := c.Dispatch(t.Context(), []transport.Operation{later})
	if err == nil || len(receipts) > 0 && receipts[0].Cancel != "" {
		t.Errorf("receipts %v with error %v, want none", receipts, err)
	}
}

func TestMoreHeadersThanCanBeReadAreNotSent(t *testing.T) {
	f := newFake("q")
	c := open(t, f)
	many := op("q", "x")
	for i := range header.MaxCount {
		many.Message.Headers.Set(fmt.Sprint(i), "")
	}
	_, err := c.Dispatch(t.Context(), []transport.Operation{many, op("q", "y")})
	if diff := cmp.Diff([]int{0}, failedOps(t, err)); diff != "" {
		t.Error(diff)
	}
	isErr(t, err, transport.ErrTooLarge)
}

// A receipt is given for a message that is due at a time, as for one that is due after one.
func TestAMessageDueAtATimeHasAReceipt(t *testing.T) {
	c := open(t, newFake("q"))
	at := op("q", "x")
	at.At = time.Now().Add(time.Hour)
	receipts, err := c.Dispatch(t.Context(), []transport.Operation{at})
	if err != nil || len(receipts) != 1 || receipts[0].Cancel == "" {
		t.Fatalf("receipts %v, %v", receipts, err)
	}
	if err := c.Cancel(t.Context(), receipts[0].Cancel); err != nil {
		t.Error(err)
	}
}

func TestWhatATransactionSendsWakesAReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newWakingFake("in", "out") // which polls once a second
		c := open(t, f)
		d := claimed(t, c, 1)[0].(transport.Transactor)
		r := receiverOf(t, c, "out")
		var got sync.WaitGroup
		var began time.Time
		got.Go(func() {
			one(t, r)
			if waited := time.Since(began); waited > 0 {
				t.Errorf("received %v after the commit", waited)
			}
		})
		time.Sleep(10 * time.Second) // the pauses of an idle receiver are at their longest
		synctest.Wait()
		time.Sleep(time.Millisecond)
		began = time.Now()
		tx, err := d.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := tx.Complete(t.Context(), []transport.Operation{op("out", "x")}); err != nil {
			t.Fatal(err)
		}
		got.Wait()
	})
}

// A subscription that is added while the table is read is seen by the next publish.
func TestASubscriptionDuringTheReadIsNotMissed(t *testing.T) {
	f := newFake("a", "b")
	f.subs = []Subscription{{"T", "a"}}
	c := open(t, f)
	late := &lateSubscriber{fake: f}
	late.read = func() {
		late.read = nil
		if err := c.Subscribe(t.Context(), "b", []string{"T"}); err != nil {
			t.Error(err)
		}
	}
	c.store.Subscriptions = late
	send(t, c, published("1"))
	send(t, c, published("2"))
	if n := f.count("b"); n != 1 {
		t.Errorf("the new subscriber has %d events, want the second", n)
	}
}

// lateSubscriber calls read when the subscriptions have been read.
type lateSubscriber struct {
	*fake
	read func()
}

func (f *lateSubscriber) Subscriptions(ctx context.Context) ([]Subscription, error) {
	all, err := f.fake.Subscriptions(ctx)
	if f.read != nil {
		f.read()
	}
	return all, err
}
