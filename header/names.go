package header

import (
	"strings"
)

// Names of the headers that an endpoint reads or writes (NServiceBus 10, Headers.cs).
const (
	MessageID            = "NServiceBus.MessageId"
	CorrelationID        = "NServiceBus.CorrelationId"
	ConversationID       = "NServiceBus.ConversationId"
	PreviousConversation = "NServiceBus.PreviousConversationId"
	RelatedTo            = "NServiceBus.RelatedTo"
	MessageIntent        = "NServiceBus.MessageIntent"
	ReplyToAddress       = "NServiceBus.ReplyToAddress"
	OriginatingEndpoint  = "NServiceBus.OriginatingEndpoint"
	OriginatingMachine   = "NServiceBus.OriginatingMachine"
	OriginatingHostID    = "$.diagnostics.originating.hostid"
	ContentType          = "NServiceBus.ContentType"
	EnclosedMessageTypes = "NServiceBus.EnclosedMessageTypes"
	TimeSent             = "NServiceBus.TimeSent"
	DeliverAt            = "NServiceBus.DeliverAt"
	TimeToBeReceived     = "NServiceBus.TimeToBeReceived"
	Version              = "NServiceBus.Version"
	IsDeferredMessage    = "NServiceBus.IsDeferredMessage"
	StartNewTrace        = "NServiceBus.OpenTelemetry.StartNewTrace" // "True": the message begins a trace
	// ForwardDestination is the address of the queue for which a delayed message waits in another
	// one, on NServiceBus's SQL transports.
	ForwardDestination = "NServiceBus.SqlServer.ForwardDestination"

	SagaID              = "NServiceBus.SagaId" // of the saga that the message is for
	SagaType            = "NServiceBus.SagaType"
	IsSagaTimeout       = "NServiceBus.IsSagaTimeoutMessage" // "True" on a time-out of that saga
	OriginatingSagaID   = "NServiceBus.OriginatingSagaId"    // of the saga that sent it
	OriginatingSagaType = "NServiceBus.OriginatingSagaType"
	// HoldfastTimer is, on the stored message of an outbox, the name of the timer that it is.
	HoldfastTimer = "Holdfast.Timer"
	// HoldfastOutboxRefused is, on a message in an outbox, when a full queue refused it first. It
	// is not sent.
	HoldfastOutboxRefused = "Holdfast.Outbox.Refused"
	// HoldfastSagaTimeout is the token of a time-out of a saga. Another one with the same name has
	// another token.
	HoldfastSagaTimeout = "Holdfast.Saga.Timeout"
	// HoldfastJob is the id of the job that a message is: its message id. A schedule's message has
	// the name of the schedule and the time at which it was due too. HoldfastJobCorrelation is the
	// text of the option schedule.Correlation.
	HoldfastJob            = "Holdfast.Job"
	HoldfastJobSchedule    = "Holdfast.Job.Schedule"
	HoldfastJobDue         = "Holdfast.Job.Due"
	HoldfastJobCorrelation = "Holdfast.Job.Correlation"
)

