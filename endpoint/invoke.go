package endpoint

import (
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast/pipeline"
)

// invokeAll is the end of the Logical stage: one Invocation per handler, in order, until
// one of them wants no more.
func (e *Endpoint) invokeAll(ctx context.Context, l *pipeline.Logical) error {
	in := attempt(l.Receive)
	kept := in.session.begin()
	for i := range in.calls {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		c := &in.calls[i]
		in.handler = &c.Handler
		in.invoke = pipeline.Invoke{Logical: l, Handler: c.name, Value: l.Value}
		if base := in.as(c.as); base != nil {
			in.invoke.Value = base
		}
		if err := e.invoke(ctx, &in.invoke); err != nil {
			in.session.drop(kept)
			return err
		}
		if in.session.enough() {
			return nil
		}
	}
	return nil
}

// invokeOne is the end of the Invoke stage: the user's function.
func (e *Endpoint) invokeOne(ctx context.Context, i *pipeline.Invoke) error {
	in := attempt(i.Receive)
	kept := in.session.begin()
	if err := in.call(ctx, i.Value); err != nil {
		in.session.drop(kept)
		return fmt.Errorf("handler %s: %w", i.Handler, err)
	}
	return nil
}

// call calls the handler, with a limit to its time where there is one.
func (in *incoming) call(ctx context.Context, value any) error {
	limit := in.e.cfg.HandlerTimeout
	if limit == 0 {
		return in.handler.invoke(ctx, in.session, value)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, ErrHandlerTimeout)
	defer cancel()
	err := in.handler.invoke(ctx, in.session, value)
	if err != nil && context.Cause(ctx) == ErrHandlerTimeout { //nolint:errorlint // the very cause given above
		return fmt.Errorf("%w: it had %v: %w", ErrHandlerTimeout, limit, err)
	}
	return err
}
