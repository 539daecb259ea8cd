package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

// writer executes all writes of a process, on one connection: SQLite allows one writing transaction at a time anyway.
// Parts that arrive during a commit are gathered into the next transaction, and share its wait for the disk. A part
// that fails does not fail the others: functions of users run under a savepoint, and when a part of the engine fails,
// which is rare, the others run again.
//
// A part that runs cannot be cancelled: SQLite would end the transaction, with the other parts in it. A context ends
// the wait of a caller.
type writer struct {
	conn    *sql.Conn
	relaxed bool // commits never wait for the disk
	synced  bool // commits wait for the disk at the moment; used by loop only
	statements

	mu      sync.Mutex // guards the rest
	waiting []*part
	closed  bool

	signal chan struct{} // holds a token when a part waits, or closed is set
	busy   atomic.Bool   // others hold the lock
	ended  chan struct{} // closed when loop has returned
}

// part is the work of one caller in a transaction.
type part struct {
	run  func(tx *sql.Tx) error
	kind kind
	err  error
	done chan struct{}
}

// kind is the durability that a part needs.
type kind int8

const (
	// A durable part is on the disk when it has succeeded.
	durable kind = iota
	// A lease part changes leases only. It does not wait for the disk: a power failure that undoes it has ended the
	// process that has the lease too.
	lease
	// A foreign part is durable, and runs a function of a user, which may fail.
	foreign
)

func newWriter(conn *sql.Conn, relaxed bool) *writer {
	return &writer{
		conn:    conn,
		relaxed: relaxed,
		synced:  !relaxed,
		signal:  make(chan struct{}, 1),
		ended:   make(chan struct{}),
	}
}

// do calls run in a transaction, and returns when that is committed. An error of run undoes its writes. When another
// part has ended the transaction, run is called again. When ctx ends before, run is not called.
func (w *writer) do(ctx context.Context, kind kind, run func(tx *sql.Tx) error) error {
	p := &part{run: run, kind: kind, done: make(chan struct{})}
	if err := w.submit(p); err != nil {
		return err
	}
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
	}
	if !w.withdraw(p) {
		<-p.done
		return p.err
	}
	if w.busy.Load() {
		return lockedError(ctx)
	}
	return context.Cause(ctx)
}

func (w *writer) submit(p *part) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return transport.ErrClosed
	}
	w.waiting = append(w.waiting, p)
	w.wake()
	return nil
}

func (w *writer) wake() {
	select {
	case w.signal <- struct{}{}:
	default:
	}
}

func (w *writer) withdraw(p *part) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.Index(w.waiting, p)
	if i < 0 {
		return false
	}
	w.waiting = slices.Delete(w.waiting, i, i+1)
	return true
}

// close waits for the parts that are being written.
func (w *writer) close() {
	w.mu.Lock()
	w.closed = true
	w.wake()
	w.mu.Unlock()
	<-w.ended
}

// idle reports whether no part waits, and whether none will come.
func (w *writer) idle() (idle, closed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.waiting) == 0, w.closed
}

// onlyLeases reports whether no waiting part needs the disk.
func (w *writer) onlyLeases() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !slices.ContainsFunc(w.waiting, func(p *part) bool { return p.kind != lease })
}

// take removes and returns the waiting parts that fit a transaction which waits for the disk, or does not.
func (w *writer) take(synced bool) []*part {
	w.mu.Lock()
	defer w.mu.Unlock()
	parts := w.waiting
	w.waiting = nil
	if synced {
		return parts
	}
	var leases []*part
	for _, p := range parts {
		if p.kind == lease || w.relaxed {
			leases = append(leases, p)
		} else {
			w.waiting = append(w.waiting, p)
		}
	}
	return leases
}

func (w *writer) putBack(parts []*part) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = append(parts, w.waiting...)
}

// loop runs until the writer is closed.
func (w *writer) loop() {
	defer close(w.ended)
	for range w.signal {
		idle, closed := w.idle()
		for ; !idle; idle, closed = w.idle() {
			w.turn()
		}
		if closed {
			return
		}
	}
}

// turn executes the waiting parts. It takes them after the lock, when there may be more.
func (w *writer) turn() {
	err := w.sync(!w.relaxed && !w.onlyLeases())
	var tx *sql.Tx
	if err == nil {
		tx, err = w.begin()
	}
	if tx == nil && err == nil {
		return
	}
	parts := w.take(w.synced || err != nil)
	switch {
	case err != nil:
		settle(parts, explain(err))
	case len(parts) == 0:
		_ = tx.Rollback()
	default:
		w.putBack(w.carryOut(tx, parts))
	}
}

// sync reports whether the next commit has to wait for the disk.
func (w *writer) sync(on bool) error {
	if on == w.synced {
		return nil
	}
	mode := "pragma synchronous=normal"
	if on {
		mode = "pragma synchronous=full"
	}
	_, err := w.conn.ExecContext(context.Background(), mode)
	if err == nil {
		w.synced = on
	}
	return err
}

// begin opens a transaction, or returns nil when no part waits any more.
func (w *writer) begin() (*sql.Tx, error) {
	defer w.busy.Store(false)
	pause := backoff.Backoff{Min: minBusy, Max: maxBusy}
	for {
		tx, err := w.conn.BeginTx(context.Background(), nil)
		if !isBusy(err) {
			return tx, err
		}
		w.busy.Store(true)
		_ = pause.Wait(context.Background())
		if idle, _ := w.idle(); idle {
			return nil, nil
		}
	}
}

// carryOut runs parts and commits. When a part has ended the transaction, as SQLite does after some errors, it
// returns the other parts, which have to run again.
func (w *writer) carryOut(tx *sql.Tx, parts []*part) (again []*part) {
	for i, p := range parts {
		p.err = nil
		var intact bool
		if intact, p.err = w.runPart(tx, p, len(parts) > 1); intact {
			continue
		}
		_ = tx.Rollback()
		again = slices.Delete(slices.Clone(parts), i, i+1)
		close(p.done)
		return again
	}
	if err := tx.Commit(); err != nil {
		settle(parts, &commitError{explain(err)})
		return nil
	}
	settle(parts, nil)
	return nil
}

// runPart reports whether the transaction can be used after p: p has succeeded, or its writes were undone.
func (w *writer) runPart(tx *sql.Tx, p *part, shared bool) (intact bool, err error) {
	if shared && p.kind == foreign {
		return w.runGuarded(tx, p)
	}
	err = p.run(tx)
	return err == nil, err
}

// runGuarded runs p under a savepoint.
func (w *writer) runGuarded(tx *sql.Tx, p *part) (intact bool, err error) {
	ctx := context.Background()
	if _, err := w.savepoint.ExecContext(ctx); err != nil {
		return false, explain(err)
	}
	err = p.run(tx)
	if err != nil {
		if _, gone := w.rollbackTo.ExecContext(ctx); gone != nil {
			return false, err
		}
	}
	if _, gone := w.release.ExecContext(ctx); gone != nil {
		return false, errors.Join(err, fmt.Errorf("the transaction was ended within: %w", gone))
	}
	return true, err
}

// settle returns err to the callers of parts that have no error of their own.
func settle(parts []*part, err error) {
	for _, p := range parts {
		if p.err == nil {
			p.err = err
		}
		close(p.done)
	}
}
