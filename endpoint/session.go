package endpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/endpoint/internal/panics"
	"github.com/holdfast-go/holdfast/endpoint/internal/process"
	"github.com/holdfast-go/holdfast/endpoint/internal/recovery"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/endpoint/internal/work"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/internal/timer"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
)

// Session gives a handler the properties of its message and sends messages with it. It is over when
// the handlers of the message have returned. It is safe for concurrent use by goroutines of the
// handler.
type Session struct {
	scope

	site     *site
	delivery *settle.Delivery
	attempt  recovery.Attempt // see attemptOf

	last atomic.Bool                   // no handler follows the one that runs
	call atomic.Pointer[stateful.Call] // of the handler that runs, if it has records

	mu     sync.Mutex // guards raised
	raised error      // of Raise
}

// site is what the sessions of a running endpoint share.
type site struct {
	sender *sender
	live   *live
	raised []Raised
}

var _ pipeline.Sender = (*Session)(nil)

// MessageID returns the id of the message, the same at every attempt. If the sender has given the
// message no id, MessageID returns "native:" and the broker's number of the message, or on RabbitMQ
// "content:" and a hash of the message, or "". Several messages may have such an id, see
// [Session.HasID].
func (s *Session) MessageID() string { return s.delivery.ID }

// HasID reports whether the sender has given the message its id. If not, the inbox does not
// recognize a second delivery of the message, and another message may have the same
// [Session.MessageID], so do not use that as an idempotency key.
func (s *Session) HasID() bool { return settle.IsNamed(s.delivery.ID) }

// Header returns the value of a header of the message, or "".
func (s *Session) Header(name string) string { return s.receive.Headers.Get(name) }

// Headers returns a copy of the message's headers.
func (s *Session) Headers() header.Map { return s.receive.Headers.Clone() }

// Attempt returns the delivery count of the message, this delivery included.
func (s *Session) Attempt() transport.Attempt { return s.receive.Attempt }

// Native returns the broker's property of that name, or "".
func (s *Session) Native(name string) string { return s.receive.Native(name) }

// Send sends m, a registered command or response, to the queue of its route or of [To], when all
// handlers of the message have returned nil.
func (s *Session) Send(ctx context.Context, m any, opts ...SendOption) error {
	return s.site.sender.send(ctx, m, "", opts, &s.scope)
}

// SendLocal sends m, a registered command or response, to the endpoint's own queue, when all
// handlers of the message have returned nil.
func (s *Session) SendLocal(ctx context.Context, m any, opts ...SendOption) error {
	return s.site.sender.sendLocal(ctx, m, opts, &s.scope)
}

// Forward sends the message being handled to another queue as it was received, when all handlers of
// the message have returned nil: with the same id, headers and body, and without the Outgoing
// stage. Headers that count retries are left out, so the message has all of its attempts there.
func (s *Session) Forward(_ context.Context, queue string) error {
	if queue == "" {
		return errors.New("forward: the queue is empty")
	}
	if queue = s.site.live.names.Of(queue); queue == s.delivery.Queue && s.unit.Key != nil {
		return fmt.Errorf("forward to %q: that is the queue of the message, where it would be taken for a message that was handled before: "+
			"use SendLocal", queue)
	}
	op := s.delivery.CopyTo(queue, fault.ForwardHeaders(s.delivery.Original.Headers), 0)
	m := op.Message // the Dispatch stage may change it
	m.Body, m.Native = slices.Clone(m.Body), maps.Clone(m.Native)
	return s.unit.Keep(op)
}

// Publish sends m, a registered event, to the subscribers of its type and of its base types, when
// all handlers of the message have returned nil.
func (s *Session) Publish(ctx context.Context, m any, opts ...PublishOption) error {
	return s.site.sender.publish(ctx, m, opts, &s.scope)
}

// Reply sends m to the reply-to address of the message being handled, when all handlers of the
// message have returned nil.
func (s *Session) Reply(ctx context.Context, m any, opts ...ReplyOption) error {
	queue := s.receive.Headers.Get(header.ReplyToAddress)
	return sendAs(ctx, s.site.sender, header.IntentReply, m, queue, opts, ReplyOption.ApplyReply, &s.scope)
}

// DoNotContinue skips the remaining handlers of the message. It is handled, and its messages are
// sent, when this handler has returned nil.
func (s *Session) DoNotContinue() {
	s.last.Store(true)
}

// Tx returns the transaction in which the message is completed, or in which the outbox stores that
// it was handled: begun at the first call, the same for all handlers of the message. It needs
// [Config].Outbox or [SendsAtomicWithReceive]. A function of the driver's package uses it, such as
// postgres.Tx or sqlite.OnCommit. The endpoint commits it when the handlers have returned nil, and
// rolls it back otherwise.
//
// If a behavior calls next again after a failure, or drops the error, the transaction that the
// failed handlers have begun is rolled back, and another one begins. In a transaction that was open
// before, next cannot be called again.
func (s *Session) Tx(ctx context.Context) (transport.HandlerTx, error) {
	tx, err := s.unit.Tx(ctx)
	if err != nil {
		return transport.HandlerTx{}, err //nolint:wrapcheck // the database names itself
	}
	return transport.NewHandlerTx(tx), nil
}

// open makes a session of an attempt.
func (s *Session) open(at *site, a *process.Attempt) {
	s.site, s.attempt, s.delivery, s.receive = at, a.Of, &a.Delivery, &a.Receive
	s.unit.Store, s.unit.Delivery, s.unit.ID = at.live, a.Received, a.ID
}

