package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"

	"github.com/holdfast-go/holdfast/endpoint/internal/keylock"
	"github.com/holdfast-go/holdfast/endpoint/internal/process"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/endpoint/internal/work"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/resilience"
	"github.com/holdfast-go/holdfast/transport"
)

// received is a message in process. The first attempt is allocated with the message. Each further
// attempt is new, with a new session: see [process.Attempts].
type received struct {
	process.Message

	e     *Endpoint
	site  *site
	first attempt
}

// attempt is one attempt at a message, with the values of its stages.
type attempt struct {
	process.Attempt

	e        *Endpoint
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
	return r.Sender().(*Session).attempt.(*attempt) //nolint:errcheck // NewAttempt has put it there
}

// NewAttempt implements [process.Attempts].
func (r *received) NewAttempt() *process.Attempt {
	a := &r.first
	if a.e != nil {
		a = &attempt{}
	}
	m := r.Original
	if r.e.copies {
		m = settle.SharedCopy(m)
	}
	a.e, a.Message, a.Of, a.Unit = r.e, &r.Message, a, &a.session.unit
	a.session.open(r.site, &a.Attempt)
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
		return frameOf(a.handler.pc)
	case a.Dispatch.Incoming != nil:
		return fault.Frame{Func: stages + "Dispatch"}
	}
	return fault.Frame{Func: stages + "Receive"}
}

// NewSession implements [recovery.Attempt].
func (a *attempt) NewSession() (pipeline.Sender, *work.Unit) {
	s := new(Session)
	s.open(a.session.site, &a.Attempt)
	s.recovers = true
	return s, &s.unit
}

// Recovering implements [recovery.Attempt].
func (a *attempt) Recovering(s pipeline.Sender) pipeline.Receive { return a.Receive.Recovering(s) }

// The names of the functions of the program that the watch counts beside handlers: see
// [overdue.Call.EnterFunction]. A key function has the name of its handler, and package process has
// the names of others.
var (
	nameDecode   = "the decoding of the message"
	nameDispatch = "a behavior of stage Dispatch"
	nameRelay    = "a behavior of stage Relay"
)

// decode is the end of the Receive stage: decode finds the type, reads the body and goes on with
// the Logical stage.
func decode(ctx context.Context, r *pipeline.Receive) error {
	a := attemptOf(r)
	t, err := a.recognise(r)
	if err != nil {
		if r.Headers.Get(header.EnclosedMessageTypes) != "" {
			a.reportForeign(ctx, err)
		}
		return recoverability.Unrecoverable(&unhandledError{classedError{err, "unhandled"}})
	}
	a.Running.EnterFunction(&nameDecode)
	value, err := a.read(r, t)
	a.Running.LeaveFunction()
	if err != nil {
		return recoverability.Unrecoverable(newUndecodableError(err))
	}
	if err := a.lockKeys(ctx, r, value); err != nil { // before the limit: a waiting message is not within the limit
		return err
	}
	if err := a.EnterLimit(ctx, t.limiter); err != nil {
		return err
	}
	a.logical = pipeline.Logical{Receive: r, Type: t.name, Value: value}
	return a.e.logical(ctx, &a.logical)
}

// reportForeign logs, once, that a message was received that the endpoint does not handle: another
// program may receive from the queue.
func (a *attempt) reportForeign(ctx context.Context, cause error) {
	if a.e.foreign.Swap(true) {
		return
	}
	a.e.cfg.Logger.WarnContext(ctx, "a message was received that the endpoint does not handle: another program with the name of this "+
		"endpoint may receive from this queue, with other handlers; each endpoint needs a name of its own", slog.String("queue", a.Queue), slog.String("error", errtree.Cut(cause.Error(), settle.MaxLogged)))
}

