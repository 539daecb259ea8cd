package header

import "strings"

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
	// KindReceipt describes another fact about one received message: where it failed, where it was
	// processed, the saga or the job that it is for.
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
