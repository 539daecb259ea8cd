package copies

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/transport"
)

// StrandedError is an error of another operation than the copy. The broker would refuse each other
// copy too.
type StrandedError struct{ errtree.Mark }

// ProgramError is an error of a function of the program, which may wrap any error. The broker has
// not answered with it.
type ProgramError struct{ errtree.Mark }

// Refused reports whether the broker has refused the copy, so that the next candidate or the next
// fallback is to be tried.
func Refused(err error) bool {
	_, refusal := errors.AsType[*transport.DispatchError](err)
	_, large := errors.AsType[*transport.TooLargeError](err)
	_, stranded := errors.AsType[*StrandedError](err)
	return (refusal || large) && !stranded && !Unanswered(err)
}

// Unanswered reports whether the broker has neither accepted nor refused a call, as far as is
// known.
func Unanswered(err error) bool {
	_, program := errors.AsType[*ProgramError](err)
	return !program && slices.ContainsFunc(away, func(one error) bool { return errors.Is(err, one) })
}

// away are the errors of a broker that does not answer.
var away = []error{
	transport.ErrOutcomeUnknown, transport.ErrUnreachable, transport.ErrClosed,
	context.DeadlineExceeded, context.Canceled,
}

// Permanent reports whether a refusal does not pass by itself soon.
func Permanent(err error) bool {
	return errors.Is(err, transport.ErrNoQueue) || errors.Is(err, transport.ErrTooLarge) || errors.Is(err, transport.ErrContent)
}

// ErrorOf returns the error of operation i of a dispatch that failed with err; nil if the dispatch
// failed because of other operations.
func ErrorOf(err error, i int) error {
	refusal, ok := errors.AsType[*transport.DispatchError](err)
	if !ok {
		return err
	}
	for _, op := range refusal.Ops {
		if op.Index == i {
			return op.Err
		}
	}
	return nil
}

// Single returns the error of the operation if a dispatch of one operation has failed with err, and
// otherwise err.
func Single(err error) error {
	if failed, ok := errors.AsType[*transport.DispatchError](err); ok && failed.Total == 1 {
		return failed.Ops[0].Err
	}
	return err
}

// CopyError is the failure of a message one of whose copies was refused because of its content.
type CopyError struct {
	Doing string // the copy, as the subject of a sentence
	Err   error
}

func (e *CopyError) Error() string { return fmt.Sprintf("%s: %v", e.Doing, Single(e.Err)) }

// Unwrap returns the refusal.
func (e *CopyError) Unwrap() error { return e.Err }

// FaultClass returns the class of the fault in the error queue.
func (e *CopyError) FaultClass() string { return "undeliverable" }

// FaultType returns the name of the type in fault headers.
func (e *CopyError) FaultType() string { return "*endpoint.copyError" }
