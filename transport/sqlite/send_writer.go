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

// writer does all writing of a process, on one connection: SQLite lets one transaction write at
// a time anyway. What is asked for while one is being committed is gathered into the next, and
// shares its wait for the disk. A part that fails leaves the others alone: what users wrote
// runs under a savepoint; where one of ours fails, which is rare, the others are run again.
//
// Nothing that runs in the transaction can be broken off: SQLite would end the transaction,
// and with it what others do. Contexts end the wait for it.
type writer struct {
	conn    *sql.Conn
	relaxed bool // never wait for the disk
	synced  bool // commits wait for the disk at the moment; used by loop only
	statements

	mu      sync.Mutex // guards what follows
	waiting []*part
	closed  bool

	signal chan struct{} // holds a token when something waits, or closed is set
	busy   atomic.Bool   // others hold the lock
	ended  chan struct{} // closed when loop has returned
}

// part is what one caller does in a transaction.
type part struct {
	run  func(tx *sql.Tx) error
	kind kind
	err  error
	done chan struct{}
}

// kind is what a part needs.
type kind int8

const (
	// durable parts are on the disk when they have succeeded.
	durable kind = iota
	// lease parts change leases only. A power failure may undo them, which ends the leases: it has
	// ended their holders too. So they need not wait for the disk.
	lease
	// foreign parts are durable and run functions of users, who may well fail.
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

// do has run called in a transaction and returns when that is committed. An error of run
// undoes what run did. When somebody else's part has ruined the transaction, run is called
// again. When ctx ends before its turn, it is not called.
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

// close waits for what is being written.
func (w *writer) close() {
	w.mu.Lock()
	w.closed = true
	w.wake()
	w.mu.Unlock()
	<-w.ended
}

// idle says whether nothing waits, and whether that is for ever.
func (w *writer) idle() (idle, closed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.waiting) == 0, w.closed
}

// onlyLeases says whether nothing that waits needs the disk.
func (w *writer) onlyLeases() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !slices.ContainsFunc(w.waiting, func(p *part) bool { return p.kind != lease })
}

// take takes what waits and may be part of a transaction that waits for the disk or not.
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

// turn carries out what waits. That is taken when the lock is ours: there may be more by
// then.
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

// sync says whether the next commit is to wait for the disk.
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

// begin opens a transaction, or returns nil when nothing waits for one any more.
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

// carryOut runs parts and commits. When one of them has ended the transaction, as SQLite does
// after some errors, it returns the others, which have to be run again.
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

// runPart says whether the transaction can go on: p succeeded, or what it did was undone.
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

// settle tells the callers of parts: err to those who have had no error of their own.
func settle(parts []*part, err error) {
	for _, p := range parts {
		if p.err == nil {
			p.err = err
		}
		close(p.done)
	}
}
