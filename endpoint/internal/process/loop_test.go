package process

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint/internal/failurelog"
	"github.com/holdfast-go/holdfast/endpoint/internal/inbox"
	"github.com/holdfast-go/holdfast/endpoint/internal/keylock"
	"github.com/holdfast-go/holdfast/endpoint/internal/names"
	"github.com/holdfast-go/holdfast/endpoint/internal/notify"
	"github.com/holdfast-go/holdfast/endpoint/internal/outage"
	"github.com/holdfast-go/holdfast/endpoint/internal/overdue"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/endpoint/internal/work"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

var errUser = errors.New("no stock")

// delivered is a delivery whose settlement is recorded.
type delivered struct {
	id       string
	attempt  transport.Attempt
	complete error // of Complete
	settled  []string
	at       time.Time // of the last settlement
}

func (d *delivered) Message() *transport.Message { return &transport.Message{ID: d.id} }
func (d *delivered) Attempt() transport.Attempt  { return d.attempt }

func (d *delivered) Complete(context.Context) error { return d.settle("complete", d.complete) }
func (d *delivered) Retry(context.Context) error    { return d.settle("retry", nil) }
func (d *delivered) Release(context.Context) error  { return d.settle("release", nil) }

func (d *delivered) Postpone(_ context.Context, busy string) error {
	return d.settle("postpone behind "+busy, nil)
}

func (d *delivered) CompleteWith(_ context.Context, ops []transport.Operation) error {
	return d.settle("copy to "+ops[0].Queue, d.complete)
}

func (d *delivered) settle(verb string, err error) error {
	d.settled, d.at = append(d.settled, verb), time.Now()
	return err
}

// RecordHandled implements [transport.HandledRecorder].
func (d *delivered) RecordHandled(string, *transport.HandledKey) {}

// receiver returns deliveries, and none after them.
type receiver struct{ deliveries chan transport.Delivery }

