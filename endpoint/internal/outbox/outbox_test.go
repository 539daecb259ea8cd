package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/destination"
	"github.com/holdfast-go/holdfast/endpoint/internal/notify"
	"github.com/holdfast-go/holdfast/endpoint/internal/work"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
)

// fakeConn is a broker, and the database of an outbox.
type fakeConn struct {
	transport.Conn
	transport.OutboxStore

	err     error // of the database
	blocked bool
}

func (c *fakeConn) Limits() transport.Limits                           { return transport.Limits{} }
func (c *fakeConn) Store(context.Context, transport.OutboxEntry) error { return c.err }
func (c *fakeConn) Blocked() bool                                      { return c.blocked }

// The flag is set after a commit that has succeeded: the pauses of an outage depend on the flag.
func TestASuccessfulCommitIsNoted(t *testing.T) {
	for _, away := range []error{nil, transport.ErrUnreachable} {
		o, _ := New(&fakeConn{err: away}, "sales.outbox", "sales.handled")
		o.Committed = new(atomic.Bool)
		u := &work.Unit{Key: new(transport.HandledKey)}
		err := o.Commit(t.Context(), u, nil, nil, nil)
		if noted := o.Committed.Load(); !errors.Is(err, away) || noted != (away == nil) {
			t.Errorf("%v: a commit is noted: %t, error %v", away, noted, err)
		}
		if _, ok := errors.AsType[*work.CommitError](u.Failure()); ok != (away != nil) {
			t.Errorf("%v: the unit has failed with %v", away, u.Failure())
		}
	}
}

// fakeReceiver has lost the leases of all rows but the first.
type fakeReceiver struct{ transport.Receiver }

func (fakeReceiver) Renew(_ context.Context, ds []transport.Delivery) []error {
	errs := make([]error, len(ds))
	for i := range errs[1:] {
		errs[1+i] = fmt.Errorf("row: %w", transport.ErrLeaseLost)
	}
	return errs
}

// A row whose lease is lost is found at the first renewal, before the lease would end.
func TestLostRowsAreFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rows rowsHeld
		own, lost, removed := new(storedRow), new(storedRow), new(storedRow)
		for _, row := range []*storedRow{own, removed, lost} {
			rows.add(row)
		}
		rows.drop(func(row *storedRow) bool { return row == removed })
		stop := rows.renew(t.Context(), fakeReceiver{}, 6*time.Second)
		time.Sleep(2*time.Second + 1)
		synctest.Wait()
		if own.lost.Load() || !lost.lost.Load() || removed.lost.Load() {
			t.Errorf("lost: %v, %v, %v", own.lost.Load(), lost.lost.Load(), removed.lost.Load())
		}
		stop()
	})
}

// A received timer is due by the clock of the database, and the broker must not delay the timer
// once more.
func TestDelaysOfReceivedRows(t *testing.T) {
	now := time.Now()
	op := transport.Operation{At: now.Add(time.Minute)}
	if new(storedRow).setDelay(&op, now); op.After != time.Minute || !op.At.IsZero() {
		t.Errorf("a message: after %v, at %v", op.After, op.At)
	}
	op = transport.Operation{At: now.Add(time.Minute)}
	if (&storedRow{timer: "x"}).setDelay(&op, now); op.After != 0 || !op.At.IsZero() {
		t.Errorf("a timer: after %v, at %v", op.After, op.At)
	}
}

// perform has a sender send one operation in the time that send takes.
func perform(t *testing.T, conn *fakeConn, send func(context.Context) error) (*sender, *call, int) {
	t.Helper()
	yields := 0
	r := &sender{book: new(destination.Book)}
	r.Conn, r.Stage = conn, func(ctx context.Context, _ *pipeline.Relay) error { return send(ctx) }
	c := &call{ops: []transport.Operation{{Queue: "shipping"}}}
	r.perform(t.Context(), c, func() { yields++ })
	synctest.Wait()
	return r, c, yields
}

// The destination of a call that takes long is slow until the call returns.
func TestACallThatTakesLong(t *testing.T) {
	for _, took := range []time.Duration{destination.SlowAfter / 2, 3 * destination.SlowAfter} {
		synctest.Test(t, func(t *testing.T) {
			r, c, yields := perform(t, new(fakeConn), func(context.Context) error {
				time.Sleep(took)
				return nil
			})
			slow := took > destination.SlowAfter
			if (yields == 1) != slow || yields > 1 || c.expired || c.err != nil || !r.book.Calm() {
				t.Errorf("%v: %d yields, expired %v, error %v, calm %v", took, yields, c.expired, c.err, r.book.Calm())
			}
		})
	}
}

// A call without an answer ends, unless the broker is away: then a new call would get no answer
// either.
func TestACallWithoutAnAnswerEnds(t *testing.T) {
	for _, blocked := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			_, c, _ := perform(t, &fakeConn{blocked: blocked}, func(ctx context.Context) error {
				select {
				case <-ctx.Done():
					return context.Cause(ctx)
				case <-time.After(time.Hour):
					return nil
				}
			})
			if c.expired == blocked || errors.Is(c.err, errNoAnswer) == blocked {
				t.Errorf("blocked %v: expired %v after %v: %v", blocked, c.expired, time.Since(began), c.err)
			}
			if took := time.Since(began); !blocked && took != destination.AnswerWithin {
				t.Errorf("the call took %v", took)
			}
		})
	}
}

