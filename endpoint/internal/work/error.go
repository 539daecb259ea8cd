package work

import (
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/transport"
)

// CommitError is the error of the commit that stores the work. Other errors of the outbox and inbox
// are those of statements before the commit.
type CommitError struct{ Err error }

func (e *CommitError) Error() string { return e.Err.Error() }
func (e *CommitError) Unwrap() error { return e.Err }

// FaultType returns the name of the type in fault headers.
func (e *CommitError) FaultType() string { return "*endpoint.commitError" }

// DatabaseError is the error of the begin of a transaction in the outbox. Fault headers have the
// type of the error that it marks.
type DatabaseError struct{ errtree.Mark }

// ExpiredError is the error of the begin of a transaction in the outbox after the handler's context
// has ended, as by a time limit. The error says nothing about the database.
type ExpiredError struct{ Err error }

func (e *ExpiredError) Error() string { return e.Err.Error() }
func (e *ExpiredError) Unwrap() error { return e.Err }

// FaultType returns the name of the type in fault headers.
func (e *ExpiredError) FaultType() string { return "*endpoint.expiredError" }

// WithAdvice adds advice to the error of a missing right to the tables of the outbox or inbox.
func WithAdvice(err error) error {
	if errors.Is(err, transport.ErrDenied) {
		return fmt.Errorf("%w: grant SELECT, INSERT, UPDATE and DELETE on the tables of the outbox and the inbox", err)
	}
	return err
}
