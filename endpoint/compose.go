package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/holdfast-go/holdfast/endpoint/internal/failurelog"
	"github.com/holdfast-go/holdfast/endpoint/internal/process"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/serialization"
)

// New returns an endpoint. It does no I/O. The error lists all mistakes in cfg.
func New(cfg Config) (*Endpoint, error) {
	err := cfg.validate()
	types, terr := newRegistry(cfg.Name, cfg.Messages, cfg.Routes, cfg.Handlers)
	cfg = cfg.withDefaults()
	e := &Endpoint{
		cfg: cfg, types: types,
		sender: sender{
			name: cfg.Name, instanceQueue: cfg.instanceQueue(), sendOnly: cfg.SendOnly,
			catalog: &types.catalog, serializers: cfg.Serializers,
		},
		bounded: cfg.bounded(),
		ready:   make(chan struct{}), ended: make(chan struct{}),
	}
	memory := cfg.Recoverability.Memory
	e.failures = failurelog.New(max(memory.Messages, 8*cfg.Concurrency), memory.Bytes)
	e.host = cfg.Host.in(cfg.Name)
	err = errors.Join(err, terr, types.rules(cfg.Recoverability.Rules),
		types.checkBodies(e.serializers), compose(e))
	if err != nil {
		return nil, fmt.Errorf("endpoint %q: invalid configuration: %w", cfg.Name, err)
	}
	return e, nil
}

// compose builds the stages, once.
func compose(e *Endpoint) error {
	p := &e.cfg.Pipeline
	var errs []error
	e.receive = stage(e, &errs, "Receive", &p.Receive, decode)
	e.logical = stage(e, &errs, "Logical", &p.Logical, invokeAll)
	e.invoke = stage(e, &errs, "Invoke", &p.Invoke, invokeOne)
	e.outgoing = stage(e, &errs, "Outgoing", &p.Outgoing, e.encode)
	e.dispatch = stage(e, &errs, "Dispatch", &p.Dispatch, dispatchEnd(e.dispatchNow))
	e.recover = stage(e, &errs, "Recover", &p.Recover, recoverEnd)
	e.relayed = stage(e, &errs, "Relay", &p.Relay, e.relay)
	e.watchesDispatch, e.watchesRelay = len(p.Dispatch.Names()) > 0, len(p.Relay.Names()) > 0
	// A serializer may keep the body in the returned values. JSON copies the body.
	keeps := func(s serialization.Serializer) bool { return s != serialization.JSON }
	e.copies = e.copies || slices.ContainsFunc(e.serializers, keeps)
	return errors.Join(errs...)
}

func stage[T any](
	e *Endpoint, errs *[]error, name string, s *pipeline.Stage[T], end pipeline.Func[T],
) pipeline.Func[T] {
	f, err := s.Then(end)
	if err != nil {
		*errs = append(*errs, fmt.Errorf("stage %s: %w", name, err))
	}
	e.copies = e.copies || len(s.Names()) > 0
	return f
}

// composeProcess sets the parts of the loop.
func composeProcess(l *launch) {
	l.CompletesFirst, l.Errors = l.e.cfg.Transactions == None, faults{}
	l.TypeOf, l.HasKeys = l.e.types.nameOf, l.e.types.haveKeys
	l.ReceiveStage, l.DispatchStage = l.e.receive, l.e.dispatch
	if l.e.watchesDispatch {
		l.DispatchStage = watched(l.e.dispatch)
	}
	l.loop = process.New(&l.Shared)
}

// composeRecovery sets the parts of recoveries.
func composeRecovery(l *launch) {
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
func (faults) Undecodable(reason error) error { return newUndecodableError(reason) }

// Undeliverable implements [process.Errors].
func (faults) Undeliverable(queue string, err error) error {
	return &undeliverableError{classedError{err, classUndeliverable}, queue}
}

// Decided implements [process.Errors].
func (faults) Decided(text, class string) error { return &decidedError{text, class} }

// undeliverableError is the failure of a message whose queue refused it when it was due.
type undeliverableError struct {
	classedError
	queue string
}

func (e *undeliverableError) Error() string {
	return fmt.Sprintf("the message was delayed, and could not be sent to queue %q when it was due: %v", e.queue, e.error)
}

// decidedError is the failure of a message in an earlier delivery.
type decidedError struct{ text, class string }

func (e *decidedError) Error() string {
	return errtree.Cut(cmp.Or(e.text, "the message has failed before, and does not say why"), settle.MaxLogged)
}

// FaultClass returns the class of the fault in the error queue.
func (e *decidedError) FaultClass() string { return e.class }
