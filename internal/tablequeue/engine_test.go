package tablequeue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

func open(t testing.TB, f interface{ parts() Store }) *Conn {
	c := Open(f.parts(), Config{Env: transport.Env{Endpoint: "e", Instance: "i"}})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func receiverOf(t testing.TB, c *Conn, queue string) transport.Receiver {
	t.Helper()
	r, err := c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: queue})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func msg(id string) *transport.Message {
	return &transport.Message{ID: id, Headers: header.New(header.Field{Name: "k", Value: id}), Body: []byte(id)}
}

func op(queue, id string) transport.Operation {
	return transport.Operation{Queue: queue, Message: msg(id)}
}

func send(t testing.TB, c *Conn, ops ...transport.Operation) {
	t.Helper()
	if _, err := c.Dispatch(t.Context(), ops); err != nil {
		t.Fatal(err)
	}
}

func one(t testing.TB, r transport.Receiver) transport.Delivery {
	t.Helper()
	ds, err := r.Receive(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	return ds[0]
}

func isErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error = %v, want %v", err, want)
	}
}

func failedOps(t testing.TB, err error) (indexes []int) {
	t.Helper()
	var d *transport.DispatchError
	if !errors.As(err, &d) {
		t.Fatalf("error = %v, want a DispatchError", err)
	}
	for _, op := range d.Ops {
		indexes = append(indexes, op.Index)
	}
	return indexes
}

// completeAll completes ds at once, each with a message to out, and gathers the errors.
func completeAll(t testing.TB, ds []transport.Delivery, out func(i int) string) []error {
	errs := make([]error, len(ds))
	var wg sync.WaitGroup
	for i, d := range ds {
		wg.Go(func() {
			errs[i] = d.(transport.Completer).CompleteWith(t.Context(), []transport.Operation{op(out(i), "x")})
		})
	}
	wg.Wait()
	return errs
}

func claimed(t testing.TB, c *Conn, n int) []transport.Delivery {
	t.Helper()
	for i := range n {
		send(t, c, op("in", fmt.Sprint(i)))
	}
	ds, err := receiverOf(t, c, "in").Receive(t.Context(), n)
	if err != nil || len(ds) != n {
		t.Fatalf("received %d, %v", len(ds), err)
	}
	return ds
}

func TestWhatIsSettledAtOnceGoesOutInFewFlushes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("in", "out")
		c := open(t, f)
		ds := claimed(t, c, 150)
		before := f.callsOf("flush")
		f.onFlush = func([]*Unit) error { time.Sleep(3 * time.Millisecond); return nil }
		start := time.Now()
		for i, err := range completeAll(t, ds, func(int) string { return "out" }) {
			if err != nil {
				t.Errorf("completion %d: %v", i, err)
			}
		}
		// At most one small flush of each flusher, then the rest together.
		if n := f.callsOf("flush") - before; n > 4 {
			t.Errorf("%d flushes, want at most 4", n)
		}
		if took := time.Since(start); took > 15*time.Millisecond {
			t.Errorf("took %v", took)
		}
		if f.count("out") != 150 || f.count("in") != 0 {
			t.Errorf("%d sent, %d left", f.count("out"), f.count("in"))
		}
		_ = c.Close()
	})
}

func TestARefusedUnitIsBisectedOut(t *testing.T) {
	f := newFake("in", "out")
	c := open(t, f)
	ds := claimed(t, c, 100)
	bad := map[int]bool{0: true, 37: true, 38: true, 99: true}
	errs := completeAll(t, ds, func(i int) string {
		if bad[i] {
			return "missing"
		}
		return "out"
	})
	for i, err := range errs {
		if !bad[i] && err != nil {
			t.Errorf("completion %d: %v", i, err)
		}
		if bad[i] && (!errors.Is(err, transport.ErrNoQueue) || !slices.Equal(failedOps(t, err), []int{0})) {
			t.Errorf("completion %d: %v, want ErrNoQueue of operation 0", i, err)
		}
	}
	if f.count("out") != 96 || f.count("in") != 4 {
		t.Errorf("%d sent, %d left", f.count("out"), f.count("in"))
	}
	isErr(t, ds[0].Complete(t.Context()), nil)
}

