package saga

import (
	"encoding/json"
	"time"

	"github.com/holdfast-go/holdfast/pipeline"
)

// Invocation is one call of a saga for one message, for behaviors that measure or report it.
type Invocation struct {
	// Saga is the name of the saga. Type is its name with that of the endpoint, as in the header
	// [header.OriginatingSagaType].
	Saga, Type string
	// ID and Key identify the instance. ID is the text of a UUID. Key is "" where the message has
	// the id alone and there is no such instance.
	ID, Key string
	// New reports whether the message has begun the instance, and Completed whether it has ended
	// it.
	New, Completed bool
	// Timeout reports whether the message is a time-out of the instance.
	Timeout bool
	// Ignored is the reason why the message changed nothing; "" if it was handled.
	Ignored Ignored
	// State is the state after the step; nil after Completed and where no step succeeded. It must
	// not be changed.
	State json.RawMessage
	// Err is the error that the saga returned, after which nothing is stored.
	Err error
	// Started and Finished are the times of the call. Waited is the time that the message waited
	// for others of the instance, before the call and within it.
	Started, Finished time.Time
	Waited            time.Duration
}

// Ignored is a reason why a message of a saga is ignored.
type Ignored string

const (
	// IgnoredEnded means that the instance has ended.
	IgnoredEnded Ignored = "ended"
	// IgnoredCancelled means that the message is a time-out that was cancelled or replaced when it
	// was on its way.
	IgnoredCancelled Ignored = "cancelled"
	// IgnoredUnknown means that there is no instance, and that the message is a time-out or its
	// step has an OrElse.
	IgnoredUnknown Ignored = "unknown"
)

func (i Ignored) text() string {
	switch i {
	case IgnoredEnded:
		return "the instance has ended"
	case IgnoredCancelled:
		return "the time-out was cancelled or replaced"
	case IgnoredUnknown:
		return "there is no such instance"
	}
	return string(i)
}

// Invocations returns the calls of sagas in an attempt so far, in their order. Behaviors use it
// after next has returned: in the stage Invoke, the last one is that of the handler, and in
// Dispatch all are known. An invocation with an Err was rolled back.
func Invocations(r *pipeline.Receive) []Invocation {
	all, _ := r.State(invocationsKey{}).([]Invocation)
	return all
}

type invocationsKey struct{}

// add adds an invocation to those of an attempt.
func add(r *pipeline.Receive, i Invocation) { r.SetState(invocationsKey{}, append(Invocations(r), i)) }
