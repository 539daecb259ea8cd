package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// wrapped is a broker whose connections and receivers are wrapped by a test.
type wrapped struct {
	*inmemory.Transport
	limits   func(*transport.Limits)
	receiver func(queue string, r transport.Receiver) transport.Receiver
}

func (b *wrapped) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := b.Transport.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	return &wrappedConn{conn, conn.(transport.Installer), conn.(transport.Subscriber), conn.(transport.Inspector), b}, nil
}

type wrappedConn struct {
	transport.Conn
	transport.Installer
	transport.Subscriber
	transport.Inspector
	broker *wrapped
}

func (c *wrappedConn) Limits() transport.Limits {
	l := c.Conn.Limits()
	if c.broker.limits != nil {
		c.broker.limits(&l)
	}
	return l
}

func (c *wrappedConn) OpenReceiver(ctx context.Context, opts transport.ReceiverOptions) (transport.Receiver, error) {
	r, err := c.Conn.OpenReceiver(ctx, opts)
	if err != nil {
		return nil, err
	}
	return c.broker.receiver(opts.Queue, r), nil
}

// The failures that a process has seen are known in quarantine too.
func TestTheHistoryOfFailuresIsKeptInQuarantine(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var told harness.Tally
		var r *harness.Running
		paused := make(chan error, 1)
		cfg := watching(broker, &told, func(_ context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
			if s.Attempt().N == 2 {
				go func() { paused <- r.Pause(t.Context()) }()
				time.Sleep(time.Second) // the message returns to a queue that nothing receives from
			}
			return fmt.Errorf("failure %d", s.Attempt().N)
		})
		r = harness.Start(t, cfg)
		if err := broker.Put("sales", wire("m")); err != nil {
			t.Fatal(err)
		}
		if err := <-paused; err != nil {
			t.Fatal(err)
		}
		conn, err := broker.Open(t.Context(), transport.Env{})
		if err != nil {
			t.Fatal(err)
		}
		for range 6 { // other processes that crash
			crash(t, conn)
		}
		if err := r.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		want := []string{
			`attempt 1, immediate 1, handled 1, lost 0, after []`,
			`attempt 2, immediate 2, handled 2, lost 0, after ["failure 1"]`,
			`attempt 1, immediate 9, handled 3, lost 0, after ["failure 1" "failure 2"]`,
		}
		if diff := cmp.Diff(want, told.List()); diff != "" {
			t.Error(diff)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A message that was handled, but whose lease was lost before it could be completed, comes again:
// its failures are known.
func TestALeaseThatIsLostAtTheEndKeepsTheHistory(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Lease = 10 * time.Second
		var late atomic.Bool
		broker.Fail = func(verb, object string) error {
			if late.Load() && object == "sales" && (verb == "Complete" || verb == "Renew") {
				return transport.ErrLeaseLost
			}
			return nil
		}
		var told harness.Tally
		cfg := watching(broker, &told, func(_ context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
			late.Store(s.Attempt().N == 2)
			if s.Attempt().N == 2 {
				return nil
			}
			return fmt.Errorf("failure %d", s.Attempt().N)
		})
		cfg.Recoverability.Immediate = 2
		harness.Start(t, cfg)
		if err := broker.Put("sales", wire("m")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		want := []string{
			`attempt 1, immediate 1, handled 1, lost 0, after []`,
			`attempt 3, immediate 3, handled 2, lost 1, after ["failure 1"]`,
		}
		if diff := cmp.Diff(want, told.List()); diff != "" {
			t.Error(diff)
		}
	})
}

// A settle is not repeated once the lease is lost.
func TestASettleIsNotRepeatedAfterALostLease(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var verbs harness.Tally
		broker.Fail = func(verb, object string) error {
			if object == "sales" && slices.Contains([]string{"Complete", "CompleteWith", "Retry", "Release"}, verb) {
				verbs.Add(verb)
				return transport.ErrLeaseLost
			}
			return nil
		}
		for _, handle := range []func() error{func() error { return nil }, func() error { return errNo }} {
			r := harness.Start(t, harness.Sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error { return handle() })))
			r.MustSend(harness.PlaceOrder{})
			time.Sleep(time.Minute)
			r.End()
		}
		if diff := cmp.Diff([]string{"Complete", "Retry", "Retry"}, verbs.List()); diff != "" {
			t.Errorf("settled (-want +got):\n%s", diff)
		}
	})
}

var errConflict = errors.New("a conflict")

// openTx counts the transactions that are open.
type openTx struct {
	transport.Tx
	open *atomic.Int32
	once sync.Once
}

func (t *openTx) end() { t.once.Do(func() { t.open.Add(-1) }) }

func (t *openTx) Complete(ctx context.Context, ops []transport.Operation) error {
	defer t.end()
	return t.Tx.Complete(ctx, ops)
}

func (t *openTx) Rollback(ctx context.Context) error {
	defer t.end()
	return t.Tx.Rollback(ctx)
}

func (*openTx) Conflict(err error) bool { return errors.Is(err, errConflict) }

type txDelivery struct {
	transport.Delivery
	open *atomic.Int32
}

func (d *txDelivery) Begin(ctx context.Context) (transport.Tx, error) {
	tx, err := d.Delivery.(transport.Transactor).Begin(ctx)
	if err != nil {
		return nil, err
	}
	d.open.Add(1)
	return &openTx{Tx: tx, open: d.open}, nil
}