func TestADatabaseThatIsAwayHasRefusedNothing(t *testing.T) {
	f := newFake("in", "out")
	c := open(t, f)
	d := claimed(t, c, 1)[0]
	f.onFlush = func([]*Unit) error { return errAway }
	_, err := c.Dispatch(t.Context(), []transport.Operation{op("out", "a"), op("out", "b")})
	isErr(t, err, transport.ErrUnreachable)
	if got := failedOps(t, err); !slices.Equal(got, []int{0, 1}) {
		t.Errorf("failed operations %v", got)
	}
	tx, beginning := d.(transport.Transactor).Begin(t.Context())
	isErr(t, beginning, nil)
	for name, err := range map[string]error{
		"completion":                d.(transport.Completer).CompleteWith(t.Context(), []transport.Operation{op("out", "a")}),
		"completion of a handler's": tx.Complete(t.Context(), []transport.Operation{op("out", "a")}),
	} {
		var refused *transport.DispatchError
		if !errors.Is(err, transport.ErrUnreachable) || !errors.Is(err, errAway) || errors.As(err, &refused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	f.onFlush = func([]*Unit) error { return errors.New("of a handler's") }
	if err := d.Complete(t.Context()); err == nil || errors.Is(err, transport.ErrUnreachable) {
		t.Errorf("another failure: %v", err)
	}
	for _, f.onLoad = range []func() error{func() error { return errAway }, func() error { return errUnknown }} {
		_, err := c.Dispatch(t.Context(), []transport.Operation{{Types: []string{"T"}, Message: msg("x")}})
		isErr(t, err, transport.ErrUnreachable)
	}
}

// A refusal that names no queue counts for all operations.
func TestARefusalWithoutAQueueIsOfAllOperations(t *testing.T) {
	f := newFake("in", "out")
	c := open(t, f)
	d := claimed(t, c, 1)[0]
	f.onFlush = func([]*Unit) error { return errRefused }
	err := d.(transport.Completer).CompleteWith(t.Context(), []transport.Operation{op("out", "a"), op("out", "b")})
	isErr(t, err, errRefused)
	if got := failedOps(t, err); !slices.Equal(got, []int{0, 1}) {
		t.Errorf("failed operations %v", got)
	}
	isErr(t, d.Complete(t.Context()), errRefused)
}

func TestAConflictIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("in")
		c := open(t, f)
		ds := claimed(t, c, 2)
		left := conflicts - 1
		again := func() error {
			if left--; left >= 0 {
				return errConflict
			}
			return nil
		}
		f.onFlush = func([]*Unit) error { return again() }
		isErr(t, ds[0].Complete(t.Context()), nil)
		left = conflicts
		isErr(t, ds[1].Complete(t.Context()), errConflict)
		left, f.onRenew = conflicts-1, again
		isErr(t, receiverOf(t, c, "in").(transport.Renewer).Renew(t.Context(), ds[1:])[0], nil)
		_ = c.Close()
	})
}

func TestABrokenConnectionLeavesTheOutcomeUnknown(t *testing.T) {
	f := newFake("in")
	c := open(t, f)
	d := claimed(t, c, 1)[0]
	f.onFlush = func([]*Unit) error { return errUnknown }
	isErr(t, d.Complete(t.Context()), transport.ErrOutcomeUnknown)
	_, err := c.Dispatch(t.Context(), []transport.Operation{op("in", "x")})
	isErr(t, err, transport.ErrOutcomeUnknown)
	f.onFlush = func([]*Unit) error { return errAway }
	if err := d.Complete(t.Context()); !errors.Is(err, errAway) || errors.Is(err, transport.ErrOutcomeUnknown) {
		t.Errorf("error = %v, want that the database is away", err)
	}
	if n := f.callsOf("flush 1"); n != 1+2+1+reconnects {
		t.Errorf("%d flushes, want only the one repeated that was away", n)
	}
}

// A context that ends during a flush leaves the outcome unknown.
func TestAFlushCutByItsContextIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("in")
		c := open(t, f)
		d := claimed(t, c, 1)[0]
		f.onFlush = func([]*Unit) error { time.Sleep(time.Second); return nil }
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		isErr(t, d.Complete(ctx), transport.ErrOutcomeUnknown)
		ops := make([]transport.Operation, maxRows+10)
		for i := range ops {
			ops[i] = op("in", "x")
		}
		time.Sleep(time.Second)
		ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := c.Dispatch(ctx, ops)
		var d2 *transport.DispatchError
		if !errors.As(err, &d2) || len(d2.Ops) != len(ops) {
			t.Fatalf("error = %v, want one per operation", err)
		}
		isErr(t, d2.Ops[0].Err, transport.ErrOutcomeUnknown)
		if last := d2.Ops[len(ops)-1].Err; errors.Is(last, transport.ErrOutcomeUnknown) || !errors.Is(last, context.DeadlineExceeded) {
			t.Errorf("an operation that was never sent: %v", last)
		}
		_ = c.Close()
	})
}

