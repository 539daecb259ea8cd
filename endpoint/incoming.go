package endpoint

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/failurelog"
	"github.com/holdfast-go/holdfast/endpoint/internal/typelimit"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// incoming is one attempt at one message: everything that its way through the
// pipeline needs, allocated at once.
type incoming struct {
	e        *Endpoint
	live     *live
	delivery transport.Delivery
	slot     *pump.Slot
	limiter  *typelimit.Limiter // of its type, if the message has entered it
	holding  *holding
	repeats  repeats
	queue    string
	started  time.Time // set for audit copies only
	id       string
	taken    bool                 // off its queue before it was handled: transaction mode None
	settled  bool                 // nothing more may be done about it
	gone     bool                 // its lease was lost before it could be settled
	alone    *guarded             // in quarantine; nil elsewhere
	final    bool                 // Config.OnFinalFailure has been called
	failed   bool                 // and is remembered as that
	busy     *transport.BusyError // why it could not be completed: a queue that it sends to takes no messages
	calls    []call               // of the handlers
	bases    []baseValue
	handler  *Handler // the one being invoked
	session  *Session // of the handlers, then of the Recover stage
	original *transport.Message
	logged   recoverability.Action // the last that the log tells of
	fallen   []Notification        // fallbacks taken, to be told

	receive  pipeline.Receive
	logical  pipeline.Logical
	invoke   pipeline.Invoke
	dispatch pipeline.Dispatch
	first    Session
	ops      [2]transport.Operation
}

// attempt finds the incoming that a stage value is part of.
func attempt(r *pipeline.Receive) *incoming { return r.Sender().(*Session).in } //nolint:errcheck // prepare has put it there

// incoming is what the pump calls for each delivery.
func (e *Endpoint) incoming(live *live, queue string) func(context.Context, transport.Delivery, *pump.Slot) {
	return func(ctx context.Context, d transport.Delivery, slot *pump.Slot) {
		in := &incoming{e: e, live: live, delivery: d, slot: slot, queue: queue}
		in.beHeld()
		in.attempt(ctx)
	}
}

// attempt has the message handled once its turn has come.
func (in *incoming) attempt(ctx context.Context) {
	in.prepare()
	defer in.letGo()
	if in.admit(ctx) {
		in.run(ctx)
	}
}

// run takes the message through handling, and where that fails through recoverability.
func (in *incoming) run(ctx context.Context) {
	if in.e.cfg.AuditQueue != "" {
		in.started = time.Now()
	}
	err := errGoexit // unless handle returns
	defer func() {
		in.leaveLimit()
		if err != nil && !in.repeat(ctx, err) && !in.postpone(ctx) {
			in.slot.Free()
			in.fail(ctx, err)
		}
	}()
	err = in.handle(ctx)
}

func (in *incoming) prepare() {
	in.original = in.delivery.Message()
	if in.alone != nil {
		in.original = in.unmark(in.original)
	}
	m := in.original
	if in.e.lends {
		m = lent(m)
	}
	in.id = messageID(m)
	in.first = Session{in: in, ops: in.ops[:0]}
	in.session = &in.first
	in.receive = pipeline.NewReceive(m, in.session)
	in.receive.Queue = in.queue
	in.receive.Attempt = in.delivery.Attempt()
}

// messageID is a message's identity, also where another producer gave it none.
func messageID(m *transport.Message) string {
	if m.ID != "" {
		return m.ID
	}
	if id := m.Headers.Get(header.MessageID); id != "" {
		return id
	}
	return m.NativeID
}

// handle takes the message through its handlers and sends what they sent. An
// error means that the message is still to be settled, by recoverability.
func (in *incoming) handle(ctx context.Context) (err error) {
	defer catchPanic(&err)
	if in.e.cfg.Transactions == None {
		in.slot.StopRenewing() // its lease ends here, and that is no loss
		if err := in.delivery.Complete(in.live.settling.context()); err != nil {
			return in.skip(ctx, err)
		}
		in.taken = true
	}
	if reason := in.receive.Message.Undecodable; reason != nil {
		return recoverability.Unrecoverable(&undecodableError{fmt.Errorf("undecodable message: %w", reason)})
	}
	if done, err := in.guard(ctx); done {
		return err
	}
	if err := in.e.receive(ctx, &in.receive); err != nil {
		return err
	}
	ops, tx := in.session.end()
	if tx == nil { // an open transaction is part of the work: it keeps the slot
		in.leaveLimit()
		in.slot.Free()
	}
	return in.leave(ctx, ops)
}

// skip leaves a message alone that could not be taken off its queue beforehand.
func (in *incoming) skip(ctx context.Context, err error) error {
	in.log().WarnContext(ctx, "a message could not be taken off its queue, so it is not handled now",
		slog.String("message", in.id), slog.Any("error", err))
	return nil
}

// leave sends ops and completes the message, through the Dispatch stage.
func (in *incoming) leave(ctx context.Context, ops []transport.Operation) error {
	in.dispatch = pipeline.Dispatch{Operations: ops, Incoming: &in.receive}
	if err := in.e.dispatch(ctx, &in.dispatch); err != nil {
		return err
	}
	if !in.settled { // a behavior kept back what was sent
		if err := in.finish(ctx, in.processed(ctx, nil)); err != nil {
			return err
		}
	}
	if in.alone == nil {
		in.live.slow.Succeeded(in.receive.Attempt.N)
	}
	if in.alone != nil || in.receive.Attempt.N > 1 && !in.gone || in.remembersThrottled() {
		in.e.failures.Forget(in.failureKey())
	}
	in.succeeded(ctx)
	return nil
}

func (in *incoming) failureKey() failurelog.Key { return failurelog.KeyOf(in.queue, in.id) }
