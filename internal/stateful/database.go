package stateful

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

// Database is the database of the records of an endpoint, outside the transaction of a message. It
// is safe for concurrent use.
type Database struct {
	transport.StateInspector
	// Endpoint, Log and Warnings are the name, the log and the warnings of the endpoint whose
	// database this is; zero values for a connection without an endpoint.
	Endpoint string
	Log      *slog.Logger
	Warnings *Warnings
	// Inbox reports whether the endpoint commits the effects of two messages with one id once.
	Inbox bool
	// Redelivery is the longest time until a message is delivered again whose receiver is gone.
	Redelivery time.Duration

	store transport.OutboxStore
}

// DatabaseOn returns the database that conn is connected to. It fails where the database cannot
// store records.
func DatabaseOn(conn transport.Conn) (Database, error) {
	inspector, ok := conn.(transport.StateInspector)
	store, transactions := conn.(transport.OutboxStore)
	if !ok || !transactions {
		return Database{}, fmt.Errorf("a %T stores no records: use a transport on a SQL database", conn)
	}
	return Database{StateInspector: inspector, store: store}, nil
}

// maxRepeats bounds the transactions that are repeated because they lost a conflict.
const maxRepeats = 10

// StoreError is the error of a statement about records. The endpoint lets messages wait where it
// says that the database cannot be reached, or that the table or a right is missing.
type StoreError struct{ Err error }

func (e *StoreError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *StoreError) Unwrap() error { return e.Err }

// Failed returns err as a [*StoreError], and nil and [transport.ErrNoRecord] as they are.
func Failed(err error) error {
	if err == nil || errors.Is(err, transport.ErrNoRecord) {
		return err
	}
	return &StoreError{err}
}

// Change calls f in a transaction, and commits it together with the operations that f returns,
// which are for queues of the database. An error of f rolls the transaction back. A transaction
// that loses a conflict is repeated, with f.
func (d Database) Change(
	ctx context.Context, f func(store transport.StateStore) ([]transport.Operation, error),
) error {
	pause := backoff.Backoff{Min: 5 * time.Millisecond, Max: 200 * time.Millisecond}
	for n := 1; ; n++ {
		err := d.change(ctx, f)
		if !errors.Is(err, transport.ErrConflict) || n == maxRepeats {
			return Failed(err)
		}
		if cause := pause.Wait(ctx); cause != nil {
			return errors.Join(cause, err)
		}
	}
}

func (d Database) change(
	ctx context.Context, f func(store transport.StateStore) ([]transport.Operation, error),
) error {
	tx, err := d.store.BeginStore(ctx, transport.OutboxEntry{})
	if err != nil {
		return err
	}
	store, ok := tx.(transport.StateStore)
	if !ok {
		return errors.Join(errors.New("the transaction stores no records"), tx.Rollback(ctx))
	}
	ops, err := f(store)
	if err != nil {
		return errors.Join(err, tx.Rollback(context.WithoutCancel(ctx)))
	}
	err = tx.Complete(ctx, ops)
	if detector, ok := tx.(transport.ConflictDetector); err != nil && ok && detector.Conflict(err) {
		err = fmt.Errorf("%w: %w", transport.ErrConflict, err)
	}
	return err
}

// Now returns the time by the clock that all users of the database share.
func (d Database) Now() time.Time {
	if c, ok := d.store.(transport.Clock); ok {
		return c.Now()
	}
	return time.Now()
}

// Warnings are the warnings of the parts of a program about an endpoint, for its health. The zero
// value has none. It is safe for concurrent use.
type Warnings struct {
	mu sync.Mutex
	of map[string][]string
}

// Set sets the warnings of a part of the program, in place of its last ones.
func (w *Warnings) Set(part string, warnings []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of == nil {
		w.of = map[string][]string{}
	}
	w.of[part] = slices.Clone(warnings)
}

// All returns the warnings of all parts.
func (w *Warnings) All() (all []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, warnings := range w.of {
		all = append(all, warnings...)
	}
	slices.Sort(all)
	return all
}
