package recoverability

// Notification reports an action that was carried out on a failed message, or a condition that the
// endpoint cannot mend by itself. The functions of endpoint.Config.Notify get it after the fact, so
// the next attempt may already run. An action that could not be carried out is not reported. The
// notifications of one message are in order, unless a function takes its full 10 s.
type Notification struct {
	Kind NotificationKind
	// Action is the action that was carried out; with FallbackTaken the one that failed. Nil where
	// none was decided.
	Action Action
	// Failure is the message and its error. It is never nil. For a condition that concerns no
	// single message, such as a queue that cannot be received from, only Queue, Type, Err and Now
	// are set, as far as they are known. It must not be changed.
	Failure *Failure
	// Retry counts from 1: with ImmediateRetry the retries of this cycle, with InlineRetry those of
	// this delivery, with DelayedRetry those of the message, this one included. Otherwise 0.
	Retry int
	// To is the queue that the message is in now, where it was moved.
	To string
	// Fallback is the alternative that was carried out, with FallbackTaken.
	Fallback Fallback
}

// NotificationKind is the kind of a [Notification]. Its values do not change.
type NotificationKind string

// The kinds of notifications.
const (
	ImmediateRetry   NotificationKind = "immediate_retry"
	InlineRetry      NotificationKind = "inline_retry" // another attempt follows within the delivery
	DelayedRetry     NotificationKind = "delayed_retry"
	MovedToError     NotificationKind = "moved_to_error"
	DeadLettered     NotificationKind = "dead_lettered"
	Discarded        NotificationKind = "discarded"
	Quarantined      NotificationKind = "quarantined"        // moved to the quarantine queue
	FallbackTaken    NotificationKind = "fallback_taken"     // something could not be done as decided; the rest follows
	RateLimitStarted NotificationKind = "rate_limit_started" // one message at a time is attempted
	RateLimitEnded   NotificationKind = "rate_limit_ended"
	// CriticalError is reported once when receiving from a queue has failed for two minutes, and
	// for each failed message that could be neither settled nor moved, for instance because the
	// error queue is missing. The endpoint continues to try.
	CriticalError NotificationKind = "critical_error"
)

// Fallback is the alternative to an action that could not be carried out. Its values do not change.
type Fallback string

// The fallbacks.
const (
	// FallbackError is a move to the error queue, instead of an action that cannot be
	// carried out or a policy that panicked.
	FallbackError Fallback = "move_to_error"
	// FallbackQueue is the configured error queue, instead of one that the policy or a behavior
	// named.
	FallbackQueue Fallback = "default_queue"
	// FallbackDeadLetter is the broker's dead-letter queue, instead of an error queue.
	FallbackDeadLetter Fallback = "dead_letter"
	// FallbackTrimmed, FallbackMinimal and FallbackOriginal are a copy with fewer headers: without
	// history and with texts of at most 512 bytes; with the failed queue, the time, the class of
	// the error and the endpoint, and where there is room the type of the error and the host; with
	// the received headers only, if a packed copy is refused too.
	FallbackTrimmed  Fallback = "trimmed_headers"
	FallbackMinimal  Fallback = "minimal_headers"
	FallbackOriginal Fallback = "original_headers"
	// FallbackPacked is a copy with a few headers, and with all received headers compressed in
	// Holdfast.Received. An endpoint that the copy is returned to restores the message.
	FallbackPacked Fallback = "packed"
	// FallbackHeld is a wait for the error queue or, where the message cannot wait, a return to its
	// queue after a pause. The endpoint is not ready meanwhile.
	FallbackHeld Fallback = "held"
)
