package endpoint

import (
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast/endpoint/internal/work"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/pipeline"
)

// invokeAll is the end of the Logical stage: an Invoke stage for each handler, in order, until a
// handler calls DoNotContinue.
func invokeAll(ctx context.Context, l *pipeline.Logical) error {
	a := attemptOf(l.Receive)
	if a.live.e.bounded {
		return a.invokeWithin(ctx, l)
	}
	return a.invokeCalls(ctx, l)
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
		if err := a.live.e.invoke(ctx, &a.invoke); err != nil {
			return err
		}
		a.handler = nil
		if a.session.enough() {
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
		a.session.setCall(c)
		defer a.session.setCall(nil)
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
		Endpoint: a.live.e.cfg.Name, Kind: c.kind, Key: a.callKeys[a.at], Remember: a.live.e.rememberRecords(),
		Known: a.live.e.types.stores, Waited: a.Keys.Waited(), Receive: &a.Receive, Log: a.Log,
		CancelTimer: a.session.cancelTimer,
	}
}

// call calls the handler, within the time limit of handlers unless the attempt has a limit.
func (a *attempt) call(ctx context.Context, value any) error {
	limit := a.live.e.cfg.HandlerTimeout
	if limit == 0 || a.limited {
		return a.handler.invoke(ctx, &a.session, value)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, ErrHandlerTimeout)
	defer cancel()
	a.Calls.Limit(&a.Running, limit)
	defer a.Calls.Limit(&a.Running, 0)
	err := a.handler.invoke(ctx, &a.session, value)
	if err != nil && context.Cause(ctx) == ErrHandlerTimeout { //nolint:errorlint // the very cause given above
		return &handlerTimeoutError{limit, err}
	}
	return err
}
