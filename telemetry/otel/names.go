package otel

import "go.opentelemetry.io/otel/attribute"

// Attributes without a name in OpenTelemetry's conventions.
const (
	keyEndpoint       = attribute.Key("holdfast.endpoint")
	keyMessageType    = attribute.Key("holdfast.message.type")
	keyHandler        = attribute.Key("holdfast.handler")
	keyAttempt        = attribute.Key("holdfast.attempt")
	keyDelayedRetries = attribute.Key("holdfast.delayed_retries")
	keyAction         = attribute.Key("holdfast.recoverability.action")
	keyDelay          = attribute.Key("holdfast.recoverability.delay")
	keyCarriedOut     = attribute.Key("holdfast.recoverability.carried_out")
	keyFallback       = attribute.Key("holdfast.recoverability.fallback")
	keyErrorClass     = attribute.Key("holdfast.error.class")
	keyErrorQueue     = attribute.Key("holdfast.recoverability.queue")
	keyCause          = attribute.Key("holdfast.interruption.cause")
	keySaga           = attribute.Key("holdfast.saga")
	keyJob            = attribute.Key("holdfast.job")
	keySchedule       = attribute.Key("holdfast.job.schedule")
	keyDue            = attribute.Key("holdfast.job.due")
	keyIgnored        = attribute.Key("holdfast.saga.ignored.reason")
	keyPolicy         = attribute.Key("resilience.policy.name")
	keyOutcome        = attribute.Key("resilience.policy.outcome")
	keyTimeout        = attribute.Key("resilience.timeout_ms")
	keyRetryAttempt   = attribute.Key("resilience.retry.attempt")
	keyRetryDelay     = attribute.Key("resilience.retry.delay_ms")
	keyQueueState     = attribute.Key("holdfast.queue.state")
)

// Values of holdfast.recoverability.action.
const (
	actionImmediate  = "immediate"
	actionInline     = "inline"
	actionDelayed    = "delayed"
	actionError      = "error"
	actionDeadLetter = "dead_letter"
	actionDiscard    = "discard"
	actionQuarantine = "quarantine"
)

// Events of the process span.
const (
	eventException      = "exception"
	eventRecoverability = "recoverability"
	eventScheduled      = "retry scheduled"
	eventFallback       = "fallback"
	eventInterrupted    = "interrupted"
)

// Events of the span of a policy's execution, beside exception.
const (
	eventRetry   = "resilience retry"
	eventTimeout = "resilience timeout"
)

// Values of messaging.operation.name, beside the intents in lower case.
const (
	operationSend     = "send"
	operationReceive  = "receive"
	operationProcess  = "process"
	operationDispatch = "dispatch"
	operationComplete = "complete"
	operationRelay    = "relay"
)
