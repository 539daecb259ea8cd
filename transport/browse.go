package transport

import "context"

// Browser is implemented by a Conn that can go through a queue and take single messages out
// of it, wherever they are: what a tool that looks after an error queue needs.
// Without it messages have to be received, one after the other, to be seen.
type Browser interface {
	// Browse begins to go through a queue. It fails with [ErrNoQueue] when there is
	// no such queue.
	Browse(ctx context.Context, queue string) (Cursor, error)
}

// Purger is implemented by a Conn that can empty a queue at once. Without it a tool has to take out one message
// after the other, by [Browser].
type Purger interface {
	// Purge removes for good the messages of queue that are ready to be received, and says how many.
	// Those that are being handled, or are delayed, stay. It fails with [ErrNoQueue] when there is no such
	// queue; after any other error some may be gone.
	Purge(ctx context.Context, queue string) (int64, error)
}

// Cursor goes once through the messages that were in a queue when Browse was called; those
// that come later do not show. It is used by one goroutine at a time.
type Cursor interface {
	// Next looks at up to limit further messages, in the order of the queue: none at the
	// end. There may be fewer when they are large. Those that are ready to be received are
	// all seen; whether those that are out or delayed are is the driver's.
	Next(ctx context.Context, limit int) ([]*Message, error)
	// Take removes a message and sends ops, none of them delayed: both happen or
	// neither. Where that is no unit and this process is killed meanwhile, ops may have been sent
	// and the message still be there; never the other way round. m is one that the last Next has
	// returned. It fails with [ErrNotFound] when the message is not ready any
	// more: taken already, or out elsewhere; with a [*DispatchError] when an operation is
	// refused; or with [ErrOutcomeUnknown].
	Take(ctx context.Context, m *Message, ops []Operation) error
	// Close ends the looking. What has not been taken is as it was, unless the driver's
	// documentation says what looking costs. A second Close does nothing.
	Close() error
}