type txReceiver struct {
	transport.Receiver
	open *atomic.Int32
}

func (r *txReceiver) Receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	ds, err := r.Receiver.Receive(ctx, limit)
	for i, d := range ds {
		ds[i] = &txDelivery{d, r.open}
	}
	return ds, err
}

// A message that is kept for a pause keeps no transaction open meanwhile.
func TestAMessageThatIsKeptHasNoTransactionOpen(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var open atomic.Int32
		var begun harness.Tally
		cfg := harness.Sales(&wrapped{Transport: broker, receiver: func(_ string, r transport.Receiver) transport.Receiver {
			return &txReceiver{r, &open}
		}}, failing(&harness.Tally{}))
		cfg.Transactions, cfg.Recoverability = endpoint.SendsAtomicWithReceive, once
		cfg.OnFinalFailure = func(ctx context.Context, s *endpoint.Session, f recoverability.Failure) error {
			if _, err := s.Tx(ctx); err != nil {
				t.Error(err)
				return err
			}
			begun.Add(f.MessageID)
			return errConflict
		}
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{})
		synctest.Wait() // the pause has begun
		if h := r.Health(); h.Ready || len(begun.List()) != 1 {
			t.Fatalf("the message is not kept: %+v, %d transactions", h, len(begun.List()))
		}
		if n := open.Load(); n != 0 {
			t.Errorf("%d transactions are open during the pause", n)
		}
	})
}

type windowed struct {
	transport.Receiver
	window *atomic.Int32
}

func (r *windowed) Window(n int) { r.window.Store(int32(n)) }

// While attempts are limited nothing is prefetched: other instances may have what waits.
func TestWhileLimitedNothingIsPrefetched(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var window atomic.Int32
		o := &outage{}
		o.down.Store(true)
		cfg := harness.Sales(&wrapped{
			Transport: broker, limits: func(l *transport.Limits) { l.Prefetch = true },
			receiver: func(queue string, r transport.Receiver) transport.Receiver {
				if queue != "sales" {
					return r
				}
				return &windowed{r, &window}
			},
		}, endpoint.Handle(o.handle))
		cfg.Concurrency = 8
		cfg.Recoverability.RateLimit = recoverability.RateLimit{After: 3, Delay: time.Minute}
		r := harness.Start(t, cfg)
		r.MustSendMany(10)
		synctest.Wait()
		if n := window.Load(); n != 1 || len(r.Health().RateLimits) != 1 {
			t.Errorf("the window is %d while attempts are limited, want 1", n)
		}
		o.down.Store(false)
		time.Sleep(10 * time.Minute)
		if n := window.Load(); n < 8 {
			t.Errorf("the window is %d afterwards", n)
		}
	})
}

// A success of a message that was begun before the limit ends it for all at once.
func TestTheEndOfALimitWakesWhatWaits(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var down atomic.Bool
		down.Store(true)
		var handled harness.Tally
		cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, _ *endpoint.Session, o harness.PlaceOrder) error {
			switch {
			case o.ID == "slow":
				time.Sleep(10 * time.Second)
				down.Store(false)
			case o.ID == "held" && down.Load():
				time.Sleep(2 * time.Second) // it fails when attempts are limited, and waits for the next
			}
			if down.Load() {
				return errNo
			}
			handled.Add(o.ID)
			return nil
		}))
		cfg.Concurrency = 4
		cfg.Recoverability.RateLimit = recoverability.RateLimit{After: 6, Delay: time.Hour}
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{ID: "slow"})
		r.MustSend(harness.PlaceOrder{ID: "held"})
		synctest.Wait()
		r.MustSendMany(2)
		time.Sleep(5 * time.Second)
		if h := r.Health(); len(h.RateLimits) != 1 {
			t.Fatal("attempts are not limited")
		}
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if got := handled.List(); len(got) != 4 {
			t.Errorf("handled %q a second after the limit has ended, want all four", got)
		}
	})
}

// Once a quarantine has been visited, the next visit waits for handlers no longer than the first
// did.
func TestPatienceWithLongHandlersBeginsAgain(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var handled harness.Tally
		cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, _ *endpoint.Session, o harness.PlaceOrder) error {
			if o.ID == "long" {
				time.Sleep(30 * time.Minute)
			}
			handled.Add(o.ID)
			return nil
		}))
		cfg.Concurrency = 4
		r := harness.Start(t, cfg)
		for range 2 {
			r.MustSend(harness.PlaceOrder{ID: "long"})
			synctest.Wait()
			if err := broker.Put("sales.quarantine", wire("suspect")); err != nil {
				t.Fatal(err)
			}
			before := -1
			for range 120 { // the next look into the quarantine is within a minute
				n := count(handled.List(), "waits")
				r.MustSend(harness.PlaceOrder{ID: "waits"})
				synctest.Wait()
				if count(handled.List(), "waits") == n {
					before = n
					break
				}
				time.Sleep(time.Second)
			}
			if before < 0 {
				t.Fatal("the others do not rest for the message in quarantine")
			}
			time.Sleep(31 * time.Second)
			if count(handled.List(), "waits") == before {
				t.Error("the others rest for longer than 30 s")
			}
			time.Sleep(3 * time.Hour)
		}
		if n := count(handled.List(), "suspect"); n != 2 {
			t.Errorf("%d of 2 suspects are handled", n)
		}
	})
}
