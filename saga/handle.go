package saga

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/transport"
)

// handle finds the instance that a message is for, calls the step, and stores the state.
func (t *messageSteps[S]) handle(ctx context.Context, s *endpoint.Session, m any) (err error) {
	call := stateful.CallOf(ctx)
	to, err := t.target(call.Kind, &call.Receive.Headers, m, call.Known)
	if err != nil || to.step == nil {
		return err
	}
	in := &instance[S]{
		saga: t.saga, session: s, call: call, target: to,
		Invocation: Invocation{
			Saga: t.saga.name, Type: call.Kind, ID: textOf(to.id), Key: to.key,
			Timeout: to.step.role == roleTimeout, Started: time.Now(),
		},
	}
	defer func() {
		in.Err, in.Finished = err, time.Now()
		add(call.Receive, in.Invocation)
	}()
	in.Err = errPanicked
	return in.handle(ctx, m)
}

var errPanicked = errors.New("the step panicked")

// instance is an instance of a saga while a message is handled.
type instance[S any] struct {
	Invocation

	saga    *Saga[S]
	session *endpoint.Session
	call    *stateful.Call
	target  target[S]
	store   transport.StateStore
	record  transport.Record
	meta    meta
	state   S               // as loaded
	text    json.RawMessage // that the state was decoded from; nil for a new instance
}

func (in *instance[S]) handle(ctx context.Context, m any) error {
	switch err := in.load(ctx); {
	case errors.Is(err, transport.ErrNoRecord):
		return in.unknown(ctx, m)
	case err != nil:
		return in.failure(err)
	}
	if reason, err := in.open(); err != nil {
		return in.failure(err)
	} else if reason != "" {
		in.ignore(ctx, reason)
		return nil
	}
	c := &Context[S]{Session: in.session, State: in.state, in: in}
	in.call.SetOutgoing(header.OriginatingSagaID, in.ID)
	in.call.SetOutgoing(header.OriginatingSagaType, in.Type)
	err := in.step(ctx, c, m)
	if err != nil {
		return err
	}
	if err := in.save(ctx, c); err != nil {
		return in.failure(err)
	}
	return nil
}

// step calls the user's function.
func (in *instance[S]) step(ctx context.Context, c *Context[S], m any) error {
	defer c.end()
	return in.target.step.call(ctx, c, m)
}

// load loads the record of the instance, and a new one for a message that begins the instance.
func (in *instance[S]) load(ctx context.Context) error {
	tx, err := in.session.Tx(ctx)
	if err != nil {
		return err
	}
	store, ok := transport.TxOf[transport.StateStore](tx)
	if !ok {
		return errors.New("the transaction of the message stores no records")
	}
	in.store = store
	var create *transport.RecordName
	if in.target.begins() {
		create = &transport.RecordName{Kind: in.call.Kind, Key: in.target.key}
	}
	began := time.Now()
	in.record, err = store.Load(ctx, in.target.id, create)
	in.Waited += time.Since(began)
	err = stateful.Failed(err)
	if err == nil && in.record.Name.Kind != in.call.Kind {
		return fmt.Errorf("%w: the id is that of another kind, %q", transport.ErrNoRecord, in.record.Name.Kind)
	}
	return err
}

// open reads the loaded record. The message is ignored for the reason, unless that is "".
func (in *instance[S]) open() (reason Ignored, err error) {
	in.Key = in.record.Name.Key
	switch in.record.Status {
	case transport.RecordNew:
		in.begin()
		return "", nil
	case transport.RecordEnded:
		if !in.saga.restarts || !in.target.begins() {
			return IgnoredEnded, nil
		}
		in.begin()
		return "", nil
	case transport.RecordActive:
	}
	if in.meta, err = parseMeta(in.record.Meta); err != nil {
		return "", err
	}
	if in.Timeout && !in.fire() {
		return IgnoredCancelled, nil
	}
	in.state, in.text, err = in.saga.decode(in.record.State, in.meta.Version)
	return "", err
}

// begin makes the loaded record one of a new instance.
func (in *instance[S]) begin() {
	h := &in.call.Receive.Headers
	id := in.session.MessageID()
	in.New = true
	in.meta = meta{Version: in.saga.version(), Starter: starter{
		MessageID: id, ReplyTo: h.Get(header.ReplyToAddress), CorrelationID: cmp.Or(h.Get(header.CorrelationID), id),
		ConversationID: h.Get(header.ConversationID),
		SagaID:         h.Get(header.OriginatingSagaID), SagaType: h.Get(header.OriginatingSagaType),
	}}
}

// fire reports whether the message is a waiting time-out, which waits no more. Another one was
// cancelled or replaced when it was on its way.
func (in *instance[S]) fire() bool {
	name, ok := in.meta.timeoutOf(in.call.Receive.Headers.Get(header.HoldfastSagaTimeout))
	delete(in.meta.Timeouts, name)
	return ok
}

// save stores the instance after the step, if it has changed, and removes the time-outs of one that
// is completed.
func (in *instance[S]) save(ctx context.Context, c *Context[S]) error {
	if in.Completed = c.completed; in.Completed {
		return in.end(ctx)
	}
	state, err := in.saga.encode(&c.State, in.text)
	if err != nil {
		return err
	}
	in.State = state
	if !in.New && bytes.Equal(state, in.record.State) && bytes.Equal(in.meta.text(), in.record.Meta) {
		return nil
	}
	return in.saveAs(ctx, transport.RecordActive)
}

// end stores that the instance has ended.
func (in *instance[S]) end(ctx context.Context) error {
	in.meta.Timeouts = nil
	if in.call.Remember <= 0 {
		if in.record.Status == transport.RecordNew {
			return nil
		}
		return in.store.Remove(ctx, in.record.ID)
	}
	return in.saveAs(ctx, transport.RecordEnded)
}

func (in *instance[S]) saveAs(ctx context.Context, status transport.RecordStatus) error {
	in.meta.Version = in.saga.version()
	in.record.State, in.record.Meta, in.record.Status = in.State, in.meta.text(), status
	if status == transport.RecordEnded {
		in.record.State, in.record.Keep = nil, in.call.Remember
	}
	return in.store.Save(ctx, in.record)
}

// unknown handles a message for an instance that does not exist.
func (in *instance[S]) unknown(ctx context.Context, m any) error {
	st := in.target.step
	switch {
	case st.role == roleTimeout:
		in.ignore(ctx, IgnoredUnknown)
		return nil
	case st.orElse == nil:
		return in.failure(ErrUnknownInstance)
	}
	in.ignore(ctx, IgnoredUnknown)
	return st.orElse(ctx, in.session, m)
}

// ignore records that the message changes nothing.
func (in *instance[S]) ignore(ctx context.Context, reason Ignored) {
	in.Ignored = reason
	level := slog.LevelInfo
	if in.Timeout { // a time-out that was cancelled when it was due is nothing unusual
		level = slog.LevelDebug
	}
	in.call.Log.Log(ctx, level, "a message of a saga is ignored", slog.String("reason", reason.text()),
		slog.String("saga", in.saga.name), slog.String("instance", cmp.Or(in.Key, in.ID)),
		slog.String("message", in.session.MessageID()))
}

// failure returns an error that names the instance.
func (in *instance[S]) failure(err error) error {
	return fmt.Errorf("saga %q, instance %q: %w", in.saga.name, cmp.Or(in.Key, in.ID), err)
}