func TestBadOperationsFailAndTheRestIsSent(t *testing.T) {
	f := newFake("out")
	c := open(t, f)
	large := op("out", "large")
	large.Message.Body = make([]byte, MaxBody+1)
	ops := []transport.Operation{
		op("out", "a"), op("bad name", "b"), {Queue: "out"}, {Message: msg("c")}, large, op("missing", "d"), op("out", "e"),
	}
	receipts, err := c.Dispatch(t.Context(), ops)
	if got := failedOps(t, err); !slices.Equal(got, []int{1, 2, 3, 4, 5}) {
		t.Errorf("failed operations %v: %v", got, err)
	}
	if tooLarge, ok := errors.AsType[*transport.TooLargeError](err); !ok || tooLarge.Size != MaxBody+1 || tooLarge.Max != MaxBody {
		t.Errorf("too large: %+v", tooLarge)
	}
	if f.count("out") != 2 || receipts != nil {
		t.Errorf("%d sent, receipts %v", f.count("out"), receipts)
	}
}

func TestALargeDispatchGoesOutInOrderAndInParts(t *testing.T) {
	f := newFake("out")
	c := open(t, f)
	var ops []transport.Operation
	for i := range 2*maxRows + 1 {
		ops = append(ops, op("out", fmt.Sprint(i)))
	}
	ops[700].Message.Body = make([]byte, maxChunkBytes)
	ops[maxRows+1].After = time.Hour
	receipts, err := c.Dispatch(t.Context(), ops)
	isErr(t, err, nil)
	for i, r := range f.rows["out"] {
		if r.ID != fmt.Sprint(i) {
			t.Fatalf("row %d is message %s", i, r.ID)
		}
	}
	if n := f.callsOf("flush"); n < 4 {
		t.Errorf("%d flushes, want 4 or more", n)
	}
	for i, r := range receipts {
		if want := i == maxRows+1; (r.Cancel != "") != want {
			t.Errorf("receipt %d is %+v", i, r)
		}
	}
	isErr(t, c.Cancel(t.Context(), receipts[maxRows+1].Cancel), nil)
	isErr(t, c.Cancel(t.Context(), receipts[maxRows+1].Cancel), transport.ErrNotFound)
}

func TestABatchIsCutByItsBytes(t *testing.T) {
	f := newFake("out")
	c := open(t, f)
	works := make([]*work, 5)
	for i := range works {
		w := &work{unit: Unit{Rows: []Row{{Queue: "out", Body: make([]byte, maxFlushBytes/2)}}}}
		w.unit.of = &w.outcome
		works[i] = w
	}
	c.writer.units.DoAll(t.Context(), works)
	if got := f.callsOf("flush 2"); got != 2 || f.callsOf("flush") != 3 {
		t.Errorf("flushes %q, want two of 2 and one of 1", f.calls)
	}
}

func TestAnEmptyQueueIsPolledLessAndLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("in")
		c := open(t, f)
		r := receiverOf(t, c, "in")
		for range 2 { // two at once cost no more than one
			go func() { _, _ = r.Receive(t.Context(), 1) }()
		}
		time.Sleep(10 * time.Second)
		before := f.callsOf("claim")
		time.Sleep(10 * time.Second)
		if n := f.callsOf("claim") - before; n != 20 {
			t.Errorf("%d looks at an empty queue in 10 s, want one per %v", n, maxPause)
		}
		_ = c.Close()
	})
}

func TestAReceiverWakesForASendAndWhenARowIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, newFake("in"))
		r := receiverOf(t, c, "in")
		got := make(chan transport.Delivery)
		go func() {
			for {
				ds, err := r.Receive(t.Context(), 1)
				if err != nil {
					close(got)
					return
				}
				got <- ds[0]
			}
		}()
		time.Sleep(time.Minute + 123*time.Millisecond)
		start := time.Now()
		send(t, c, op("in", "now"))
		d := <-got
		if took := time.Since(start); took > 0 {
			t.Errorf("a send woke the receiver after %v", took)
		}
		isErr(t, d.Complete(t.Context()), nil)
		time.Sleep(time.Minute + 321*time.Millisecond)
		start = time.Now()
		later := op("in", "later")
		later.After = 777 * time.Millisecond
		send(t, c, later)
		d = <-got
		if took := time.Since(start) - later.After; took < 0 || took > 2*time.Millisecond {
			t.Errorf("a row was delivered %v after it was due", took)
		}
		isErr(t, d.Retry(t.Context()), nil)
		d = <-got
		start = time.Now()
		isErr(t, d.Release(t.Context()), nil)
		if d = <-got; time.Since(start) > 0 || d.Attempt() != (transport.Attempt{N: 2, Exact: true}) {
			t.Errorf("a released message came after %v at attempt %+v", time.Since(start), d.Attempt())
		}
		_ = c.Close()
		<-got
	})
}

