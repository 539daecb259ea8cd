package endpoint

import (
	"context"

	"github.com/holdfast-go/holdfast/endpoint/internal/typelimit"
)

// enterLimit waits until the type's limiter, if there is one, admits the message. A behavior may have the message
// decoded again, after which it may be of another type.
func (in *incoming) enterLimit(ctx context.Context, l *typelimit.Limiter) error {
	if l == nil || in.limiter == l {
		return nil
	}
	in.leaveLimit()
	if err := l.Enter(ctx, in.slot); err != nil {
		return err
	}
	in.limiter = l
	return nil
}

// leaveLimit admits the next message, before the slot is freed for it.
func (in *incoming) leaveLimit() {
	if in.limiter != nil {
		in.limiter.Leave()
		in.limiter = nil
	}
}
