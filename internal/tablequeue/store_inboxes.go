package tablequeue

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// Inboxes is the part of a [Store] that records the ids of handled messages. An inbox has the
// columns
//
//	key  16 bytes, the primary key
//	sum  the checksum of the message
//	at   when the key was recorded, by the database's clock
//
// and an index on at. Errors about a missing inbox wrap [transport.ErrNoQueue]. The installer
// creates those of [transport.Plan].Inboxes, and Remove drops one that is named.
type Inboxes interface {
	// FindHandled returns the state of each key, in their order.
	FindHandled(ctx context.Context, inbox string, keys []transport.HandledKey) ([]transport.HandledState, error)
	// DueForForgetting reports whether no process has removed keys from inbox for pause, and marks
	// it: one process at a time is told so.
	DueForForgetting(ctx context.Context, inbox string, pause time.Duration) (bool, error)
	// Forget removes up to limit keys that were recorded more than age ago, the oldest first, and
	// returns their number.
	Forget(ctx context.Context, inbox string, age time.Duration, limit int) (int64, error)
	// ForgetKeys removes keys by their ID, and returns the number of those that were there.
	ForgetKeys(ctx context.Context, inbox string, keys []transport.HandledKey) (int64, error)
	// InspectInbox returns the size of an inbox, for which it need not count all rows.
	InspectInbox(ctx context.Context, inbox string) (transport.InboxStats, error)
	// InboxState fails with [transport.ErrNoQueue] when there is no such inbox, and with an
	// [*UnfitError] when the table is none of this version.
	InboxState(ctx context.Context, inbox string) error
}
