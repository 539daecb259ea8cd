package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// InsertIn implements [tablequeue.Queues], with one statement in tx. The server ends a transaction
// in which a statement fails, so a savepoint is around it, except where the rows are plain ones for
// a queue that took rows before.
func (s *store) InsertIn(ctx context.Context, tx any, rows []tablequeue.Row) error {
	users, err := usersTxOf(tx)
	switch {
	case err != nil:
	case len(rows) == 0:
		err = s.sameDatabase(ctx, users)
	case s.sure(rows):
		units := []*tablequeue.Unit{{Rows: rows}}
		if err = s.detector.Once(ctx, units, func() error { return s.insertIn(ctx, users, rows) }); err != nil {
			s.table(rows[0].Queue).takesRows.Store(false)
			err = s.missing(ctx, rows[0].Queue, err)
		}
	default:
		units := []*tablequeue.Unit{{Rows: rows}}
		err = s.detector.Repeat(ctx, units, func() error { return s.insertWithin(ctx, users, rows) })
	}
	return failure(timerless(err, &tablequeue.Unit{Rows: rows}), "send in a transaction")
}

// usersTx is a transaction of a caller.
type usersTx interface {
	exec(ctx context.Context, text string) error
	// query scans each row of the answer into dest and then calls row.
	query(ctx context.Context, text string, args, dest []any, row func()) error
	// home returns the database of the connection, if it is known: nil otherwise. setHome stores
	// it.
	home() *database
	setHome(d *database)
	// source returns a FROM item with the columns of o's rows, whose parameters begin with number
	// first, and them.
	source(o *out, first int) (text string, args []any)
}

func usersTxOf(tx any) (usersTx, error) {
	switch tx := tx.(type) {
	case pgx.Tx:
		return pgxTx{tx}, nil
	case *sql.Tx:
		if tx != nil {
			return sqlTx{tx}, nil
		}
	}
	return nil, fmt.Errorf("it is a %T: want a pgx.Tx of github.com/jackc/pgx/v5 or a *sql.Tx", tx)
}

// sure reports whether rows are visible at once, without a receipt, in one queue that is known to
// take them.
func (s *store) sure(rows []tablequeue.Row) bool {
	t := s.table(rows[0].Queue)
	if !t.takesRows.Load() || t.foreign.Load() {
		return false
	}
	for i := range rows {
		if r := &rows[i]; r.Queue != rows[0].Queue || r.Timed() || r.Named() || r.WantSeq || r.Published {
			return false
		}
	}
	return true
}

const (
	setSavepoint     = "SAVEPOINT holdfast_send"
	undoSavepoint    = "ROLLBACK TO SAVEPOINT holdfast_send"
	releaseSavepoint = "RELEASE SAVEPOINT holdfast_send"
)

// insertWithin is insertIn, and leaves tx as it was when it fails, even where ctx has ended.
func (s *store) insertWithin(ctx context.Context, tx usersTx, rows []tablequeue.Row) error {
	if err := tx.exec(ctx, setSavepoint); err != nil {
		return err
	}
	err := s.insertIn(ctx, tx, rows)
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), dialect.MaxSavepoint)
	defer cancel()
	if err == nil {
		return tx.exec(own, releaseSavepoint)
	}
	if gone := tx.exec(own, undoSavepoint); gone != nil {
		return errors.Join(err, fmt.Errorf("the transaction cannot go on: %w", gone))
	}
	if code(err) == undefinedTable {
		if other := s.sameDatabase(own, tx); other != nil {
			return other
		}
	}
	return err
}

// insertIn inserts rows where tx is one of the database of the queues.
func (s *store) insertIn(ctx context.Context, tx usersTx, rows []tablequeue.Row) error {
	home := s.home.Load()
	err := s.insertAt(ctx, tx, rows, home)
	if !errors.Is(err, errNotInserted) {
		return err
	}
	if err := s.sameDatabase(ctx, tx); err != nil {
		return err
	}
	if now := s.home.Load(); !now.is(*home) { // the server has been restarted
		return s.insertAt(ctx, tx, rows, now)
	}
	return err
}

// insertAt inserts rows where tx is one of a database, and returns errNotInserted elsewhere.
func (s *store) insertAt(ctx context.Context, tx usersTx, rows []tablequeue.Row, where *database) error {
	outs := s.groups([]*tablequeue.Unit{{Rows: rows}})[0].outs
	known := tx.home() == where && !s.pooled // a proxy may change the server behind a connection
	text, args := joining(tx, outs, known)
	if !known {
		args = append(args, where.name, where.started)
	}
	var (
		queues  []string
		id, seq int64
		n       int // of an out
		at      = make([]int, len(outs))
	)
	err := tx.query(ctx, text, args, []any{&id, &n, &seq}, func() {
		if r := outs[n].rows[at[n]]; r.WantSeq {
			r.Seq = seq
		}
		at[n]++
	})
	if err != nil {
		return err
	}
	if at[0] == 0 {
		return errNotInserted
	}
	if !known {
		tx.setHome(where)
	}
	for _, o := range outs {
		queues = append(queues, o.to.name)
		o.to.takesRows.Store(true)
	}
	s.watchCommit(id, queues)
	return nil
}

var errNotInserted = errors.New("the server has inserted no rows: a trigger or a rule of the queue's table prevents that")
