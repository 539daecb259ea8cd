package endpoint

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/endpoint/internal/panics"
	"github.com/holdfast-go/holdfast/internal/stateful"
)

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
	r := Raised{goType: handledType(t)}
	switch {
	case fn == nil:
		r.err = fmt.Errorf("OnRaised of %v: the function is nil", t)
		return r
	case r.goType.Kind() != reflect.Struct && r.goType.Kind() != reflect.Interface:
		r.err = fmt.Errorf("OnRaised of %v: an event is a struct, a pointer to one, or an interface", t)
		return r
	}
	h := Handler{}
	h.isFunc(fn)
	r.name = h.name
	r.call = func(ctx context.Context, s *Session, e any) error { return fn(ctx, s, stateful.As[E](e)) }
	return r
}

// takes reports whether the function is for events of a struct.
func (r *Raised) takes(t reflect.Type) bool {
	return r.goType == t || r.goType.Kind() == reflect.Interface && reflect.PointerTo(t).Implements(r.goType)
}

func (c Config) validateRaised(bad func(format string, args ...any)) {
	for i, r := range c.Raised {
		switch {
		case r.err != nil:
			bad("%w", r.err)
		case r.call == nil:
			bad("Raised: function %d is a zero Raised: use OnRaised", i+1)
		}
	}
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
	if err != nil {
		return err
	}
	if err := s.mayRaise(); err != nil {
		return err
	}
	chain, _ := ctx.Value(raisedKey{}).([]string)
	if len(chain) >= maxRaised {
		return fmt.Errorf("%d events are raised within each other, probably in a circle: %s", len(chain),
			strings.Join(chain[maxRaised-8:], " > "))
	}
	ctx = context.WithValue(ctx, raisedKey{}, append(slices.Clip(chain), t.String()))
	var errs []error
	for i := range s.in.live.e.cfg.Raised {
		r := &s.in.live.e.cfg.Raised[i]
		if !r.takes(t) {
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

// mayRaise returns an error for a session that raises no events.
func (s *Session) mayRaise() error {
	switch {
	case s.unit.IsOver():
		return ErrSessionOver
	case s.recovers:
		return errors.New("a Recover stage and OnFinalFailure raise no events: they have no handler")
	}
	return nil
}

// raiseError returns the errors of Raise since the handlers began.
func (s *Session) raiseError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.raised
}
