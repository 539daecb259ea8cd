package process

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint/internal/failurelog"
	"github.com/holdfast-go/holdfast/endpoint/internal/keylock"
	"github.com/holdfast-go/holdfast/endpoint/internal/names"
	"github.com/holdfast-go/holdfast/endpoint/internal/notify"
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
	d.settled = append(d.settled, verb)
	return err
}

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
	stage    stage
	attempts int // made
}

// newRoom returns a room on a transport that counts releases, and has delays.
func newRoom(run stage) *room {
	r, log := &room{stage: run, Shared: new(Shared)}, slog.New(slog.DiscardHandler)
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
	return r
}

// made makes the attempts at a message. The stages find their attempt here.
type made struct {
	Message
	of   *room
	last *Attempt
}

func (m *made) NewAttempt() *Attempt {
	m.of.attempts++
	a := &Attempt{Message: &m.Message, Unit: &work.Unit{ID: m.ID}}
	a.Of, a.Receive, m.last = part{a}, pipeline.NewReceive(m.Original, nil), a
	return a
}

// part is the endpoint's part of an attempt.
type part struct{ *Attempt }

func (part) Origin() fault.Frame                             { return fault.Frame{} }
func (part) NewSession() (pipeline.Sender, *work.Unit)       { return nil, new(work.Unit) }
func (p part) Recovering(s pipeline.Sender) pipeline.Receive { return p.Receive.Recovering(s) }

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
		r.ReceiveStage = func(ctx context.Context, _ *pipeline.Receive) error { return r.stage(ctx, m.last) }
		r.DispatchStage = func(ctx context.Context, d *pipeline.Dispatch) error { return m.last.Finish(ctx, d.Operations) }
		r.Recovery.Stage = func(ctx context.Context, rec *pipeline.Recover) error { return m.last.AtEndOfRecover(ctx, rec) }
		m.Begin(r.Shared, d, slot, "orders", arrivals)
		loop.Process(ctx, &m.Message)
	}
	pump.New(pump.Config{
		Receiver: from, Limits: r.Limits, Queue: "orders", Concurrency: 1, Handle: handle, StopTimeout: time.Second,
	}).Run(stop)
}

// Each outcome of an attempt ends in one settlement of the message.
func TestAnOutcomeSettlesTheMessage(t *testing.T) {
	for name, test := range map[string]struct {
		stage    stage
		set      func(*room)
		complete error // of the delivery
		want     []string
		attempts int
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
				if diff := cmp.Diff(test.want, d.settled); diff != "" || r.attempts != test.attempts {
					t.Errorf("%d attempts, want %d, settled (-want +got):\n%s", r.attempts, test.attempts, diff)
				}
			})
		})
	}
}

// settledFirst returns an error unless the message of the attempt was completed first.
func settledFirst(a *Attempt) error {
	if !a.CompletedFirst() {
		return errors.New("the message was not completed before the handlers")
	}
	return nil
}
