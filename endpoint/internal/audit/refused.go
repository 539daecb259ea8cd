package audit

import (
	"fmt"

	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/transport"
)

// refusedAudit is the audit copy of a handled message, which the audit queue has refused because of
// the content. The message must not be handled again: the copy moves to the error queue.
type refusedAudit struct {
	err    error // of the audit queue
	tried  int   // candidates that the error queue refused, and the driver did not foresee
	ended  bool  // the error queue refused all candidates
	copied *Refused
}

// next returns the next candidate for the error queue of op, the audit copy. After the last
// candidate next returns the last candidate again.
func (a *refusedAudit) next(
	op transport.Operation, by *Refusals, checker transport.Checker,
) transport.Operation {
	a.copied = by.Of(op.Message, op.Queue, &copies.CopyError{
		Doing: fmt.Sprintf("the message was handled, and its audit copy could not be sent to queue %q", op.Queue),
		Err:   a.err,
	}, "audit")
	skip := a.tried
	a.ended = true
	_ = a.copied.ToErrorQueue(func(candidate transport.Operation) error {
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
