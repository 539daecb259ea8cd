package saga

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/pipeline"
)

// SetTimeout sends m to the instance at a later time, which is an option: [endpoint.After] or
// [endpoint.At]. A time in the past is now. The saga needs an [OnTimeout] for m, a registered
// command or response.
//
// name names the time-out within the instance: a text of 1 to 500 bytes of valid UTF-8. One of that
// name that waits is replaced. It is set, or replaced, when the step returns nil.
func (c *Context[S]) SetTimeout(ctx context.Context, name string, m any, opts ...endpoint.SendOption) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.setTimeout(ctx, name, m, opts)
	if err != nil {
		return fmt.Errorf("set time-out %.100q: %w", name, err)
	}
	return nil
}

func (c *Context[S]) setTimeout(ctx context.Context, name string, m any, opts []endpoint.SendOption) error {
	switch {
	case c.over:
		return errReturned
	case c.completed:
		return errCompleted
	case !c.in.saga.timeout(m):
		return fmt.Errorf("the saga has no OnTimeout for a %T", m)
	}
	if err := checkText("the name", name); err != nil {
		return err
	}
	if err := checkTimed(opts); err != nil {
		return err
	}
	token := uuid.New(time.Now())
	own := []endpoint.SendOption{
		stateful.Header{Name: header.SagaID, Value: c.in.ID},
		stateful.Header{Name: header.SagaType, Value: c.in.Type},
		stateful.Header{Name: header.IsSagaTimeout, Value: "True"},
		stateful.Header{Name: header.HoldfastSagaTimeout, Value: token},
	}
	if err := c.SendLocal(ctx, m, append(own, opts...)...); err != nil {
		return err
	}
	if c.in.meta.Timeouts == nil {
		c.in.meta.Timeouts = map[string]string{}
	}
	c.in.meta.Timeouts[name] = token
	return nil
}

// checkTimed returns an error for options without a time, and with one that a time-out cannot have.
func checkTimed(opts []endpoint.SendOption) error {
	const unset = math.MinInt64
	out := pipeline.Outgoing{After: unset}
	for _, opt := range opts {
		opt.ApplySend(&out)
	}
	switch {
	case out.After == unset && out.At.IsZero():
		return errors.New("it has no time: use the option After or At")
	case out.Queue != "":
		return errors.New("it is for the instance, and cannot be sent elsewhere")
	}
	return nil
}

// CancelTimeout cancels the waiting time-out of that name when the step returns nil. It is not
// handled then, even where it is on its way: its message is ignored when it is due. If none waits,
// CancelTimeout does nothing.
func (c *Context[S]) CancelTimeout(_ context.Context, name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return fmt.Errorf("cancel time-out %.100q: %w", name, errReturned)
	}
	delete(c.in.meta.Timeouts, name)
	return nil
}