// Names of the headers that recoverability and audit write.
const (
	Retries          = "NServiceBus.Retries"           // delayed retries already made, a decimal number
	RetriesTimestamp = "NServiceBus.Retries.Timestamp" // when the last one was made

	FailedQ                    = "NServiceBus.FailedQ" // the queue to return the message to
	TimeOfFailure              = "NServiceBus.TimeOfFailure"
	ExceptionType              = "NServiceBus.ExceptionInfo.ExceptionType"
	InnerExceptionType         = "NServiceBus.ExceptionInfo.InnerExceptionType"
	ExceptionMessage           = "NServiceBus.ExceptionInfo.Message"
	ExceptionSource            = "NServiceBus.ExceptionInfo.Source"
	ExceptionStackTrace        = "NServiceBus.ExceptionInfo.StackTrace"
	ExceptionData              = "NServiceBus.ExceptionInfo.Data." // prefix
	ProcessingStarted          = "NServiceBus.ProcessingStarted"   // of audit copies
	ProcessingEnded            = "NServiceBus.ProcessingEnded"
	ProcessingMachine          = "NServiceBus.ProcessingMachine"
	ProcessingEndpoint         = "NServiceBus.ProcessingEndpoint"
	HostID                     = "$.diagnostics.hostid"
	HostDisplayName            = "$.diagnostics.hostdisplayname"
	FirstLevelRetries          = "NServiceBus.FLRetries"         // written by old versions; removed on a move to error
	HoldfastFirstFailure       = "Holdfast.FirstFailure"         // on delayed copies: when the message first failed
	HoldfastUsedRetries        = "Holdfast.Retries.Used"         // on postponed copies: used immediate retries
	HoldfastThrottledFailures  = "Holdfast.Throttled.Failures"   // on postponed copies: failures without a retry
	HoldfastThrottledSince     = "Holdfast.Throttled.Since"      // on postponed copies: time of the first of these
	HoldfastFaultFirst         = "Holdfast.Fault.FirstFailure"   // the same in the error queue, never read
	HoldfastAttempts           = "Holdfast.Fault.Attempts"       // deliveries in the last cycle, a decimal number
	HoldfastAttemptsExact      = "Holdfast.Fault.Attempts.Exact" // "false" where the broker does not count
	HoldfastFaultClass         = "Holdfast.Fault.Class"          // of the error: recoverability.Class
	HoldfastQuarantineQueue    = "Holdfast.Quarantine.Queue"     // in quarantine: the original queue
	HoldfastQuarantineAttempts = "Holdfast.Quarantine.Attempts"  // in quarantine: deliveries in that queue
	HoldfastFaultQuarantined   = "Holdfast.Fault.Quarantined"    // deliveries in FailedQ before quarantine
	HoldfastHistory            = "Holdfast.History"              // on delayed copies: earlier failures, as JSON
	HoldfastFaultHistory       = "Holdfast.Fault.History"        // the same on the copy in the error queue
	// HoldfastPolicy is set by the sender of a message: the name of the resilience policy by which
	// it is retried, deferred. It stays on all copies.
	HoldfastPolicy         = "Holdfast.Policy"
	HoldfastRetryPolicy    = "Holdfast.Retry.Policy"    // on delayed copies: the policy of the retry
	HoldfastRetryAttempt   = "Holdfast.Retry.Attempt"   // on delayed copies: the next attempt, from 2
	HoldfastRetryLastError = "Holdfast.Retry.LastError" // on delayed copies: the text of the last error
	HoldfastFaultPolicy    = "Holdfast.Fault.Policy"    // the policy whose retries are used up
	HoldfastFaultInline    = "Holdfast.Fault.Inline"    // inline retries in the last delivery
	// HoldfastFaultDeadLettered is why the broker has dead-lettered a message that had fault
	// headers of its sender already.
	HoldfastFaultDeadLettered = "Holdfast.Fault.DeadLettered"
	HoldfastFaultDecided      = "Holdfast.Fault.Decided"  // on copies outside an error queue: the error queue that the message is for
	HoldfastReturns           = "Holdfast.Returns"        // returns from an error queue, a decimal number
	HoldfastReturnOutcome     = "Holdfast.Return.Outcome" // on the acknowledgement of a return that was not handled: "discarded"
)

// Names of the headers of messages of NServiceBus that have a property whose value is not in the
// body as it is (NServiceBus.ClaimCheck, ClaimCheckSendBehavior.cs;
// NServiceBus.Encryption.MessageProperty, EncryptionHeaders.cs).
const (
	ClaimCheck      = "NServiceBus.DataBus." // prefix; the property or its key follows
	EncryptionKeyID = "NServiceBus.RijndaelKeyIdentifier"
)

// UndecodableHeaders is set on a received message whose headers the transport could not decode. Its
// value holds the headers as they were received: see [FormatUndecodable]. It stays on the copy in
// the error queue, and on that copy when it is returned.
const UndecodableHeaders = "Holdfast.Undecodable.Headers"

// HoldfastReceived is set on a copy in an error queue whose received headers have no room beside
// those of the fault. Its value has the received headers, compressed, or is "body" if they are in
// front of the body. Endpoints and the command holdfast restore the message.
const HoldfastReceived = "Holdfast.Received"

// Names of the headers by which ServiceControl returns messages from the error queue and learns
// that they were processed.
const (
	ControlMessage       = "NServiceBus.ControlMessage"                // "True" on messages of tools, without a body
	RetryUniqueID        = "ServiceControl.Retry.UniqueMessageId"      // of the failed message
	RetryAcknowledgement = "ServiceControl.Retry.AcknowledgementQueue" // of the acknowledgement
	RetrySuccessful      = "ServiceControl.Retry.Successful"           // on the acknowledgement: time of processing
	RetryAcknowledged    = "ServiceControl.Retry.AcknowledgementSent"  // "True" on the audit copy after an acknowledgement
)