// recognise returns the registered type of the message, and sets the handlers.
func (a *attempt) recognise(r *pipeline.Receive) (t *messageType, err error) {
	enclosed := r.Headers.Get(header.EnclosedMessageTypes)
	t, a.calls = a.e.types.named(enclosed)
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
	s, err := a.e.serializers.reader(r.Headers.Get(header.ContentType))
	if err != nil {
		return nil, err
	}
	if err := withheld(r.Headers, r.Body); err != nil {
		return nil, err
	}
	value := reflect.New(t.goType).Interface()
	if err := s.Unmarshal(r.Body, value); err != nil {
		return nil, err
	}
	a.bases = nil
	for i := range a.calls {
		as := a.calls[i].as
		if as == t || a.as(as) != nil {
			continue
		}
		base := baseValue{as, reflect.New(as.goType).Interface()}
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

// lockKeys waits, without a slot, until the message has the keys of its handlers. A behavior may
// have the message decoded again.
func (a *attempt) lockKeys(ctx context.Context, r *pipeline.Receive, value any) error {
	keys, err := a.findKeys(r, value)
	if err != nil || len(keys) == 0 {
		return err
	}
	return a.TakeKeys(ctx, keys)
}

// findKeys calls the key functions of the handlers, and returns the distinct keys.
func (a *attempt) findKeys(r *pipeline.Receive, value any) (keys []keylock.Key, err error) {
	a.callKeys = nil
	for i := range a.calls {
		c := &a.calls[i]
		if c.key == nil {
			continue
		}
		if a.callKeys == nil {
			a.callKeys = make([]string, len(a.calls))
		}
		m := stateful.Message{Endpoint: a.e.cfg.Name, Kind: c.kind, Headers: &r.Headers, Value: value, Known: a.e.types.stores}
		if base := a.as(c.as); base != nil {
			m.Value = base
		}
		a.handler = &c.Handler
		a.Running.EnterFunction(&c.keyName)
		a.callKeys[i], err = c.key(m)
		a.Running.LeaveFunction()
		if err != nil {
			return nil, fmt.Errorf("handler %s: %w", c.name, err)
		}
		a.handler = nil
		if key := (keylock.Key{Kind: c.kind, Name: a.callKeys[i]}); key.Name != "" && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// invokeAll is the end of the Logical stage: an Invoke stage for each handler, in order, until a
// handler calls DoNotContinue.
func invokeAll(ctx context.Context, l *pipeline.Logical) error {
	a := attemptOf(l.Receive)
	if a.e.bounded {
		return a.invokeWithin(ctx, l)
	}
	return a.invokeCalls(ctx, l)
}

// invokeWithin calls the handlers of the message within the limits of the policy or type: with the
// number of the attempt in the context, and with a deadline for all handlers together. The deadline
// replaces Config.HandlerTimeout.
func (a *attempt) invokeWithin(ctx context.Context, l *pipeline.Logical) error {
	typ := settle.FirstType(a.Original.Headers)
	use := a.Config.RetryOf(typ, a.Original.Headers)
	if use.Mode != 0 {
		made := a.Inline
		if use.Mode == resilience.DeferredMode {
			made = fault.DelayedRetries(a.Original.Headers)
		}
		ctx = resilience.WithAttempt(ctx, made+1, use.Policy.Retries()+1)
	}
	timed, _ := a.Config.LimitOf(typ, a.Original.Headers)
	policy, limit := timed.Name, timed.Timeout
	if t := a.e.types.byName[l.Type]; limit == 0 && t != nil { // a behavior may have changed Type
		policy, limit = "", t.timeout
	}
	if limit == 0 {
		return a.invokeCalls(ctx, l)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, resilience.ErrAttemptTimeout)
	defer cancel()
	a.limited = true
	a.Calls.Limit(a.Running, limit)
	defer a.Calls.Limit(a.Running, 0)
	err := a.invokeCalls(ctx, l)
	if err != nil && errors.Is(context.Cause(ctx), resilience.ErrAttemptTimeout) {
		late := &resilience.TimeoutError{After: limit, Err: err}
		return &attemptTimeoutError{classedError{late, recoverability.ClassTimeout}, policy}
	}
	return err
}

func (a *attempt) invokeCalls(ctx context.Context, l *pipeline.Logical) error {
	before, err := a.session.begin(ctx, work.AllHandlers)
	if err != nil {
		return err
	}
	handled := false
	defer func() { // also after a panic, which a behavior may recover from
		if !handled {
			a.session.drop(before)
		}
	}()
	for i := range a.calls {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		c := &a.calls[i]
		a.at, a.handler = i, &c.Handler
		a.Running.Enter(&c.name)
		a.invoke = pipeline.Invoke{Logical: l, Handler: c.name, Value: l.Value}
		if base := a.as(c.as); base != nil {
			a.invoke.Value = base
		}
		if err := a.e.invoke(ctx, &a.invoke); err != nil {
			return err
		}
		a.handler = nil
		if a.session.last.Load() {
			break
		}
	}
	handled = true
	return nil
}

// invokeOne is the end of the Invoke stage: the user's function.
func invokeOne(ctx context.Context, i *pipeline.Invoke) error {
	a := attemptOf(i.Receive)
	before, err := a.session.begin(ctx, a.at)
	if err != nil {
		return fmt.Errorf("handler %s: %w", i.Handler, err)
	}
	handled := false
	defer func() {
		if !handled {
			a.session.drop(before)
		}
	}()
	if c := a.statefulCall(); c != nil {
		ctx = c.In(ctx)
		a.session.call.Store(c)
		defer a.session.call.Store(nil)
	}
	err = a.call(ctx, i.Value)
	if err == nil {
		err = a.session.raiseError() // the handler has dropped the error
	}
	if err != nil {
		return fmt.Errorf("handler %s: %w", i.Handler, err)
	}
	handled = true
	return nil
}

// statefulCall returns the call of the invoked handler, if the handler has records.
func (a *attempt) statefulCall() *stateful.Call {
	c := &a.calls[a.at]
	if c.state == nil {
		return nil
	}
	return &stateful.Call{
		Endpoint: a.e.cfg.Name, Kind: c.kind, Key: a.callKeys[a.at], Remember: a.e.rememberRecords(),
		Known: a.e.types.stores, Waited: a.Keys.Waited(), Receive: &a.Receive, Log: a.Log,
		CancelTimer: a.session.cancelTimer,
	}
}

// call calls the handler, within the time limit of handlers unless the attempt has a limit.
func (a *attempt) call(ctx context.Context, value any) error {
	limit := a.e.cfg.HandlerTimeout
	if limit == 0 || a.limited {
		return a.handler.invoke(ctx, &a.session, value)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, ErrHandlerTimeout)
	defer cancel()
	a.Calls.Limit(a.Running, limit)
	defer a.Calls.Limit(a.Running, 0)
	err := a.handler.invoke(ctx, &a.session, value)
	if err != nil && context.Cause(ctx) == ErrHandlerTimeout { //nolint:errorlint // the very cause given above
		return &handlerTimeoutError{limit, err}
	}
	return err
}

// attemptTimeoutError is the error of an attempt whose time was over when its handlers returned.
type attemptTimeoutError struct {
	classedError
	policy string // "" for the limit of a type
}

func (e *attemptTimeoutError) Error() string {
	if e.policy == "" {
		return fmt.Sprintf("Message.Timeout: %v", e.error)
	}
	return fmt.Sprintf("policy %q: %v", e.policy, e.error)
}

// watched returns stage Dispatch for messages. The watch counts the time of the behaviors.
func watched(stage pipeline.Func[*pipeline.Dispatch]) pipeline.Func[*pipeline.Dispatch] {
	return func(ctx context.Context, d *pipeline.Dispatch) error {
		a := attemptOf(d.Incoming)
		a.Running.EnterFunction(&nameDispatch)
		a.Calls.Begin(a.Running, a.Queue, a.ID, a.Slot.Goroutine())
		defer a.Calls.End(a.Running)
		return stage(ctx, d)
	}
}

// dispatchEnd is the end of the Dispatch stage: the operations of a message are sent, and the
// message is completed. Operations of no message are sent by dispatch.
func dispatchEnd(dispatch pipeline.Func[*pipeline.Dispatch]) pipeline.Func[*pipeline.Dispatch] {
	return func(ctx context.Context, d *pipeline.Dispatch) error {
		if d.Incoming == nil {
			return dispatch(ctx, d)
		}
		a := attemptOf(d.Incoming)
		if a.e.watchesDispatch {
			a.Calls.Suspend(a.Running)
			defer a.Calls.Resume(a.Running)
		}
		return a.Finish(ctx, d.Operations)
	}
}

// recoverEnd is the end of the Recover stage.
func recoverEnd(ctx context.Context, rec *pipeline.Recover) error {
	return attemptOf(rec.Receive).RecoveredBy.AtEndOfStage(ctx, rec)
}
