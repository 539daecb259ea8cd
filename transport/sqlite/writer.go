package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/transport"
)

// writer executes all writes of a process, on one connection: SQLite allows one writing transaction
// at a time anyway. Parts that arrive during a commit are gathered into the next transaction, and
// share its wait for the disk. A part that fails does not fail the others: functions of users run
// under a savepoint, and when a part of the engine fails, which is rare, the others run again.
//
// A part that runs cannot be cancelled: SQLite would end the transaction, with the other parts in
// it. A context ends the wait of a caller.
type writer struct {
	*session
	file *identity // set before loop begins

	mu      sync.Mutex // guards waiting and closed
	waiting []*part
	closed  bool

	changed sync.Cond     // waiting or closed has changed
	busy    atomic.Bool   // others hold the lock
	ended   chan struct{} // closed when loop has returned
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
	// A lease part changes leases only. It does not wait for the disk: a power failure that undoes
	// it has ended the process that has the lease too.
	lease
	// A foreign part is durable, and may fail by itself: it runs a function of a user, or writes
	// records.
	foreign
)

func newWriter(
	db *sql.DB, conn *sql.Conn, texts *texts, statements *interrupter, relaxed bool,
) *writer {
	w := &writer{
		session: &session{
			db: db, conn: conn, texts: texts, interrupter: statements, relaxed: relaxed, synced: !relaxed,
			statements: map[string]*sql.Stmt{}, log: slog.New(slog.DiscardHandler), told: map[string]bool{},
		},
		ended: make(chan struct{}),
	}
	w.changed.L = &w.mu
	return w
}

// do calls run in a transaction, and returns when that is committed. An error of run undoes its
// writes. When another part has ended the transaction, run is called again. When ctx ends before,
// run is not called.
func (w *writer) do(ctx context.Context, kind kind, run func(tx *sql.Tx) error) error {
	p := &part{run: run, kind: kind, done: make(chan struct{})}
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return transport.ErrClosed
	}
	w.waiting = append(w.waiting, p)
	w.mu.Unlock()
	w.changed.Signal()
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
	}
	switch {
	case !w.withdraw(p):
		<-p.done
		return p.err
	case w.busy.Load():
		return lockedError(ctx)
	}
	return context.Cause(ctx)
}

func (w *writer) withdraw(p *part) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.Index(w.waiting, p)
	if i >= 0 {
		w.waiting = slices.Delete(w.waiting, i, i+1)
	}
	return i >= 0
}

// close waits for the parts that are being written.
func (w *writer) close() {
	w.mu.Lock()
	w.closed = true
	w.changed.Signal()
	w.mu.Unlock()
	<-w.ended
}

// needsDisk reports that a part is not of leases only.
func needsDisk(p *part) bool { return p.kind != lease }

// pending reports whether a part waits, and whether one of them waits for the disk.
func (w *writer) pending() (some, synced bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.waiting) > 0, !w.relaxed && slices.ContainsFunc(w.waiting, needsDisk)
}

// take removes and returns the waiting parts, without those that need the disk unless all are
// wanted.
func (w *writer) take(all bool) []*part {
	w.mu.Lock()
	defer w.mu.Unlock()
	parts := w.waiting
	w.waiting = nil
	if all {
		return parts
	}
	for _, p := range parts {
		if needsDisk(p) {
			w.waiting = append(w.waiting, p)
		}
	}
	return slices.DeleteFunc(parts, needsDisk)
}

// loop runs until the writer is closed.
func (w *writer) loop() {
	defer close(w.ended)
	for w.wait() {
		w.turn()
	}
}

// wait waits for a part, and reports whether there is one: otherwise none will come.
func (w *writer) wait() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.waiting) == 0 && !w.closed {
		w.changed.Wait()
	}
	return len(w.waiting) > 0
}

// turn executes the waiting parts. It takes them after the lock, when there may be more.
func (w *writer) turn() {
	_, synced := w.pending()
	err := w.file.check() // else the commit would succeed, and be lost
	if err == nil && w.traces {
		err = w.reconnect()
	}
	if err == nil {
		err = w.sync(synced)
	}
	var tx *sql.Tx
	if err == nil {
		tx, err = w.begin()
	}
	if tx == nil && err == nil {
		return
	}
	parts := w.take(w.synced || w.relaxed || err != nil)
	switch {
	case err != nil:
		settle(parts, err)
	case len(parts) == 0:
		_ = tx.Rollback()
	default:
		w.carryOut(tx, parts)
	}
}

// begin opens a transaction, or returns nil when no part waits any more.
func (w *writer) begin() (tx *sql.Tx, err error) {
	defer w.busy.Store(false)
	err = unlessBusy(context.Background(), func() (err error) {
		tx, err = w.conn.BeginTx(context.Background(), nil)
		if isBusy(err) {
			w.busy.Store(true)
			if waiting, _ := w.pending(); !waiting {
				return nil
			}
		}
		return err
	})
	return tx, err
}

// carryOut runs parts and commits. When a part has ended the transaction, as SQLite does after some
// errors, the other parts wait again, and so do those after a part that has left something on the
// connection.
func (w *writer) carryOut(tx *sql.Tx, parts []*part) {
	for i, p := range parts {
		var intact bool
		intact, p.err = w.runPart(tx, p, len(parts) > 1)
		if !intact {
			if errors.Is(p.err, errHangs) {
				w.interrupter.rollback(tx)
				w.discard()
			} else {
				_ = tx.Rollback()
			}
			close(p.done)
			w.putBack(slices.Delete(parts, i, i+1))
			return
		}
		if w.traces {
			w.putBack(slices.Clone(parts[i+1:]))
			parts = parts[:i+1]
			break
		}
	}
	err := tx.Commit()
	if err != nil {
		err = fmt.Errorf("%w: %w", errCommit, err)
	}
	settle(parts, err)
}

// putBack has parts wait again, before the others.
func (w *writer) putBack(parts []*part) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = append(parts, w.waiting...)
}

// runPart reports whether the transaction can be used after p: p has succeeded, or its writes were
// undone.
func (w *writer) runPart(tx *sql.Tx, p *part, shared bool) (intact bool, err error) {
	run := func() error { return p.run(tx) }
	if !shared || p.kind != foreign {
		err = run()
		return err == nil, err
	}
	return guard(func(query string) error {
		_, err := w.change(query)
		return err
	}, run)
}

// guard calls run under a savepoint, to which it rolls back when run fails. It reports whether the
// transaction can be used after that. It does not roll back while a function hangs, because a
// statement of the function may use the connection.
func guard(execute func(query string) error, run func() error) (intact bool, err error) {
	if err := execute(savepoint); err != nil {
		return false, err
	}
	err = run()
	if errors.Is(err, errHangs) {
		return false, err
	}
	var gone error
	if err != nil {
		gone = execute(rollbackTo)
	}
	if gone == nil {
		gone = execute(release)
	}
	if gone != nil {
		return false, errors.Join(err, fmt.Errorf("the transaction cannot go on: %w", gone))
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
