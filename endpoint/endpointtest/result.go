package endpointtest

import (
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/recoverability"
)

// Result is what became of a message.
type Result struct {
	// Outcome says whether the message was processed, and what was done if not.
	Outcome Outcome
	// Err is why it was not: the error of a handler, a behavior, or of reading the message.
	// A panic is an [endpoint.PanicError].
	Err error
	// Action is what recoverability did, with the delay or the queue. Nil when Completed.
	Action recoverability.Action
	// Sent is what left, in order. What the handlers of a failed message sent has not left,
	// but for what was sent with [endpoint.Immediately].
	Sent []Sent
}

// Sent is a message that left.
type Sent struct {
	// Value is the message as its receiver reads it, or as it was sent where it cannot be
	// read: a struct, never a pointer. Nil for an operation that a behavior of the
	// Dispatch stage added.
	Value any
	// Intent is [header.IntentSend], IntentPublish or IntentReply.
	Intent string
	// Queue is where it went; empty for a published message.
	Queue string
	// Types are its wire names, most concrete first.
	Types []string
	// Headers are as on the wire.
	Headers header.Map
	// Delay is how long it is delayed, from when it was sent.
	Delay time.Duration
	// TTL is how long it may wait to be received. 0 is for ever.
	TTL time.Duration
}

// Outcome is what was done with a message in the end of one attempt.
type Outcome int

const (
	// Completed means that it was processed, and what the handlers sent has left.
	Completed Outcome = iota
	// Retried means that it failed, and is in its queue to be tried again at once.
	Retried
	// Delayed means that it failed, and will be tried again later.
	Delayed
	// MovedToError means that it failed, and is in the error queue.
	MovedToError
	// DeadLettered means that it failed, and is in the broker's dead-letter queue.
	DeadLettered
	// Discarded means that it failed, and is gone.
	Discarded
)

// String is the outcome in words.
func (o Outcome) String() string {
	names := [...]string{"completed", "retried", "delayed", "moved to error", "dead-lettered", "discarded"}
	if o < 0 || int(o) >= len(names) {
		return "unknown"
	}
	return names[o]
}

// outcomeOf is the outcome of an action that was carried out.
func outcomeOf(action recoverability.Action) Outcome {
	switch action.(type) {
	case recoverability.Retry:
		return Retried
	case recoverability.Delay:
		return Delayed
	case recoverability.DeadLetter:
		return DeadLettered
	case recoverability.Discard:
		return Discarded
	}
	return MovedToError
}
