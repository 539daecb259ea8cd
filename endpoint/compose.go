package endpoint

import (
	"cmp"
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast/endpoint/internal/process"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
)

// composeProcess gives the loop its parts.
func (l *live) composeProcess() {
	l.CompletesFirst, l.Errors = l.e.cfg.Transactions == None, faults{}
	l.TypeOf, l.HasKeys = l.e.types.nameOf, l.e.types.haveKeys
	l.ReceiveStage, l.DispatchStage = l.e.receive, l.e.dispatch
	if l.e.watchesDispatch {
		l.DispatchStage = watched(l.e.dispatch)
	}
	l.loop = process.New(&l.Shared)
}

// composeRecovery gives the recoveries of the endpoint their parts.
func (l *live) composeRecovery() {
	s, quarantined := &l.Recovery, l.names.Of(l.e.cfg.Name+quarantineSuffix)
	s.Host, s.Names, s.Notifier, s.Calls = l.e.host, &l.names, l.Notifier, l.Calls
	s.Limits, s.Stopping, s.Stage = l.Limits, l.stopping, l.e.recover
	s.StoresOthers, s.Accepting = l.Outage.StoresOthers, l.satellites.accepting
	s.ReceivesFrom = func(queue string) bool { return queue == quarantined || l.receivesFrom(queue) }
	if f := l.e.cfg.OnFinalFailure; f != nil {
		s.OnFinalFailure = func(ctx context.Context, s pipeline.Sender, failure recoverability.Failure) error {
			return f(ctx, s.(*Session), failure) //nolint:errcheck // NewSession has made it
		}
	}
	if l.Outbox != nil {
		s.Commit = l.Outbox.Commit
	}
}

// faults makes the errors of package process.
type faults struct{}

// TimedOut implements [process.Errors].
func (faults) TimedOut(err error) bool {
	return errtree.Find[*attemptTimeoutError](err) != nil || errtree.Find[*handlerTimeoutError](err) != nil
}

// Undecodable implements [process.Errors].
func (faults) Undecodable(reason error) error { return &undecodableError{reason} }

// Undeliverable implements [process.Errors].
func (faults) Undeliverable(queue string, err error) error { return &undeliverableError{queue, err} }

// Decided implements [process.Errors].
func (faults) Decided(text, class string) error { return &decidedError{text, class} }

// undeliverableError is the failure of a message whose queue refused it when it was due.
type undeliverableError struct {
	queue string
	err   error
}

func (e *undeliverableError) Error() string {
	return fmt.Sprintf("the message was delayed, and could not be sent to queue %q when it was due: %v", e.queue, e.err)
}

func (e *undeliverableError) Unwrap() error { return e.err }

// FaultClass returns the class of the fault in the error queue.
func (e *undeliverableError) FaultClass() string { return "undeliverable" }

// decidedError is the failure of a message in an earlier delivery.
type decidedError struct{ text, class string }

func (e *decidedError) Error() string {
	return errtree.Cut(cmp.Or(e.text, "the message has failed before, and does not say why"), settle.MaxLogged)
}

// FaultClass returns the class of the fault in the error queue.
func (e *decidedError) FaultClass() string { return e.class }
