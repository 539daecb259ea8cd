package endpoint

import (
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/work"
	"github.com/holdfast-go/holdfast/recoverability"
)

var (
	// ErrNotRunning is returned by the methods of an [Endpoint] that need the broker, before Run is
	// ready and after it has returned.
	ErrNotRunning = errors.New("the endpoint is not running")
	// ErrSessionOver is returned by a [Session] that is used after its handlers have returned: a
	// message could not be sent with the handled one any more.
	ErrSessionOver = work.ErrOver
	// ErrHandlerTimeout is the cause of a handler's context that was cancelled after
	// [Config.HandlerTimeout]. The error that the handler then returns wraps it.
	ErrHandlerTimeout error = timeoutError{}

	// ErrReceiptHeader is wrapped by the error of a call with the option [Header] for a header that
	// describes one received message.
	ErrReceiptHeader = errors.New("the header describes a received message, and no message is sent with it")

	errNotRegistered = errors.New("not registered: add it to Config.Messages")
	errNoHandler     = errors.New("no handler: add one to Config.Handlers")

	// errRunGoexit is for a function of the transport's configuration, such as one for credentials.
	errRunGoexit = errors.New("a function of the configuration ended the goroutine of Run (runtime.Goexit)")
)

// timeoutError has the class [recoverability.ClassTimeout].
type timeoutError struct{}

func (timeoutError) Error() string      { return "the time for a handler is over" }
func (timeoutError) FaultClass() string { return recoverability.ClassTimeout }

// handlerTimeoutError is the error of a handler whose time was over.
type handlerTimeoutError struct {
	limit time.Duration
	err   error // that the handler returned then
}

func (e *handlerTimeoutError) Error() string {
	return fmt.Sprintf("%v: it had %v: %v", ErrHandlerTimeout, e.limit, e.err)
}
func (e *handlerTimeoutError) Unwrap() []error { return []error{ErrHandlerTimeout, e.err} }

// classedError is an error with the class of a fault. Each kind of failure embeds classedError in a
// type of its own, because the name of the type is in fault headers.
type classedError struct {
	error
	class string
}

func (e *classedError) Unwrap() error { return e.error }

// FaultClass returns the class of the fault in the error queue.
func (e *classedError) FaultClass() string { return e.class }

const classUndeliverable = "undeliverable" // of a message that a queue refused

// undecodableError is the error of a message that cannot be read.
type undecodableError struct{ classedError }

func newUndecodableError(reason error) error {
	return &undecodableError{classedError{reason, "undecodable"}}
}

// unhandledError is the error of a message without a handler.
type unhandledError struct{ classedError }
