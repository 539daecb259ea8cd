package endpoint

import (
	"cmp"
	"context"

	"github.com/holdfast-go/holdfast/endpoint/internal/notify"
	"github.com/holdfast-go/holdfast/endpoint/internal/recovery"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/endpoint/internal/work"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
)

// composeRecovery gives the recoveries of the endpoint their parts.
func (l *live) composeRecovery() {
	s, quarantined := &l.recovery, l.names.Of(l.e.cfg.Name+quarantineSuffix)
	s.Host, s.Names, s.Notifier, s.Calls = l.e.host, &l.names, l.notifier, l.calls
	s.Limits, s.Stopping, s.Stage = l.limits, l.stopping, l.e.recover
	s.StoresOthers, s.Accepting = l.outage.StoresOthers, l.satellites.accepting
	s.ReceivesFrom = func(queue string) bool { return queue == quarantined || l.receivesFrom(queue) }
	if f := l.e.cfg.OnFinalFailure; f != nil {
		s.OnFinalFailure = func(ctx context.Context, s pipeline.Sender, failure recoverability.Failure) error {
			return f(ctx, s.(*Session), failure) //nolint:errcheck // NewSession has made it
		}
	}
	if l.outbox != nil {
		s.Commit = l.outbox.Commit
	}
}

// newRecovery returns a recovery of the message.
func (in *incoming) newRecovery() *recovery.Recovery {
	return &recovery.Recovery{Failed: recovery.Failed{
		Shared: &in.live.recovery, Delivery: &in.Delivery, Reporter: in,
		Audit: &in.audit, Exclusive: in.exclusive, MayWait: in.mayWait,
	}}
}

// recover has recoverability decide about a message that failed.
func (in *incoming) recover(ctx context.Context, a *attempt, err error) outcome {
	a.recoveredBy = in.newRecovery()
	return in.recovered(ctx, a.recoveredBy.Run(ctx, a, err))
}

// recovered returns the outcome of a message after its recovery.
func (in *incoming) recovered(ctx context.Context, res recovery.Result) outcome {
	switch res := res.(type) {
	case recovery.Retrying:
		in.Inline++
		in.FailureCounted = false
		return again{&wait{after: res.After}}
	case recovery.Waits:
		in.turn.Pass()
		res.Hold(ctx)
	case recovery.Stuck:
		return back{stuck{res}}
	case recovery.Settled:
	}
	return over{}
}

// keep reports a message that can be neither settled nor moved. The message is requeued.
func (in *incoming) keep(ctx context.Context, err error) outcome {
	return back{stuck{in.newRecovery().Keep(ctx, err)}}
}

// moveRefused moves a message to the error queue, because a copy of it was refused for its content.
func (in *incoming) moveRefused(ctx context.Context, failure *copies.CopyError) outcome {
	return in.recovered(ctx, in.newRecovery().MoveRefused(ctx, in.newAttempt(), failure))
}

// Report implements [notify.Reporter].
func (in *incoming) Report(p *notify.Place, f func()) {
	in.giveUpKeys()
	settled := func() {
		if in.Over() {
			in.Slot.Settled()
		}
	}
	if in.exclusive != nil {
		settled = nil
	}
	in.live.notifier.Report(p, settled, f)
}

// recoverEnd is the end of the Recover stage.
func recoverEnd(ctx context.Context, rec *pipeline.Recover) error {
	return attemptOf(rec.Receive).recoveredBy.AtEndOfStage(ctx, rec)
}

// NewSession implements [recovery.Attempt].
func (a *attempt) NewSession() (pipeline.Sender, *work.Unit) {
	s := &Session{in: a, recovers: true}
	s.unit.Store, s.unit.Delivery, s.unit.ID = &a.live.units, a.Received, a.ID
	return s, &s.unit
}

// Recovering implements [recovery.Attempt].
func (a *attempt) Recovering(s pipeline.Sender) pipeline.Receive { return a.receive.Recovering(s) }

// moveDecided is a guard. It moves a message that was held before to the error queue, without a
// handler.
func moveDecided(ctx context.Context, in *incoming) outcome {
	queue, ok := in.Received.Message().Headers.Lookup(header.HoldfastFaultDecided)
	if !ok {
		return nil
	}
	in.Slot.Free()
	a, m := in.newAttempt(), *copies.Unpacked(in.Received.Message())
	var failed header.Map
	m.Headers, failed = fault.LeaveDecided(m.Headers)
	in.Original = &m
	failure := &decidedError{failed.Get(header.ExceptionMessage), failed.Get(header.HoldfastFaultClass)}
	return in.recovered(ctx, in.newRecovery().MoveDecided(ctx, a, queue, failed, failure))
}

// decidedError is the failure of a message in an earlier delivery.
type decidedError struct{ text, class string }

func (e *decidedError) Error() string {
	return errtree.Cut(cmp.Or(e.text, "the message has failed before, and does not say why"), settle.MaxLogged)
}

// FaultClass returns the class of the fault in the error queue.
func (e *decidedError) FaultClass() string { return e.class }
