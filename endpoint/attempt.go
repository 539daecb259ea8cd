package endpoint

import (
	"context"

	"github.com/holdfast-go/holdfast/endpoint/internal/keylock"
	"github.com/holdfast-go/holdfast/endpoint/internal/process"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/endpoint/internal/work"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
)

// received is a message in process. The first attempt is allocated with the message. Each further
// attempt is new, with a new session: see [process.Attempts].
type received struct {
	process.Message

	live  *live
	first attempt
}

// attempt is one attempt at a message, with the values of its stages.
type attempt struct {
	process.Attempt

	live     *live
	calls    []call // of the handlers
	bases    []baseValue
	callKeys []string // of the calls; nil where no handler has a key
	at       int      // the number of the call being invoked
	handler  *Handler // of the call; nil before and after
	limited  bool     // a policy or Message.Timeout limits the time of all handlers
	session  Session  // of the handlers

	logical pipeline.Logical
	invoke  pipeline.Invoke
	ops     [2]transport.Operation
}

// attemptOf returns the attempt that a stage value belongs to.
func attemptOf(r *pipeline.Receive) *attempt {
	return r.Sender().(*Session).in //nolint:errcheck // NewAttempt has put it there
}

// handle returns the function that the pump of the queue calls for each delivery.
func (l *live) handle(queue string) handleFunc {
	var arrivals *keylock.Arrivals
	if l.Locks != nil {
		arrivals = l.Locks.Arrivals()
	}
	return func(ctx context.Context, d transport.Delivery, slot *pump.Slot) {
		l.loop.Process(ctx, messageOf(l, d, slot, queue, arrivals))
	}
}

// handleExclusively processes a delivery from the quarantine.
func (l *live) handleExclusively(
	ctx context.Context, d transport.Delivery, slot *pump.Slot, stuck func(),
) {
	l.loop.ProcessExclusively(ctx, messageOf(l, d, slot, l.names.Of(l.e.cfg.Name), nil), stuck)
}

// messageOf returns the message of a delivery.
func messageOf(
	l *live, d transport.Delivery, slot *pump.Slot, queue string, arrivals *keylock.Arrivals,
) *process.Message {
	r := &received{live: l}
	r.Attempts = r
	r.Begin(&l.Shared, d, slot, queue, arrivals)
	return &r.Message
}

// NewAttempt implements [process.Attempts].
func (r *received) NewAttempt() *process.Attempt {
	a := &r.first
	if a.live != nil {
		a = &attempt{}
	}
	m := r.Original
	if r.live.e.copies {
		m = settle.SharedCopy(m)
	}
	a.Message, a.Of, a.Unit = &r.Message, a, &a.session.unit
	a.live, a.session.in = r.live, a
	a.Unit.Store, a.Unit.Delivery, a.Unit.ID = &r.live.units, r.Received, r.ID
	a.Unit.Resume(a.ops[:0], nil)
	a.Receive = pipeline.NewReceive(m, &a.session)
	a.Receive.Queue, a.Receive.Attempt = r.Queue, r.Received.Attempt()
	return &a.Attempt
}

// Origin implements [recovery.Attempt]: the place is the handler that was invoked, else the stage.
func (a *attempt) Origin() fault.Frame {
	const stages = "github.com/holdfast-go/holdfast/pipeline."
	switch {
	case a.handler != nil:
		return a.handler.frame()
	case a.Dispatch.Incoming != nil:
		return fault.Frame{Func: stages + "Dispatch"}
	}
	return fault.Frame{Func: stages + "Receive"}
}

// NewSession implements [recovery.Attempt].
func (a *attempt) NewSession() (pipeline.Sender, *work.Unit) {
	s := &Session{in: a, recovers: true}
	s.unit.Store, s.unit.Delivery, s.unit.ID = &a.live.units, a.Received, a.ID
	return s, &s.unit
}

// Recovering implements [recovery.Attempt].
func (a *attempt) Recovering(s pipeline.Sender) pipeline.Receive { return a.Receive.Recovering(s) }

// watched returns stage Dispatch for messages. The watch counts the time of the behaviors.
func watched(stage pipeline.Func[*pipeline.Dispatch]) pipeline.Func[*pipeline.Dispatch] {
	return func(ctx context.Context, d *pipeline.Dispatch) error {
		a := attemptOf(d.Incoming)
		a.Running.EnterFunction(&nameDispatch)
		a.Calls.Begin(&a.Running, a.Queue, a.ID, a.Slot.Goroutine())
		defer a.Calls.End(&a.Running)
		return stage(ctx, d)
	}
}

// dispatchAll is the end of the Dispatch stage: the operations of a message are sent, and the
// message is completed. Operations of no message are sent at once, or in the caller's transaction.
func (e *Endpoint) dispatchAll(ctx context.Context, d *pipeline.Dispatch) error {
	if d.Incoming != nil {
		a := attemptOf(d.Incoming)
		if e.watchesDispatch {
			a.Calls.Suspend(&a.Running)
			defer a.Calls.Resume(&a.Running)
		}
		return a.Finish(ctx, d.Operations)
	}
	live := e.live.Load()
	if live == nil {
		return ErrNotRunning
	}
	if d.ViaOutbox {
		return live.Timers.Send(ctx, d.Tx, d.Operations)
	}
	err := errNoTx
	if d.Tx == nil {
		d.Receipts, err = live.conn.Dispatch(ctx, d.Operations)
	} else if dispatcher, ok := live.conn.(transport.TxDispatcher); ok {
		d.Receipts, err = dispatcher.DispatchIn(ctx, d.Tx, d.Operations)
	}
	return copies.Single(err)
}

// recoverEnd is the end of the Recover stage.
func recoverEnd(ctx context.Context, rec *pipeline.Recover) error {
	return attemptOf(rec.Receive).RecoveredBy.AtEndOfStage(ctx, rec)
}
