package endpointtest

import (
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/recoverability"
)

// Result is the outcome of a message.
type Result struct {
	// Outcome is Completed, or the action after a failure.
	Outcome Outcome
	// Err is the error of a handler, of a behavior, or of decoding the message. Nil when Completed.
	// A panic is an [recoverability.PanicError].
	Err error
	// Action is that of recoverability, with the delay or the queue. Nil when Completed.
	Action recoverability.Action
	// Sent holds the sent messages, in order. Messages of a failed handler are not sent, except
	// those with [endpoint.Immediately].
	Sent []Sent
}

// Sent is a message that was sent.
type Sent struct {
	// Value is the message as its receiver decodes it, or as it was sent if it cannot be decoded: a
	// struct, never a pointer. Nil for an operation that a behavior of the Dispatch stage added.
	Value any
	// Intent is [header.IntentSend], IntentPublish or IntentReply.
	Intent string
	// Queue is its destination; empty for a published message.
	Queue string
	// Types are its wire names, most concrete first.
	Types []string
	// Headers are those that the receiver gets.
	Headers header.Map
	// Delay is its delay from the time it was sent.
	Delay time.Duration
	// TTL is the time after which it is discarded if it was not received. 0: never.
	TTL time.Duration
}

// Outcome is the outcome of one attempt.
type Outcome int

const (
	// Completed means that it was processed, and that the messages of its handlers were sent.
	Completed Outcome = iota
	// Retried means that it failed, and is in its queue for an immediate retry.
	Retried
	// Delayed means that it failed, and is in its queue for a delayed retry.
	Delayed
	// MovedToError means that it failed, and is in the error queue.
	MovedToError
	// DeadLettered means that it failed, and is in the broker's dead-letter queue.
	DeadLettered
	// Discarded means that it failed, and was discarded.
	Discarded
)

// String returns the outcome in words.
func (o Outcome) String() string {
	names := [...]string{"completed", "retried", "delayed", "moved to error", "dead-lettered", "discarded"}
	if o < 0 || int(o) >= len(names) {
		return "unknown"
	}
	return names[o]
}