func TestAChangeOfSubscriptionsIsToldAndHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newWakingFake("in", "out")
		c := open(t, f)
		receiverOf(t, c, "in") // who receives, hears
		event := transport.Operation{Message: msg("1"), Types: []string{"T"}}
		send(t, c, event)
		f.mu.Lock()
		f.subs = append(f.subs, Subscription{"T", "out"})
		f.mu.Unlock()
		f.heard <- ""
		synctest.Wait()
		if send(t, c, event); f.count("out") != 1 {
			t.Error("a subscriber was missed that another process has told of")
		}
		isErr(t, c.Unsubscribe(t.Context(), "out", []string{"T"}), nil)
		for got := range f.notified {
			if slices.Contains(got, "") {
				break
			}
		}
		_ = c.Close()
	})
}

func TestNotificationsWakeAndAreThrottled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newWakingFake("in", "out")
		c := open(t, f)
		r := receiverOf(t, c, "in")
		go func() { _, _ = r.Receive(t.Context(), 1) }()
		time.Sleep(10 * time.Second)
		before := f.callsOf("claim")
		time.Sleep(10 * time.Second)
		if n := f.callsOf("claim") - before; n != 10 {
			t.Errorf("%d looks in 10 s while notifications arrive, want 10", n)
		}
		before = f.callsOf("claim")
		time.Sleep(300 * time.Millisecond)
		f.heard <- "in"
		f.heard <- "other"
		synctest.Wait()
		if n := f.callsOf("claim") - before; n != 1 {
			t.Errorf("a notification made %d looks, want 1", n)
		}
		for range 100 { // within 100 ms
			send(t, c, op("out", "x"), op("in", "y"))
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		if n := len(f.notified); n < 2 || n > 4 {
			t.Errorf("%d notifications of 100 sends within 100 ms, want one per %v", n, notifyEvery)
		}
		if got := <-f.notified; !slices.Equal(got, []string{"in", "out"}) && !slices.Equal(got, []string{"out"}) {
			t.Errorf("notified %q", got)
		}
		_ = c.Close()
	})
}

func TestABrokenListenerIsStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newWakingFake("in")
		c := open(t, f)
		r := receiverOf(t, c, "in")
		go func() { _, _ = r.Receive(t.Context(), 1) }()
		time.Sleep(10 * time.Second)
		f.mu.Lock()
		old := f.heard
		f.heard = make(chan string)
		f.mu.Unlock()
		close(old)
		time.Sleep(10 * time.Second)
		before := f.callsOf("claim")
		f.heard <- "in"
		synctest.Wait()
		if n := f.callsOf("claim") - before; n != 1 {
			t.Errorf("a notification made %d looks, want 1", n)
		}
		if n := f.callsOf("listen"); n != 2 {
			t.Errorf("listened %d times, want 2", n)
		}
		_ = c.Close()
	})
}

func TestCloseReleasesTellsOthersAndRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newWakingFake("in")
		c := open(t, f)
		d := claimed(t, c, 1)[0]
		time.Sleep(time.Second)
		for len(f.notified) > 0 {
			<-f.notified
		}
		result := make(chan error)
		r := receiverOf(t, c, "in")
		go func() {
			_, err := r.Receive(t.Context(), 1)
			result <- err
		}()
		synctest.Wait()
		isErr(t, c.Close(), nil)
		isErr(t, c.Close(), nil)
		isErr(t, <-result, transport.ErrClosed)
		if row := f.rows["in"][0]; row.lease != 0 || row.count != 1 || !f.closed {
			t.Errorf("row %+v after Close", row)
		}
		if got := <-f.notified; !slices.Equal(got, []string{"in"}) {
			t.Errorf("others were notified of %q", got)
		}
		isErr(t, d.Complete(t.Context()), transport.ErrClosed)
		_, err := c.Dispatch(t.Context(), []transport.Operation{op("in", "x")})
		isErr(t, err, transport.ErrClosed)
		isErr(t, r.(transport.Renewer).Renew(t.Context(), []transport.Delivery{claimless(c)})[0], transport.ErrClosed)
		isErr(t, c.Install(t.Context(), transport.Plan{}), transport.ErrClosed)
		isErr(t, c.Cancel(t.Context(), "1@in"), transport.ErrClosed)
		_, err = c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: "in"})
		isErr(t, err, transport.ErrClosed)
		_, err = r.Receive(t.Context(), 1)
		isErr(t, err, transport.ErrClosed)
	})
}

