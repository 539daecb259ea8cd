package endpoint

import (
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
)

// decode is the end of the Receive stage: decode finds the type, reads the body and goes on with the
// Logical stage.
func decode(ctx context.Context, r *pipeline.Receive) error {
	a := attemptOf(r)
	t, err := a.recognise(r)
	if err != nil {
		if r.Headers.Get(header.EnclosedMessageTypes) != "" {
			a.live.e.reportForeign(ctx, a.Queue, err)
		}
		return recoverability.Unrecoverable(&unhandledError{err})
	}
	a.Running.EnterFunction(&nameDecode)
	value, err := a.read(r, t)
	a.Running.LeaveFunction()
	if err != nil {
		return recoverability.Unrecoverable(&undecodableError{err})
	}
	if err := a.lockKeys(ctx, r, value); err != nil { // before the limit: a waiting message is not within the limit
		return err
	}
	if err := a.Limit.Enter(ctx, t.limiter, a.Slot); err != nil {
		return err
	}
	a.logical = pipeline.Logical{Receive: r, Type: t.name, Value: value}
	return a.live.e.logical(ctx, &a.logical)
}

// recognise returns the registered type of the message, and sets the handlers.
func (a *attempt) recognise(r *pipeline.Receive) (t *messageType, err error) {
	enclosed := r.Headers.Get(header.EnclosedMessageTypes)
	t, a.calls = a.live.e.types.named(enclosed)
	switch {
	case enclosed == "":
		return nil, fmt.Errorf("the message has no %s header", header.EnclosedMessageTypes)
	case t == nil:
		return nil, fmt.Errorf("message type %.512q: %w", enclosed, errNotRegistered)
	case len(a.calls) == 0:
		return nil, fmt.Errorf("message type %q: %w", t.name, errNoHandler)
	}
	return t, nil
}

// baseValue is a message read into a base type.
type baseValue struct {
	of    *messageType
	value any
}

// read returns the message as t, and keeps the message as each further type of the handlers.
func (a *attempt) read(r *pipeline.Receive, t *messageType) (any, error) {
	s, err := a.live.e.serializers.reader(r.Headers.Get(header.ContentType))
	if err != nil {
		return nil, err
	}
	if err := withheld(r.Headers, r.Body); err != nil {
		return nil, err
	}
	value := t.newValue()
	if err := s.Unmarshal(r.Body, value); err != nil {
		return nil, err
	}
	a.bases = nil
	for i := range a.calls {
		as := a.calls[i].as
		if as == t || a.as(as) != nil {
			continue
		}
		base := baseValue{as, as.newValue()}
		if err := s.Unmarshal(r.Body, base.value); err != nil {
			return nil, err
		}
		a.bases = append(a.bases, base)
	}
	return value, nil
}

// as returns the message as a base type, or nil if the message was not read as t.
func (a *attempt) as(t *messageType) any {
	for i := range a.bases {
		if a.bases[i].of == t {
			return a.bases[i].value
		}
	}
	return nil
}