func (r *receiver) Receive(ctx context.Context, _ int) ([]transport.Delivery, error) {
	select {
	case d := <-r.deliveries:
		return []transport.Delivery{d}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (*receiver) Window(int)   {}
func (*receiver) Close() error { return nil }

// stage runs an attempt, in the place of stage Receive.
type stage func(ctx context.Context, a *Attempt) error

// room is a loop with its messages.
type room struct {
	*Shared
	attempts atomic.Int64 // made
}

// newRoom returns a room on a transport that counts releases, and has delays.
func newRoom(run stage) *room {
	r, log := &room{Shared: new(Shared)}, slog.New(slog.DiscardHandler)
	r.Settler = settle.Settler{
		Log: log, Failures: failurelog.New(10, 1000), OnError: func() {},
		Deadlines: settle.Deadlines{Parent: context.Background()},
		Config:    &recoverability.Config{ErrorQueue: "error", Immediate: 1, Delayed: recoverability.None},
	}
	r.Calls, r.Limits = overdue.New(log), transport.Limits{MaxDelay: time.Hour}
	r.Notifier, r.Errors = notify.New(nil, log, r.Calls), errorsOf{}
	s := &r.Recovery
	s.Names, s.Notifier, s.Calls, s.Limits = new(names.Queues), r.Notifier, r.Calls, r.Limits
	s.ReceivesFrom, s.Accepting = func(string) bool { return false }, func() string { return "" }
	s.StoresOthers = func(context.Context) bool { return false }
	s.Stage = func(ctx context.Context, rec *pipeline.Recover) error {
		return attemptOf(rec.Receive).RecoveredBy.AtEndOfStage(ctx, rec)
	}
	r.ReceiveStage = func(ctx context.Context, in *pipeline.Receive) error { return run(ctx, attemptOf(in)) }
	r.DispatchStage = func(ctx context.Context, d *pipeline.Dispatch) error {
		return attemptOf(d.Incoming).Finish(ctx, d.Operations)
	}
	return r
}

// made makes the attempts at a message.
type made struct {
	Message
	of *room
}

func (m *made) NewAttempt() *Attempt {
	m.of.attempts.Add(1)
	a := &Attempt{Message: &m.Message, Unit: &work.Unit{ID: m.ID}}
	a.Of, a.Receive = part{a}, pipeline.NewReceive(m.Original, &sender{of: a})
	return a
}

// sender leads from the value of a stage to the attempt.
type sender struct {
	pipeline.Sender
	of *Attempt
}

func attemptOf(r *pipeline.Receive) *Attempt { return r.Sender().(*sender).of }

// part is the endpoint's part of an attempt.
type part struct{ of *Attempt }

func (part) Origin() fault.Frame                             { return fault.Frame{} }
func (p part) NewSession() (pipeline.Sender, *work.Unit)     { return &sender{of: p.of}, new(work.Unit) }
func (p part) Recovering(s pipeline.Sender) pipeline.Receive { return p.of.Receive.Recovering(s) }

// errorsOf makes errors of no type of their own.
type errorsOf struct{}

func (errorsOf) TimedOut(error) bool                     { return false }
func (errorsOf) Undecodable(reason error) error          { return reason }
func (errorsOf) Undeliverable(_ string, err error) error { return err }
func (errorsOf) Decided(text, _ string) error            { return errors.New(text) }

// process runs the loop until the messages are processed. stop ends the receiving, and then the
// context of handlers.
func (r *room) process(stop context.Context, deliveries ...*delivered) {
	from := &receiver{make(chan transport.Delivery, len(deliveries))}
	for _, d := range deliveries {
		from.deliveries <- d
	}
	var arrivals *keylock.Arrivals
	if r.Locks != nil {
		arrivals = r.Locks.Arrivals()
	}
	loop := New(r.Shared)
	handle := func(ctx context.Context, d transport.Delivery, slot *pump.Slot) {
		m := &made{of: r}
		m.Attempts = m
		m.Begin(r.Shared, d, slot, "orders", arrivals)
		loop.Process(ctx, &m.Message)
	}
	pump.New(pump.Config{
		Receiver: from, Limits: r.Limits, Queue: "orders", Concurrency: 2, Handle: handle, StopTimeout: time.Second,
	}).Run(stop)
}

// Each outcome of an attempt ends in one settlement of the message.
func TestAnOutcomeSettlesTheMessage(t *testing.T) {
	for name, test := range map[string]struct {
		stage    stage
		set      func(*room)
		complete error // of the delivery
		want     []string
		attempts int64
	}{
		"success": {
			stage: func(context.Context, *Attempt) error { return nil },
			want:  []string{"complete"}, attempts: 1,
		},
		"a failure": {
			stage: func(context.Context, *Attempt) error { return errUser },
			want:  []string{"retry"}, attempts: 1,
		},
		"a failure without retries": {
			stage: func(context.Context, *Attempt) error { return recoverability.Unrecoverable(errUser) },
			want:  []string{"copy to error"}, attempts: 1,
		},
		"a panic": {
			stage: func(context.Context, *Attempt) error { panic("no stock") },
			want:  []string{"retry"}, attempts: 1,
		},
		"the end of the goroutine": {
			stage: func(context.Context, *Attempt) error {
				runtime.Goexit()
				return nil
			},
			want: []string{"retry"}, attempts: 1,
		},
		"inline retries": {
			set: retriesInline(time.Second),
			stage: func(_ context.Context, a *Attempt) error {
				if a.Inline < 2 {
					return errUser
				}
				return nil
			},
			want: []string{"complete"}, attempts: 3,
		},
		"a stop during the wait for an inline retry": {
			set:   retriesInline(time.Hour),
			stage: func(context.Context, *Attempt) error { return errUser },
			want:  []string{"release"}, attempts: 1,
		},
		"conflicts": {
			stage: func(context.Context, *Attempt) error { return transport.ErrConflict },
			want:  []string{"copy to orders"}, attempts: maxConflicts + 1,
		},
		"conflicts where a release does not count": {
			stage: func(context.Context, *Attempt) error { return transport.ErrConflict },
			set:   func(r *room) { r.Limits.FreeRelease = true },
			want:  []string{"release"}, attempts: maxConflicts + 1,
		},
		"a stop": {
			stage: func(ctx context.Context, _ *Attempt) error {
				<-ctx.Done()
				return ctx.Err()
			},
			want: []string{"release"}, attempts: 1,
		},
		"a failure after a stop": {
			stage: func(ctx context.Context, _ *Attempt) error {
				<-ctx.Done()
				return errUser
			},
			want: []string{"retry"}, attempts: 1,
		},
		"a busy queue": {
			stage: func(_ context.Context, a *Attempt) error {
				return a.Unit.Keep(transport.Operation{Queue: "billing"})
			},
			complete: &transport.BusyError{Queue: "billing"},
			want:     []string{"copy to billing", "copy to billing", "copy to billing", "postpone behind billing"}, attempts: 1,
		},
		"an undecodable message": {
			set:   func(r *room) { r.Translate = func(*transport.Message) { panic("no") } },
			stage: func(context.Context, *Attempt) error { return nil },
			want:  []string{"copy to error"}, attempts: 1,
		},
		"success after an early completion": {
			set:   func(r *room) { r.CompletesFirst = true },
			stage: func(_ context.Context, a *Attempt) error { return settledFirst(a) },
			want:  []string{"complete"}, attempts: 1,
		},
		"an early completion that fails": {
			set:      func(r *room) { r.CompletesFirst = true },
			stage:    func(context.Context, *Attempt) error { return errUser },
			complete: errUser,
			want:     []string{"complete"}, attempts: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, d := newRoom(test.stage), &delivered{id: "m-1", attempt: transport.Attempt{N: 1, Exact: true}, complete: test.complete}
				if test.set != nil {
					test.set(r)
				}
				stop, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				r.process(stop, d)
				if diff := cmp.Diff(test.want, d.settled); diff != "" || r.attempts.Load() != test.attempts {
					t.Errorf("%d attempts, want %d, settled (-want +got):\n%s", r.attempts.Load(), test.attempts, diff)
				}
			})
		})
	}
}

