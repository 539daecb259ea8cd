package endpoint

import (
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/transport"
)

// audit is the audit copy of a handled message, if its queue has refused it because of its content. The message must not be
// handled again because of that: the copy moves to the error queue.
type audit struct {
	refused error // why the audit queue refused the copy; nil if it did not
	tried   int   // candidates that the error queue refused, and the driver did not foresee
	ended   bool  // the error queue refused all candidates
	copied  *refusedCopy
}

// refusedBy reports whether err refuses the last operation of instead, so that another one may be accepted.
func (a *audit) refusedBy(err error) bool {
	switch {
	case a.ended || !copies.OfMessage(err):
		return false
	case a.refused == nil:
		a.refused = err
	default:
		a.tried++
	}
	return true
}

// instead returns op, or the copy for the error queue that is the next to be tried. If there is no further one, it returns
// the last again.
func (a *audit) instead(op transport.Operation, l *live) transport.Operation {
	if a.refused == nil {
		return op
	}
	queue := op.Queue
	a.copied = l.refusedCopyOf(op.Message, queue, &copyError{
		fmt.Sprintf("the message was handled, and its audit copy could not be sent to queue %q", queue), a.refused,
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

// report reports that the error queue has the copy.
func (a *audit) report(ctx context.Context, in *incoming) {
	if a.refused != nil && !in.settlement.lostLease() {
		a.copied.report(ctx, "the audit copy of a message was refused and moved to the error queue: the message was handled")
	}
}