// Names of the headers of audit copies by which ServiceControl shows sagas.
const (
	InvokedSagas    = "NServiceBus.InvokedSagas"       // types and ids of the sagas that handled the message
	SagaStateChange = "ServiceControl.SagaStateChange" // what the message did to each: New, Updated or Completed
)

// Values of [MessageIntent].
const (
	IntentSend    = "Send"
	IntentPublish = "Publish"
	IntentReply   = "Reply"
)

// Kind is what a header describes. The zero value is [KindOther].
type Kind int

// The kinds of headers.
const (
	// KindOther is a header of the user's, or one that belongs to the messages of a conversation
	// together.
	KindOther Kind = iota
	// KindSending describes the body of one message, or how it was sent.
	KindSending
	// KindRetries counts the attempts that a message has had.
	KindRetries
	// KindException describes an error, in the form of NServiceBus.
	KindException
	// KindFault describes a failed message in an error queue.
	KindFault
	// KindReceipt describes another fact about one received message: the queue of the failure, the
	// endpoint that processed the message, the saga or the job of the message.
	KindReceipt
)

// OfReceipt reports whether headers of the kind describe one received message. Another message must
// not have them.
func (k Kind) OfReceipt() bool { return k >= KindRetries }

// KindOf returns the kind of the header with that name.
func KindOf(name string) Kind {
	if k, ok := kinds[name]; ok {
		return k
	}
	for _, p := range kindPrefixes {
		if strings.HasPrefix(name, p.prefix) {
			return p.kind
		}
	}
	return KindOther
}

var kinds = map[string]Kind{
	MessageID:            KindSending,
	RelatedTo:            KindSending,
	MessageIntent:        KindSending,
	ReplyToAddress:       KindSending,
	OriginatingEndpoint:  KindSending,
	OriginatingMachine:   KindSending,
	OriginatingHostID:    KindSending,
	OriginatingSagaID:    KindSending,
	OriginatingSagaType:  KindSending,
	ContentType:          KindSending,
	EnclosedMessageTypes: KindSending,
	TimeSent:             KindSending,
	DeliverAt:            KindSending,
	TimeToBeReceived:     KindSending,
	Version:              KindSending,
	IsDeferredMessage:    KindSending,
	ForwardDestination:   KindSending,
	StartNewTrace:        KindSending,
	ControlMessage:       KindSending,
	EncryptionKeyID:      KindSending,

	Retries:                   KindRetries,
	RetriesTimestamp:          KindRetries,
	FirstLevelRetries:         KindRetries,
	HoldfastFirstFailure:      KindRetries,
	HoldfastHistory:           KindRetries,
	HoldfastUsedRetries:       KindRetries,
	HoldfastThrottledFailures: KindRetries,
	HoldfastThrottledSince:    KindRetries,
	HoldfastRetryPolicy:       KindRetries,
	HoldfastRetryAttempt:      KindRetries,
	HoldfastRetryLastError:    KindRetries,

	SagaID:                KindReceipt,
	SagaType:              KindReceipt,
	IsSagaTimeout:         KindReceipt,
	HoldfastSagaTimeout:   KindReceipt,
	HoldfastTimer:         KindReceipt,
	HoldfastOutboxRefused: KindReceipt,
	HoldfastReturns:       KindReceipt,
	HoldfastReturnOutcome: KindReceipt,
	HoldfastReceived:      KindReceipt,
	UndecodableHeaders:    KindReceipt,
	FailedQ:               KindReceipt,
	TimeOfFailure:         KindReceipt,
	ProcessingStarted:     KindReceipt,
	ProcessingEnded:       KindReceipt,
	ProcessingMachine:     KindReceipt,
	ProcessingEndpoint:    KindReceipt,
	HostID:                KindReceipt,
	HostDisplayName:       KindReceipt,
	InvokedSagas:          KindReceipt,
	HoldfastJob:           KindReceipt,
}

// kindPrefixes has the kinds of headers whose names begin alike.
var kindPrefixes = []struct {
	prefix string
	kind   Kind
}{
	{ClaimCheck, KindSending},
	{"NServiceBus.DataBusConfig.", KindSending},
	{"NServiceBus.Transport.", KindSending},
	{"NServiceBus.AmazonSQS.", KindSending},
	{"Holdfast.Delay.", KindSending},
	{"NServiceBus.ExceptionInfo.", KindException},
	{"Holdfast.Fault.", KindFault},
	{"Holdfast.Quarantine.", KindReceipt},
	{"Holdfast.Job.", KindReceipt},
	{"ServiceControl.", KindReceipt},
}
