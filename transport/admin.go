package transport

import "context"

// Verifier is implemented by a Conn that can compare what exists at the broker with a plan. Without it a tool
// cannot say what is missing.
type Verifier interface {
	// Verify returns a finding for each part of plan that is not as Install would create it: none when all is there.
	// It changes nothing. An error means that the comparison was not finished.
	Verify(ctx context.Context, plan Plan) ([]Finding, error)
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

// FindingState is the way in which a part of a plan differs.
type FindingState string

const (
	// Missing means that no part of that name exists.
	Missing FindingState = "missing"
	// Differs means that the part exists with another type or other settings.
	Differs FindingState = "differs"
	// Unknown means that the part exists, and that the user has no right to compare it.
	Unknown FindingState = "unknown"
	// Limited means that a policy of the broker makes the queue drop or refuse messages.
	Limited FindingState = "limited"
	// Unread means that the driver cannot read settings of that kind without further configuration. It is not a
	// difference.
	Unread FindingState = "not read"
)

// Remover is implemented by a Conn that can delete queues. Without it they are deleted with the broker's own tools.
type Remover interface {
	// Remove deletes the named queues and all messages in them, with what belongs to these queues alone: their
	// bindings and subscriptions, and the queues that Install has added for them. A queue that does not exist is no
	// error. Message types and what endpoints share are kept. After an error some queues may be deleted.
	Remove(ctx context.Context, queues ...string) error
}