// claimless is a delivery of a row that does not exist.
func claimless(c *Conn) *delivery {
	return &delivery{settler: c.settler, queue: "in", lease: Lease{1, 2}}
}

// silent is a store on a server that answers nothing any more.
type silent struct{ *fake }

func (f silent) parts() Store {
	s := f.fake.parts()
	s.Topology, s.Transactions, s.Subscriptions = f, f, f
	return s
}

func (silent) Inspect(ctx context.Context, _ string) (transport.QueueStats, error) {
	<-ctx.Done()
	return transport.QueueStats{}, context.Cause(ctx)
}

func (silent) Begin(ctx context.Context) (StoreTx, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

func (silent) Subscriptions(ctx context.Context) ([]Subscription, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

func TestCloseBreaksOffWhatWouldWaitForEver(t *testing.T) {
	for name, wait := range map[string]func(ctx context.Context, c *Conn, d transport.Delivery) error{
		"inspect": func(ctx context.Context, c *Conn, _ transport.Delivery) error {
			_, err := c.Inspect(ctx, "in")
			return err
		},
		"begin": func(ctx context.Context, _ *Conn, d transport.Delivery) error {
			_, err := d.(transport.Transactor).Begin(ctx)
			return err
		},
		"publish": func(ctx context.Context, c *Conn, _ transport.Delivery) error {
			_, err := c.Dispatch(ctx, []transport.Operation{{Types: []string{"T"}, Message: msg("x")}})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake("in")
				c := open(t, silent{f})
				d := claimed(t, c, 1)[0]
				ended := make(chan error, 1)
				go func() { ended <- wait(context.Background(), c, d) }()
				synctest.Wait()
				start := time.Now()
				_ = c.Close()
				if took := time.Since(start); took > 2*maxClose {
					t.Errorf("Close took %v", took)
				}
				isErr(t, <-ended, context.Canceled)
				isErr(t, wait(context.Background(), c, d), transport.ErrClosed)
			})
		})
	}
}

// A closed receiver ends, and its deliveries can be settled.
func TestDeliveriesOfAClosedReceiverCanBeSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, newFake("in"))
		send(t, c, op("in", "1"))
		r := receiverOf(t, c, "in")
		d := one(t, r)
		results := make(chan error)
		for range 3 {
			go func() {
				_, err := r.Receive(t.Context(), 1)
				results <- err
			}()
		}
		synctest.Wait()
		isErr(t, r.Close(), nil)
		isErr(t, r.Close(), nil)
		for range 3 {
			isErr(t, <-results, transport.ErrClosed)
		}
		isErr(t, d.Complete(t.Context()), nil)
		_ = c.Close()
	})
}

func TestReceiveReturnsAtOnceWhenItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, newFake("in"))
		r := receiverOf(t, c, "in")
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			start := time.Now()
			_, err := r.Receive(ctx, 1)
			cancel()
			isErr(t, err, context.DeadlineExceeded)
			if took := time.Since(start); took != time.Second {
				t.Errorf("returned after %v", took)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := r.Receive(ctx, 1)
		isErr(t, err, context.Canceled)
		_ = c.Close()
	})
}

func TestRowsTakenWhileTheContextEndsAreReturned(t *testing.T) {
	f := newFake("in")
	c := open(t, f)
	send(t, c, op("in", "1"))
	r := receiverOf(t, c, "in")
	ctx, cancel := context.WithCancel(t.Context())
	f.onClaim = func() error { cancel(); return nil }
	ds, err := r.Receive(ctx, 1)
	if err != nil || len(ds) != 1 {
		t.Errorf("Receive = %d, %v, want the message", len(ds), err)
	}
}

func TestRowsOfAClaimWhoseAnswerWasLostAreGivenBack(t *testing.T) {
	f := newFake("in")
	c := open(t, f)
	r := receiverOf(t, c, "in")
	send(t, c, op("in", "1"))
	f.afterClaim = func() error { return errUnknown }
	_, err := r.Receive(t.Context(), 1)
	isErr(t, err, errUnknown)
	f.afterClaim = nil
	if n := one(t, r).Attempt().N; n != 2 {
		t.Errorf("attempt %d, want 2: the first was lost", n)
	}
	f.afterClaim = func() error { return errAway } // which says that nothing has happened
	_, err = r.Receive(t.Context(), 1)
	isErr(t, err, errAway)
	if n := f.callsOf("orphans 1"); n != 1 {
		t.Errorf("gave back %d times, want once", n)
	}
}

