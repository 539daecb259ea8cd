package saga

import (
	"context"
	"fmt"
	"reflect"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/stateful"
)

// Step is a step of a saga with the state S: a function for the messages of one type. [Start],
// [On], [OnTimeout] and [OnReply] make one.
type Step[S any] interface{ step() *step[S] }

// MessageStep is a [Step] for messages M that other endpoints send.
type MessageStep[S, M any] struct{ of step[S] }

// Start returns a step that begins an instance, or goes on with the one that has the key of the
// message. The type M is as for [endpoint.Handle].
//
// key returns the key of the instance that a message is for: a text of 1 to 500 bytes of valid
// UTF-8, such as the id of an order. Another key is a failure without a retry. key may be called
// several times for a message, and must return the same key each time. Of several messages that
// begin an instance at the same time, one begins it and the others go on.
//
// If the instance has ended, the message is ignored, unless the saga [Saga.Restarts].
//
// fn runs in the transaction of the message. When it returns nil, the state is stored, together
// with the messages that it sent. It must not keep c.
func Start[S, M any](
	key func(m M) string, fn func(ctx context.Context, c *Context[S], m M) error,
) *MessageStep[S, M] {
	return keyed(roleStart, key, fn)
}

// On returns a step that goes on with the instance that has the key of the message: see [Start].
// Where there is no such instance, the message fails with [ErrUnknownInstance], and is retried: the
// message that begins the instance may be late. [MessageStep.OrElse] does otherwise. If the
// instance has ended, the message is ignored.
func On[S, M any](
	key func(m M) string, fn func(ctx context.Context, c *Context[S], m M) error,
) *MessageStep[S, M] {
	return keyed(roleOn, key, fn)
}

// OnReply returns a step for replies to messages of the saga. The instance is found by the headers
// of the reply, which an endpoint copies from the request; so do endpoints of NServiceBus. No key
// is needed. An unknown instance and one that has ended are as for [On]. A message without these
// headers fails without a retry.
func OnReply[S, M any](fn func(ctx context.Context, c *Context[S], m M) error) *MessageStep[S, M] {
	return &MessageStep[S, M]{newStep(roleReply, fn)}
}

// OnTimeout returns a step for messages that [Context.SetTimeout] has set. A time-out that was
// cancelled or replaced, and one of an instance that has ended or is unknown, is ignored. A message
// M that is no time-out does not reach fn.
//
// A step stays in the program for as long as time-outs of its type may wait, also when no step sets
// them any more.
func OnTimeout[S, M any](fn func(ctx context.Context, c *Context[S], m M) error) Step[S] {
	return &MessageStep[S, M]{newStep(roleTimeout, fn)}
}

// OrElse returns the step with a function for messages to an instance that does not exist, in place
// of the error [ErrUnknownInstance]. fn may send messages, such as a reply. With nil, such messages
// are ignored. Of a [Start], which begins the instance, fn is called for replies to a saga that
// have no instance.
func (s *MessageStep[S, M]) OrElse(fn func(ctx context.Context, s *endpoint.Session, m M) error) *MessageStep[S, M] {
	with := *s
	with.of.orElse = func(ctx context.Context, s *endpoint.Session, m any) error {
		if fn == nil {
			return nil
		}
		return fn(ctx, s, stateful.As[M](m))
	}
	return &with
}

func (s *MessageStep[S, M]) step() *step[S] { return &s.of }

// role is the way in which a step finds its instance.
type role int8

const (
	roleStart role = iota
	roleOn
	roleReply
	roleTimeout
)

func (r role) String() string { return [...]string{"Start", "On", "OnReply", "OnTimeout"}[r] }

// step is a [Step] without the type of its messages. Its functions take a message as a handler
// does: a pointer to the struct.
type step[S any] struct {
	role       role
	goType     reflect.Type // a struct or an interface
	fn         any          // the user's function
	key        func(m any) string
	call       func(ctx context.Context, c *Context[S], m any) error
	orElse     func(ctx context.Context, s *endpoint.Session, m any) error // nil: an unknown instance is a failure
	newHandler func(run runFunc) endpoint.Handler
	err        error
}

// runFunc handles a message, a pointer to its struct.
type runFunc func(ctx context.Context, s *endpoint.Session, m any) error

func keyed[S, M any](
	r role, key func(m M) string, fn func(ctx context.Context, c *Context[S], m M) error,
) *MessageStep[S, M] {
	s := newStep(r, fn)
	if key == nil && s.err == nil {
		s.err = fmt.Errorf("%v of %v: the function of the key is nil", r, s.goType)
	}
	s.key = func(m any) string { return key(stateful.As[M](m)) }
	return &MessageStep[S, M]{s}
}

func newStep[S, M any](r role, fn func(ctx context.Context, c *Context[S], m M) error) step[S] {
	s := step[S]{role: r, goType: structType(reflect.TypeFor[M]()), fn: fn, newHandler: handlerOf[M]}
	if fn == nil {
		s.err = fmt.Errorf("%v of %v: the function is nil", r, s.goType)
	}
	s.call = func(ctx context.Context, c *Context[S], m any) error { return fn(ctx, c, stateful.As[M](m)) }
	return s
}

// handlerOf returns a handler of messages M that calls run with a pointer to the struct.
func handlerOf[M any](run runFunc) endpoint.Handler {
	if reflect.TypeFor[M]().Kind() == reflect.Struct {
		return endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m *M) error { return run(ctx, s, m) })
	}
	return endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m M) error { return run(ctx, s, m) })
}

// messageSteps are the steps of a saga for one type of messages.
type messageSteps[S any] struct {
	saga       *Saga[S]
	fn         any // of the first step
	newHandler func(run runFunc) endpoint.Handler

	keyed, reply, timeout *step[S] // nil where there is none
}

// place is the place of the steps among those for other types: 0 if they begin instances, else 1.
func (t *messageSteps[S]) place() int {
	if t.keyed != nil && t.keyed.role == roleStart {
		return 0
	}
	return 1
}

// add adds a step.
func (t *messageSteps[S]) add(st *step[S]) error {
	place := &t.keyed
	switch st.role {
	case roleStart, roleOn:
	case roleReply:
		place = &t.reply
	case roleTimeout:
		place = &t.timeout
	}
	if *place != nil {
		return fmt.Errorf("it has two steps for %v, %v and %v: leave one out", st.goType, (*place).role, st.role)
	}
	*place = st
	return nil
}
