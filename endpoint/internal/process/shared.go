// Package process has the loop that processes a message, with the guards, the attempts, the waits
// before a further attempt, and the outcomes. A message waits here, whatever the message waits for;
// only a message that waits for its error queue is in package held.
package process

import (
	"github.com/holdfast-go/holdfast/endpoint/internal/audit"
	"github.com/holdfast-go/holdfast/endpoint/internal/inbox"
	"github.com/holdfast-go/holdfast/endpoint/internal/keylock"
	"github.com/holdfast-go/holdfast/endpoint/internal/notify"
	"github.com/holdfast-go/holdfast/endpoint/internal/outage"
	"github.com/holdfast-go/holdfast/endpoint/internal/outbox"
	"github.com/holdfast-go/holdfast/endpoint/internal/overdue"
	"github.com/holdfast-go/holdfast/endpoint/internal/quarantine"
	"github.com/holdfast-go/holdfast/endpoint/internal/recovery"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/endpoint/internal/throttle"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
)

// Shared has the parts that the messages of an endpoint share. The fields are set before the first
// message.
type Shared struct {
	Settler    settle.Settler
	Auditor    audit.Auditor
	Recovery   recovery.Shared
	Notifier   *notify.Notifier
	Calls      *overdue.Watch // of the program's functions
	Limits     transport.Limits
	Throttle   throttle.Limits
	Locks      *keylock.Locks         // nil: no handler has keys
	Outbox     *outbox.Outbox         // nil: none
	Timers     *outbox.Outbox         // where timers wait; nil: nowhere
	Inbox      *inbox.Inbox           // nil: handled messages are not recorded
	Outage     *outage.Database       // of the outbox or inbox; nil where there is neither
	Quarantine *quarantine.Quarantine // nil where there is no guard
	Slow       *pump.SlowStart        // same

	// CompletesFirst: a message is completed before the handlers run.
	CompletesFirst bool
	// Translate changes a received message for the driver's user; nil for no function.
	Translate func(*transport.Message)
	// ReceiveStage runs stage Receive.
	ReceiveStage pipeline.Func[*pipeline.Receive]
	// DispatchStage runs stage Dispatch. The end of the stage calls [Attempt.Finish].
	DispatchStage pipeline.Func[*pipeline.Dispatch]
	// TypeOf returns the name of the registered type that a header of types names; "" if no type is
	// registered.
	TypeOf func(enclosed string) string
	// HasKeys reports whether a handler of the types has keys.
	HasKeys func(enclosed string) bool
	Errors  Errors
}

// Errors makes the errors of the endpoint. The Go types of errors are in fault headers.
type Errors interface {
	// TimedOut reports whether an attempt failed because the time of the attempt, or of a handler,
	// was over.
	TimedOut(err error) bool
	// Undecodable returns the error of a message that cannot be read.
	Undecodable(reason error) error
	// Undeliverable returns the error of a message that a queue refused when the message was due.
	Undeliverable(queue string, err error) error
	// Decided returns the error of a message that failed in an earlier delivery.
	Decided(text, class string) error
}
