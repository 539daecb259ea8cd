package endpoint

import (
	"context"

	"github.com/holdfast-go/holdfast/endpoint/internal/typelimit"
)

// enterLimit waits until the type's limiter, if there is one, admits the message. A behavior may
// have the message decoded again, after which it may be of another type.
func (a *attempt) enterLimit(ctx context.Context, l *typelimit.Limiter) error {
	if l == nil || a.limiter == l {
		return nil
	}
	a.leaveLimit()
	if err := l.Enter(ctx, a.slot); err != nil {
		return err
	}
	a.limiter = l
	return nil
}

// leaveLimit admits the next message, before the slot is freed for it.
func (a *attempt) leaveLimit() {
	if a.limiter != nil {
		a.limiter.Leave()
		a.limiter = nil
	}
}
