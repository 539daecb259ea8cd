package endpoint

import (
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/transport"
)

// refusedAudit is the audit copy of a handled message whose queue has refused the copy because of
// its content. The message must not be handled again because of that: the copy moves to the error
// queue.
type refusedAudit struct {
	err    error // of the audit queue
	tried  int   // candidates that the error queue refused, and the driver did not foresee
	ended  bool  // the error queue refused all candidates
	copied *refusedCopy
}

// auditRefused reports whether err refuses the audit copy that was sent last, so that another one
// may be accepted.
func (in *incoming) auditRefused(err error) bool {
	switch a := in.audit; {
	case !copies.OfMessage(err):
		return false
	case a == nil:
		in.audit = &refusedAudit{err: err}
		return true
	default:
		a.tried++
		return !a.ended
	}
}

// next returns the copy of op, the audit copy, that is to be sent next to the error queue. If there
// is no further one, it returns the last again.
func (a *refusedAudit) next(op transport.Operation, l *live) transport.Operation {
	a.copied = l.refusedCopyOf(op.Message, op.Queue, &copyError{
		fmt.Sprintf("the message was handled, and its audit copy could not be sent to queue %q", op.Queue), a.err,
	}, "audit")
	checker, _ := l.conn.(transport.Checker)
	skip := a.tried
	a.ended = true
	_ = a.copied.toErrorQueue(func(candidate transport.Operation) error {
		op = candidate
		if checker != nil {
			if err := checker.Check(&candidate); copies.OfMessage(err) {
				return err
			}
		}
		if skip--; skip >= 0 {
			return transport.ErrContent
		}
		a.ended = false
		return nil
	})
	return op
}

// reportAudit reports that the error queue has the audit copy, if the audit queue refused it.
func (in *incoming) reportAudit(ctx context.Context) {
	if in.audit != nil && !in.LostLease() {
		in.audit.copied.report(ctx, "the audit copy of a message was refused and moved to the error queue: the message was handled")
	}
}
