package transport

import (
	"context"
	"fmt"
	"time"
)

// Browser is implemented by a Conn that can list the messages of a queue and remove single ones,
// wherever they are in it, as a tool for an error queue needs. Without it messages have to be
// received one after the other.
type Browser interface {
	// Browse returns a cursor over the messages of a queue. It fails with [ErrNoQueue] when there
	// is no such queue.
	Browse(ctx context.Context, queue string) (Cursor, error)
}

// Cursor iterates once over the messages that were in a queue when Browse was called; later ones
// are not listed. It is used by one goroutine at a time.
type Cursor interface {
	// Next returns up to limit further messages, in the order of the queue: none at the end, and
	// fewer where they are large. It returns every message that is ready to be received. The driver
	// decides whether messages that are being handled or are delayed are listed.
	Next(ctx context.Context, limit int) ([]*Message, error)
	// Take removes a message and sends ops, none of them delayed: both happen or neither. Where the
	// broker has no such unit and this process is killed meanwhile, ops may have been sent while
	// the message is still in the queue; never the other way round. m is one that the last Next
	// returned. Take fails with [ErrNotFound] when the message is no longer ready, because it was
	// taken or received; with a [*DispatchError] when an operation is refused; or with
	// [ErrOutcomeUnknown].
	Take(ctx context.Context, m *Message, ops []Operation) error
	// Close ends the iteration. Messages that were not taken are unchanged, unless the driver
	// documents a cost of browsing. A second Close does nothing.
	Close() error
}

// Purger is implemented by a Conn that can empty a queue at once. Without it a tool has to take one
// message after the other, by [Browser].
type Purger interface {
	// Purge deletes the messages of queue that are ready to be received, and returns how many it
	// deleted. Those that are being handled, or are delayed, stay. It fails with [ErrNoQueue] when
	// there is no such queue. After any other error some may be deleted.
	Purge(ctx context.Context, queue string) (int64, error)
}

// Inspector is implemented by a Conn that can count the messages of queues. Without it there are no
// depth metrics, and a missing error or audit queue is found when it is needed.
type Inspector interface {
	// Inspect returns the depth of the named queues, or of all that the driver can list when none
	// is named. It fails with [ErrNoQueue] for one that does not exist.
	Inspect(ctx context.Context, queues ...string) ([]QueueStats, error)
}

// QueueStats is the depth of a queue. A count that the broker does not know is -1.
type QueueStats struct {
	// Name is the short name of the queue: see [Addresser].
	Name string `json:"name"`
	// Ready messages wait to be received, Unsettled ones are being handled, and Delayed ones are
	// not due yet.
	Ready     int64 `json:"ready"`
	Unsettled int64 `json:"unsettled"`
	Delayed   int64 `json:"delayed"`
	// Oldest is the age of the first ready message; 0 when there is none or the broker does not
	// know.
	Oldest time.Duration `json:"oldest_ns"`
}

// Verifier is implemented by a Conn that can compare what exists at the broker with a plan. Without
// it a tool cannot report which parts are missing.
type Verifier interface {
	// Verify returns a finding for each part of plan that is not as Install would create it: none
	// when all is there. It changes nothing. An error means that the comparison was not finished.
	Verify(ctx context.Context, plan Plan) ([]Finding, error)
}

// SubscriptionVerifier is implemented by a Conn that can compare subscriptions too. Without it a
// tool cannot report which are missing.
type SubscriptionVerifier interface {
	// VerifySubscriptions is [Verifier].Verify for what [Subscriber].Subscribe creates for queue
	// and types.
	VerifySubscriptions(ctx context.Context, queue string, types []string) ([]Finding, error)
}

// Finding is a difference between a plan and the broker.
type Finding struct {
	// Kind is the driver's word for the part, such as "queue", "exchange" or "subscription".
	Kind string `json:"kind"`
	Name string `json:"name"`
	// State says how the part differs.
	State FindingState `json:"state"`
	// Detail names the difference, in the broker's words where it has some. Often empty.
	Detail string `json:"detail,omitempty"`
}

// String returns f in one line.
func (f Finding) String() string {
	s := fmt.Sprintf("%s %s %q", f.State, f.Kind, f.Name)
	if f.Detail != "" {
		s += ": " + f.Detail
	}
	return s
}

// FindingState is the way in which a part of a plan differs.
type FindingState string

const (
	// Missing means that no part of that name exists.
	Missing FindingState = "missing"
	// Differs means that the part exists with another type or other settings.
	Differs FindingState = "differs"
	// Unknown means that the part exists, and that the user has no right to compare it.
	Unknown FindingState = "unknown"
	// Limited means that a policy or a default of the broker makes the queue drop, refuse or
	// dead-letter messages.
	Limited FindingState = "limited"
	// Unread means that the driver cannot read settings of that kind without further configuration.
	// It is not a difference.
	Unread FindingState = "not read"
	// Noted means that the part is as it should be, and that Detail says what its users have to
	// know. It is not a difference.
	Noted FindingState = "note"
)

// Remover is implemented by a Conn that can delete queues. Without it they are deleted with the
// broker's own tools.
type Remover interface {
	// Remove deletes the named queues and all messages in them, with the parts that belong to these
	// queues alone: their bindings and subscriptions, and the queues that Install has added for
	// them, such as a dead-letter queue. The quarantine of an endpoint and the queues of its
	// instances are deleted when they are named, and so are the inboxes of an [OutboxStore]. A
	// queue that does not exist is no error. Message types and parts that endpoints share are kept.
	// After an error some queues may be deleted, and Remove may be repeated.
	Remove(ctx context.Context, queues ...string) error
}

// HandOverer is implemented by a Conn whose queues have state that endpoints of NServiceBus ignore,
// such as leases and delays in the queue itself. Without it such an endpoint can receive from the
// queues as they are, or from none.
type HandOverer interface {
	// HandOver makes queue, which an endpoint of this framework has received from, one of
	// NServiceBus. Delayed messages move to where NServiceBus keeps them. It fails while messages
	// of the queue are leased, and then changes nothing. Instances that run without messages are
	// not noticed: they can no longer receive from the queue. progress is called from time to time.
	// HandOver may be interrupted, and repeated until it succeeds.
	HandOver(ctx context.Context, queue string, progress func(HandOverProgress)) (HandedOver, error)
}

// HandOverProgress is the progress of [HandOverer].HandOver.
type HandOverProgress struct {
	Moved int64 // delayed messages so far
	Total int64 // delayed messages at the beginning
}

// HandedOver is the result of [HandOverer].HandOver.
type HandedOver struct {
	// Already reports whether the queue was one of NServiceBus before the call, as after an earlier
	// one.
	Already bool `json:"already,omitempty"`
	// Moved is the number of delayed messages that were moved.
	Moved int64 `json:"moved"`
	// Remaining are other queues with messages, which the names show to be of the endpoint:
	// NServiceBus does not receive from them.
	Remaining []QueueStats `json:"remaining"`
}