func TestReceiveReportsWhatTheDatabaseSays(t *testing.T) {
	f := newFake("in")
	c := open(t, f)
	r := receiverOf(t, c, "in")
	f.onClaim = func() error { return errAway }
	_, err := r.Receive(t.Context(), 1)
	isErr(t, err, errAway)
	f.onClaim = nil
	send(t, c, op("in", "1"))
	one(t, r)
	_, err = c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: "missing"})
	isErr(t, err, transport.ErrNoQueue)
	if _, err = c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: "bad"}); err == nil {
		t.Error("a receiver of an impossible name was opened")
	}
}

func TestExpiredRowsAreRemovedAndTheNextAreHandedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("in")
		c := open(t, f)
		for i := range 5 {
			o := op("in", fmt.Sprint(i))
			o.TTL = time.Second
			send(t, c, o)
		}
		send(t, c, op("in", "kept"))
		time.Sleep(time.Second)
		ds, err := receiverOf(t, c, "in").Receive(t.Context(), 2)
		if err != nil || len(ds) != 1 || ds[0].Message().ID != "kept" {
			t.Fatalf("received %d, %v", len(ds), err)
		}
		if n := f.count("in"); n != 1 {
			t.Errorf("%d rows left, want 1", n)
		}
		_ = c.Close()
	})
}

// The removal of many expired rows holds up no receiver.
func TestRemovalOfExpiredRowsHoldsUpNoReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("in")
		c := open(t, f)
		for range 4 * maxExpired {
			o := op("in", "dead")
			o.TTL = time.Nanosecond
			send(t, c, o)
		}
		send(t, c, op("in", "alive"))
		f.onClaim = func() error { time.Sleep(maxWait / maxExpired / 2); return nil } // all of them take longer than one claim may
		time.Sleep(time.Second)
		ds, err := receiverOf(t, c, "in").Receive(t.Context(), 1)
		if err != nil || len(ds) != 1 || ds[0].Message().ID != "alive" {
			t.Errorf("received %v, %v", ds, err)
		}
		_ = c.Close()
	})
}

func TestDeliveriesComeInTheOrderOfSending(t *testing.T) {
	ds := claimed(t, open(t, newFake("in")), 20)
	for i, d := range ds {
		if m := d.Message(); m.ID != fmt.Sprint(i) || m.NativeID != fmt.Sprint(i+1) || string(m.Body) != m.ID || m.Headers.Get("k") != m.ID {
			t.Errorf("delivery %d is %+v", i, m)
		}
	}
}

func TestRenewLeavesAloneWhatIsBeingSettled(t *testing.T) {
	f := newFake("in")
	c := open(t, f)
	ds := claimed(t, c, 3)
	r := receiverOf(t, c, "in").(transport.Renewer)
	f.onFlush = func([]*Unit) error { return errAway }
	isErr(t, ds[0].Complete(t.Context()), errAway)
	f.onFlush = nil
	isErr(t, ds[1].Complete(t.Context()), nil)
	f.rows["in"][1].lease = -1
	errs := r.Renew(t.Context(), append(ds, foreign{}))
	isErr(t, errs[0], nil) // failed to be settled: held still
	isErr(t, errs[1], nil) // settled
	isErr(t, errs[2], transport.ErrLeaseLost)
	isErr(t, errs[3], errForeign)
	if n := f.callsOf("renew 2"); n != 1 {
		t.Errorf("calls %q, want one renewal of 2", f.calls)
	}
	isErr(t, r.Renew(t.Context(), ds[1:2])[0], nil)
	f.onRenew = func() error { return errAway }
	isErr(t, r.Renew(t.Context(), ds[:1])[0], errAway)
}

// A handler's transaction may commit between the moment when a renewal picks its lease and the
// statement: the row is gone then, and no other instance will handle the message.
func TestARenewalThatCrossesACompletionLosesNothing(t *testing.T) {
	f := newFake("in")
	c := open(t, f)
	ds := claimed(t, c, 2)
	other := receiverOf(t, c, "in").(transport.Renewer)
	f.onRenew = func() error {
		f.mu.Unlock() // which Renew holds
		defer f.mu.Lock()
		return ds[0].Complete(t.Context())
	}
	errs := other.Renew(t.Context(), ds)
	isErr(t, errs[0], nil)
	isErr(t, errs[1], nil)
	if n := f.count("in"); n != 1 {
		t.Errorf("%d rows left, want that of the other message", n)
	}
}