// addOutgoing implements caller.
func (s *Session) addOutgoing(h *header.Map) {
	if c := s.call.Load(); c != nil {
		c.AddOutgoing(h)
	}
}

// begin starts the handler of a number, or all of them, perhaps again: see [work.Unit.Begin].
func (s *Session) begin(ctx context.Context, handler int) (work.Mark, error) {
	s.last.Store(false)
	return s.unit.Begin(ctx, handler) //nolint:wrapcheck // the caller names the handler
}

// drop removes what a failed call of handlers has sent and raised.
func (s *Session) drop(m work.Mark) {
	s.unit.Drop(m)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.raised = nil
}

// CancelTimer removes the waiting timer with the name. If no timer waits, CancelTimer returns nil.
// The removal is part of the commit of the handled message, in the order of the handler's calls: a
// timer that is set after the removal waits. A timer that was due before the commit may be sent
// already, and is handled.
func (s *Session) CancelTimer(_ context.Context, name string) error {
	return s.cancelTimer(timer.Name{Name: name})
}

func (s *Session) cancelTimer(name timer.Name) error {
	err := s.site.live.checkTimer(name)
	switch {
	case s.recovers:
		err = errRecovers
	case err == nil:
		err = s.unit.Keep(transport.Operation{Name: name.Text()})
	}
	if err != nil {
		return fmt.Errorf("cancel timer: %w", err)
	}
	return nil
}

// Raised is a function for the domain events of a type, in [Config].Raised. [OnRaised] makes one.
type Raised struct {
	goType reflect.Type // a struct or an interface
	name   string
	call   func(ctx context.Context, s *Session, e any) error // e is a pointer to the struct
	err    error
}

// OnRaised returns a function for the events E that [Session.Raise] raises. E is a struct, a
// pointer to one, or an interface: then fn is called for every event that implements it, itself or
// by its pointer. An event needs no registration as a message, for it does not leave the process.
//
// s is the session of the handler that raises the event: fn writes in its transaction, and sends
// with its messages. Many goroutines call fn at once.
func OnRaised[E any](fn func(ctx context.Context, s *Session, e E) error) Raised {
	t := reflect.TypeFor[E]()
	r := Raised{goType: structType(t)}
	switch {
	case fn == nil:
		r.err = fmt.Errorf("OnRaised of %v: the function is nil", t)
		return r
	case r.goType.Kind() != reflect.Struct && r.goType.Kind() != reflect.Interface:
		r.err = fmt.Errorf("OnRaised of %v: an event is a struct, a pointer to one, or an interface", t)
		return r
	}
	r.name = shortName(frameOf(reflect.ValueOf(fn).Pointer()).Func)
	r.call = func(ctx context.Context, s *Session, e any) error { return fn(ctx, s, stateful.As[E](e)) }
	return r
}

// maxRaised is the number of events that may be raised within each other.
const maxRaised = 32

type raisedKey struct{}

// Raise calls the functions of [Config].Raised for e, a struct or a pointer to one, in the order of
// the Config, and waits for them. They are part of the handler: what they write in [Session.Tx] and
// send is committed with the message, or not at all. An event without a function is no error.
//
// All functions are called, also when one returns an error or panics. Raise returns their errors
// joined, and the handler fails with them even if it returns nil: a part of its work is missing.
// When ctx ends, no further function is called.
//
// A function may raise events with its ctx, at most 32 within each other: more are an error, as in
// a circle. Raise is not for a Recover stage or [Config].OnFinalFailure.
func (s *Session) Raise(ctx context.Context, e any) error {
	err := s.raise(ctx, e)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("raise %T: %w", e, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.raised = errors.Join(s.raised, err)
	return err
}

func (s *Session) raise(ctx context.Context, e any) error {
	event, t, err := eventOf(e)
	switch {
	case err != nil:
		return err
	case s.unit.IsOver():
		return ErrSessionOver
	case s.recovers:
		return errors.New("a Recover stage and OnFinalFailure raise no events: they have no handler")
	}
	chain, _ := ctx.Value(raisedKey{}).([]string)
	if len(chain) >= maxRaised {
		return fmt.Errorf("%d events are raised within each other, probably in a circle: %s", len(chain),
			strings.Join(chain[maxRaised-8:], " > "))
	}
	ctx = context.WithValue(ctx, raisedKey{}, append(slices.Clip(chain), t.String()))
	var errs []error
	for i := range s.site.raised {
		r := &s.site.raised[i]
		if !takes(r.goType, t) {
			continue
		}
		if ctx.Err() != nil {
			return errors.Join(append(errs, context.Cause(ctx))...)
		}
		if err := r.run(ctx, s, event); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", r.name, err))
		}
	}
	return errors.Join(errs...)
}

// run calls the function. A panic is its error.
func (r *Raised) run(ctx context.Context, s *Session, event any) (err error) {
	defer panics.Catch(&err)
	return r.call(ctx, s, event)
}

// eventOf returns an event as a pointer to its struct, and the struct.
func eventOf(e any) (event any, t reflect.Type, err error) {
	v := reflect.ValueOf(e)
	switch {
	case !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil():
		return nil, nil, errors.New("the event is nil")
	case v.Kind() == reflect.Struct:
		p := reflect.New(v.Type())
		p.Elem().Set(v)
		return p.Interface(), v.Type(), nil
	case v.Kind() == reflect.Pointer && v.Elem().Kind() == reflect.Struct:
		return e, v.Type().Elem(), nil
	}
	return nil, nil, errors.New("an event is a struct or a pointer to one")
}

// raiseError returns the errors of Raise since the handlers began.
func (s *Session) raiseError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.raised
}