// retriesInline sets a policy that retries inline, after a pause.
func retriesInline(pause time.Duration) func(*room) {
	return func(r *room) {
		r.Settler.Config.Policy = func(recoverability.Failure) recoverability.Action {
			return recoverability.RetryInline{For: pause}
		}
	}
}

// settledFirst returns an error unless the message of the attempt was completed first.
func settledFirst(a *Attempt) error {
	if !a.CompletedFirst() {
		return errors.New("the message was not completed before the handlers")
	}
	return nil
}

// A message that waits for a key is released at the stop of the endpoint, and no handler receives
// the message.
func TestAStopEndsTheWaitForAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var handled atomic.Int64
		r := newRoom(func(ctx context.Context, a *Attempt) error {
			if err := a.TakeKeys(ctx, []keylock.Key{{Name: "customer"}}); err != nil {
				return err
			}
			handled.Add(1)
			<-ctx.Done()
			return nil
		})
		r.Locks, r.HasKeys = new(keylock.Locks), func(string) bool { return true }
		first, second := &delivered{id: "m-1", attempt: transport.Attempt{N: 1}}, &delivered{id: "m-2", attempt: transport.Attempt{N: 1}}
		began := time.Now()
		stop, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r.process(stop, first, second)
		got := [][]string{first.settled, second.settled}
		if diff := cmp.Diff([][]string{{"complete"}, {"release"}}, got); diff != "" || handled.Load() != 1 {
			t.Errorf("%d messages handled, settled (-want +got):\n%s", handled.Load(), diff)
		}
		if after := second.at.Sub(began); after != time.Minute {
			t.Errorf("the second message was released after %v, want 1m0s", after)
		}
	})
}

// store knows no message.
type store struct{ transport.OutboxStore }

func (store) FindHandled(
	context.Context, string, []transport.HandledKey,
) ([]transport.HandledState, error) {
	return []transport.HandledState{transport.NotHandled}, nil
}

// The completion of a message that records the id of the message is a commit of the database: the
// pauses of an outage depend on the commit.
func TestARecordedMessageIsACommit(t *testing.T) {
	for _, recorded := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			stop, cancel := context.WithCancel(t.Context())
			r := newRoom(func(context.Context, *Attempt) error { cancel(); return nil })
			r.Outage = outage.New(t.Context(), "inbox", outage.Questions{}, r.Settler.Log)
			if recorded {
				r.Inbox = &inbox.Inbox{Name: "orders.handled", Queue: "orders", Store: store{}, Log: r.Settler.Log}
			}
			d := &delivered{id: "m-1", attempt: transport.Attempt{N: 1}}
			r.process(stop, d)
			r.Outage.Close()
			if diff := cmp.Diff([]string{"complete"}, d.settled); diff != "" {
				t.Errorf("settled (-want +got):\n%s", diff)
			}
			if got := r.Outage.Committed.Load(); got != recorded {
				t.Errorf("recorded %t: a commit is noted: %t", recorded, got)
			}
		})
	}
}