// A Receive whose context ends fails with the cause of that, whatever the broken-off claim says.
func TestAClaimThatTheContextEndsFailsWithItsCause(t *testing.T) {
	f := newFake("in")
	r := receiverOf(t, open(t, f), "in")
	cause := errors.New("the endpoint stops")
	ctx, cancel := context.WithCancelCause(t.Context())
	f.onClaim = func() error { cancel(cause); return errAway }
	_, err := r.Receive(ctx, 1)
	isErr(t, err, cause)
	if errors.Is(err, errAway) {
		t.Errorf("error = %v, want the cause alone", err)
	}
}

type foreign struct{ transport.Delivery }

func TestSubscribersAreReadSeldomAndEachGetsOneCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a", "b")
		c, other := open(t, f), open(t, f)
		ctx := t.Context()
		isErr(t, c.Subscribe(ctx, "a", []string{"T", "Base"}), nil)
		isErr(t, c.Subscribe(ctx, "b", []string{"Base"}), nil)
		event := transport.Operation{Message: msg("1"), Types: []string{"T", "Base"}}
		for range 10 {
			send(t, c, event)
			send(t, other, event)
		}
		if f.count("a") != 20 || f.count("b") != 20 || f.loads != 2 {
			t.Errorf("%d and %d copies, %d reads, want 20, 20 and 2", f.count("a"), f.count("b"), f.loads)
		}
		isErr(t, c.Unsubscribe(ctx, "b", []string{"Base"}), nil)
		send(t, c, event)
		if f.count("b") != 20 {
			t.Error("a subscription outlived its end in the same process")
		}
		time.Sleep(subscriptionsAge + 1)
		send(t, other, event)
		if f.count("b") != 20 || f.count("a") != 22 {
			t.Error("a subscription outlived its end in another process by more than its age")
		}
		send(t, c, transport.Operation{Message: msg("1"), Types: []string{"Unknown"}})
		_, err := c.Dispatch(ctx, []transport.Operation{{Message: msg("1"), Types: []string{"T"}, After: time.Hour}})
		isErr(t, err, nil)
		_, _ = c.Close(), other.Close()
	})
}

func TestATransactionCompletesOrRollsBack(t *testing.T) {
	f := newFake("in", "out")
	c := open(t, f)
	if !c.Limits().Atomic {
		t.Error("atomic mode is not offered")
	}
	ds := claimed(t, c, 4)
	begin := func(d transport.Delivery) (transport.Tx, *fakeTx) {
		tx, err := d.(transport.Transactor).Begin(t.Context())
		isErr(t, err, nil)
		inner, ok := Inner(transport.NewHandlerTx(tx))
		if !ok {
			t.Fatal("Inner does not know its own")
		}
		return tx, inner.(*fakeTx)
	}
	tx, _ := begin(ds[0])
	isErr(t, tx.Complete(t.Context(), []transport.Operation{op("out", "x")}), nil)
	if f.count("in") != 3 || f.count("out") != 1 {
		t.Errorf("%d left, %d sent", f.count("in"), f.count("out"))
	}
	tx, inner := begin(ds[1])
	err := tx.Complete(t.Context(), []transport.Operation{op("out", "x"), op("bad", "y")})
	if got := failedOps(t, err); !slices.Equal(got, []int{1}) || inner.rolledBack != 1 {
		t.Errorf("failed operations %v, rolled back %d times", got, inner.rolledBack)
	}
	tx, _ = begin(ds[1])
	err = tx.Complete(t.Context(), []transport.Operation{op("out", "x"), op("missing", "y")})
	if got := failedOps(t, err); !slices.Equal(got, []int{1}) {
		t.Errorf("failed operations %v", got)
	}
	f.rows["in"][1].lease = -1
	tx, _ = begin(ds[2])
	isErr(t, tx.Complete(t.Context(), nil), transport.ErrLeaseLost)
	f.onFlush = func([]*Unit) error { return errUnknown }
	tx, _ = begin(ds[3])
	isErr(t, tx.Complete(t.Context(), nil), transport.ErrOutcomeUnknown)
	f.onFlush = func([]*Unit) error { return errConflict }
	tx, _ = begin(ds[3])
	isErr(t, tx.Complete(t.Context(), nil), transport.ErrConflict)
	tx, inner = begin(ds[3])
	isErr(t, tx.Rollback(t.Context()), nil)
	if inner.rolledBack != 1 {
		t.Error("not rolled back")
	}
	if _, ok := Inner(transport.HandlerTx{}); ok {
		t.Error("Inner knows what is not its own")
	}
}

func TestASendToThisProcessWakesOnlyItsQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("in", "other")
		c := open(t, f)
		r := receiverOf(t, c, "other")
		go func() { _, _ = r.Receive(t.Context(), 1) }()
		time.Sleep(time.Minute + 200*time.Millisecond)
		before := f.callsOf("claim")
		send(t, c, op("in", "x"))
		synctest.Wait()
		if n := f.callsOf("claim") - before; n != 0 {
			t.Errorf("%d looks at another queue", n)
		}
		_ = c.Close()
	})
}

// addressed is a store whose queues have addresses.
type addressed struct{ *fake }

func (f addressed) parts() Store {
	s := f.fake.parts()
	s.Addresser = f
	return s
}

func (addressed) Address(queue string) string     { return "at " + strings.TrimPrefix(queue, "at ") }
func (addressed) ShortName(address string) string { return strings.TrimPrefix(address, "at ") }

func TestASendByTheAddressOfAQueueWakesItsReceivers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := addressed{newFake("in")}
		c := open(t, f)
		r := receiverOf(t, c, "in")
		go func() { _, _ = r.Receive(t.Context(), 1) }()
		time.Sleep(time.Minute + 200*time.Millisecond)
		before := f.callsOf("claim")
		send(t, c, op("at in", "x"))
		synctest.Wait()
		if n := f.callsOf("claim") - before; n != 1 {
			t.Errorf("%d looks at the queue, want one at once", n)
		}
		_ = r.Close()
		_ = c.Close()
	})
}

func TestAnIDThatNoDatabaseKeepsIsMendedForItsColumn(t *testing.T) {
	for id, want := range map[string]string{"": "", "ünï-1": "ünï-1", "a\x00b": "a\ufffdb", "\xff": "\ufffd"} {
		if got := storable(id); got != want {
			t.Errorf("%q is stored as %q, want %q", id, got, want)
		}
	}
}

// FuzzMessage holds the decoding of a row's headers to its promise: readable or
// undecodable, and never a panic.
func FuzzMessage(f *testing.F) {
	for _, seed := range []string{`{}`, `{"a":"b"}`, `{"NServiceBus.MessageId":"x","n":1,"t":true,"z":null}`, `{"a":`, ``, `[]`, `{"a":{"b":1}}`, "{\"\\ud800\":\"\xff\"}"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, headers string) {
		var m transport.Message
		message(&m, &Claimed{Seq: 7, ID: "column", Headers: headers, Body: []byte("b")})
		switch {
		case m.Undecodable != nil:
			if m.Native[NativeHeaders] != headers || m.ID != "column" || m.Headers.Len() != 1 || m.Headers.Get(header.UndecodableHeaders) != header.FormatUndecodable(headers) {
				t.Errorf("undecodable %q came out as %+v", headers, m)
			}
		case m.Headers.Get(header.MessageID) != "" && m.ID != m.Headers.Get(header.MessageID):
			t.Errorf("id %q, want the one in the headers %q", m.ID, headers)
		case !strings.Contains(headers, "{"):
			t.Errorf("%q was decoded", headers)
		}
		if m.NativeID != "7" || string(m.Body) != "b" {
			t.Errorf("message %+v", m)
		}
	})
}

// Close cancels a claim that the database does not answer, and Receive then says that the Conn is
// closed.
func TestCloseEndsAClaimWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("in")
		c := open(t, f)
		r := receiverOf(t, c, "in")
		silent := &silentClaims{fake: f}
		c.store.Queues = silent
		ended := make(chan error, 1)
		go func() {
			_, err := r.Receive(t.Context(), 1)
			ended <- err
		}()
		synctest.Wait()
		if !silent.waits.Load() {
			t.Fatal("no claim waits for its answer")
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		isErr(t, <-ended, transport.ErrClosed)
	})
}

// silentClaims is a fake that answers no claim.
type silentClaims struct {
	*fake
	waits atomic.Bool
}

func (f *silentClaims) Claim(ctx context.Context, _ Claim, _ []Claimed) ([]Claimed, time.Duration, error) {
	f.waits.Store(true)
	<-ctx.Done()
	return nil, 0, errUnknown
}

// After an outage every connection of a pool may be dead: Close abandons the leases over a new one.
func TestCloseOutlastsDeadConnections(t *testing.T) {
	f := newFake("in")
	c := open(t, f)
	claimed(t, c, 3)
	f.mu.Lock()
	f.deadConns = 30
	f.mu.Unlock()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	for _, r := range f.rows["in"] {
		if r.lease != 0 {
			t.Errorf("message %d is leased", r.Seq)
		}
	}
}
