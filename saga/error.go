package saga

import "errors"

var (
	// ErrUnknownInstance is wrapped by the failure of a message for an instance that does not
	// exist: it has not begun yet, or it ended longer ago than [endpoint.Config].Remember.
	ErrUnknownInstance = errors.New("there is no such instance")

	errReturned  = errors.New("the step has returned: its context must not be used any more")
	errCompleted = errors.New("the instance is completed: it sets no time-outs")
)