// outages is the receiver of a database that is away twice, and has no rows.
type outages struct {
	transport.Receiver

	began    time.Time
	received atomic.Int64 // since the begin of the second outage
}

const (
	firstOutage  = 5 * time.Minute  // to this time; a Receive fails after a minute
	secondOutage = 20 * time.Minute // from this time, for ten seconds; a Receive fails at once
)

func (r *outages) Receive(ctx context.Context, _ int) ([]transport.Delivery, error) {
	switch at := time.Since(r.began); {
	case at < firstOutage:
		time.Sleep(time.Minute)
	case at >= secondOutage && at < secondOutage+10*time.Second:
		r.received.Add(1)
	case at < secondOutage:
		time.Sleep(secondOutage - at) // the connection is lost then
	default:
		<-ctx.Done()
	}
	return nil, cmp.Or(context.Cause(ctx), transport.ErrUnreachable)
}

// A relay meets a second outage as the first: with short pauses.
func TestARelayForgetsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		receiver := &outages{began: time.Now()}
		r := &Relay{receiver: receiver, pause: backoff.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}}
		r.Notifier = notify.New(nil, slog.New(slog.DiscardHandler), nil)
		r.active, r.held = make(chan struct{}, 1), make(chan struct{}, 1)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { r.receiveAll(ctx, ctx) })
		since := func(at time.Duration) {
			time.Sleep(time.Until(receiver.began.Add(at)))
			synctest.Wait()
		}
		fails := func() bool {
			_, err := r.receiving.Failing()
			return err != nil
		}
		since(secondOutage - time.Second)
		if fails() {
			t.Error("the end of the first outage is not found")
		}
		since(secondOutage + time.Second)
		if n := receiver.received.Load(); !fails() || n < 3 {
			t.Errorf("after a second of the second outage: failing %v, %d receives", fails(), n)
		}
		cancel()
		running.Wait()
	})
}

// brokenConn is a database whose first receive fails.
type brokenConn struct {
	*fakeConn
	receives int
}

func (c *brokenConn) OpenReceiver(
	context.Context, transport.ReceiverOptions,
) (transport.Receiver, error) {
	return c, nil
}

func (c *brokenConn) Receive(ctx context.Context, _ int) ([]transport.Delivery, error) {
	switch c.receives++; c.receives {
	case 1:
		return nil, transport.ErrUnreachable
	case 2:
		return []transport.Delivery{unread{}}, nil
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (c *brokenConn) Window(int)   {}
func (c *brokenConn) Close() error { return nil }

// unread is a row that cannot be read.
type unread struct{ transport.Delivery }

func (unread) Message() *transport.Message { return &transport.Message{ID: "row-1"} }

// A row that arrives ends the outage of the receives at once.
func TestARowEndsAnOutageOfTheReceives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, log := &brokenConn{fakeConn: new(fakeConn)}, slog.New(slog.DiscardHandler)
		o, _ := New(conn, "sales.outbox", "sales.handled")
		r, err := OpenRelay(t.Context(), RelayConfig{
			Outbox: o, Conn: conn, Log: log, Notifier: notify.New(nil, log, nil),
			Settling: t.Context,
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { r.receiveAll(ctx, ctx); close(done) }()
		synctest.Wait()
		if got := len(r.Status().Problems); got != 1 {
			t.Errorf("after the failed receive there are %d problems", got)
		}
		time.Sleep(time.Second / 2) // less than a question to the driver
		synctest.Wait()
		if got := r.Status().Problems; len(got) > 0 || conn.receives != 3 {
			t.Errorf("after %d receives there are problems: %q", conn.receives, got)
		}
		end()
		<-done
	})
}

// A batch whose destination does not answer returns its tokens, and counts as stray until its end.
// Beyond the bound, and in order, a batch keeps its tokens.
func TestABatchIsStrayFromYieldToEnd(t *testing.T) {
	for _, c := range []struct {
		name         string
		before       int32 // stray batches
		inOrder      bool
		held, during int32 // tokens and stray batches after yield
	}{
		{"a destination does not answer", 0, false, 0, 1},
		{"too many batches are stray", relayStray, false, 1, relayStray},
		{"in order", 0, true, 1, 0},
	} {
		r := &Relay{active: make(chan struct{}, 1), held: make(chan struct{}, 1)}
		r.InOrder = c.inOrder
		r.stray.Store(c.before)
		if !r.takeTokens(t.Context()) {
			t.Fatal("no tokens")
		}
		batch := &tokens{relay: r, active: true, held: true}
		batch.yield()
		batch.yield() // of another call of the batch
		if held, stray := int32(len(r.held)), r.stray.Load(); held != c.held || stray != c.during {
			t.Errorf("%s: %d tokens, %d stray batches; want %d, %d", c.name, held, stray, c.held, c.during)
		}
		batch.end()
		if len(r.active)+len(r.held) > 0 || r.stray.Load() != c.before {
			t.Errorf("%s: after the end %d tokens, %d stray batches", c.name, len(r.active)+len(r.held), r.stray.Load())
		}
	}
}
