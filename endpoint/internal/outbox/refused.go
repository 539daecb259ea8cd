package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// queuesRefuse is the time after which the outbox sends a message again that the destination and the
// error queue have refused.
const queuesRefuse = time.Minute

// refusedRows are the messages of the outbox that the destination and the error queue have refused.
// A message that another instance sends is forgotten after a while.
type refusedRows struct {
	count atomic.Int32 // of ids

	mu  sync.Mutex // guards the rest
	ids map[refusedID]time.Time
	err error // the last refusal of the error queue
}

// refusedID is the id of a message with the destination: a program may give messages for different
// queues the same id.
type refusedID struct{ destination, message string }

func refusedIDOf(op *transport.Operation) refusedID {
	return refusedID{destinationOf(op), op.Message.ID}
}

// maxRefusedRows bounds the ids. Further refused messages are not counted.
const maxRefusedRows = 1000

// add adds the message of an operation that the error queue has refused with err.
func (r *refusedRows) add(op *transport.Operation, err error) {
	id := refusedIDOf(op)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ids == nil {
		r.ids = map[refusedID]time.Time{}
	}
	r.err = err
	if _, known := r.ids[id]; known || len(r.ids) < maxRefusedRows {
		r.ids[id] = time.Now()
	}
	r.count.Store(int32(len(r.ids))) //nolint:gosec // at most maxRefusedRows
}

// remove removes the message of an operation that is no longer in the outbox.
func (r *refusedRows) remove(op *transport.Operation) {
	if r.count.Load() == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.ids, refusedIDOf(op))
	r.count.Store(int32(len(r.ids))) //nolint:gosec // at most maxRefusedRows
}

func (r *refusedRows) removeAll(ops []transport.Operation) {
	for i := range ops {
		r.remove(&ops[i])
	}
}

// refusal returns the last refusal while messages wait because of refusals. Each is tried again
// after queuesRefuse.
func (r *refusedRows) refusal() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.ids, func(_ refusedID, refused time.Time) bool {
		return time.Since(refused) > 2*queuesRefuse
	})
	r.count.Store(int32(len(r.ids))) //nolint:gosec // at most maxRefusedRows
	if len(r.ids) == 0 {
		return nil
	}
	return r.err
}

// unreadable records the rows that cannot be decoded, and logs such a row at most once a minute.
type unreadable struct {
	mu     sync.Mutex // guards the rest
	err    error      // of the last row
	seen   time.Time
	logged time.Time
}

// unreadableFor is the least time for which an unreadable row is reported after the receipt.
const unreadableFor = 5 * time.Minute

func (u *unreadable) add(ctx context.Context, log *slog.Logger, id string, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.err = fmt.Errorf("row %s: %w", id, err)
	u.seen = time.Now()
	if time.Since(u.logged) < time.Minute {
		return
	}
	u.logged = u.seen
	log.ErrorContext(ctx, "a message in the outbox cannot be read: it stays there, and others are sent",
		slog.String("row", id), slog.Any("error", err))
}

// found returns the last error while the row may be there, and nil otherwise. Some instance receives
// the row again whenever the lease has ended. Without leases the row is received once.
func (u *unreadable) found(lease time.Duration) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if lease > 0 && time.Since(u.seen) > max(unreadableFor, 3*lease) {
		return nil
	}
	return u.err
}
