package sqlserver

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// joiner is the part of a store that sends in transactions of callers.
type joiner struct {
	*db
	writer *writer
}

// InsertIn implements [tablequeue.Queues].
func (j *joiner) InsertIn(ctx context.Context, tx any, rows []tablequeue.Row) error {
	foreign, ok := tx.(*sql.Tx)
	if !ok || foreign == nil {
		return fmt.Errorf("sqlserver: send in a transaction: it is a %T: want a *sql.Tx of github.com/microsoft/go-mssqldb", tx)
	}
	err := j.sameDatabase(ctx, foreign)
	if err == nil && len(rows) > 0 {
		err = j.detector.Repeat(ctx, []*tablequeue.Unit{{Rows: rows}}, func() error { return j.insertIn(ctx, foreign, rows) })
	}
	if err != nil {
		return failed(undoneError{err}, "send in a transaction")
	}
	return nil
}

// sameDatabase checks the database of tx. It does not notice another server with a database of the
// same name and tables.
func (j *joiner) sameDatabase(ctx context.Context, tx *sql.Tx) error {
	var name string
	if err := tx.QueryRowContext(ctx, databaseName).Scan(&name); err != nil {
		return ofSQLServer(ctx, fmt.Errorf("ask for its database: %w", err))
	}
	if name != j.database {
		return fmt.Errorf("it is one of database %q and the queues are in %q: begin it there", name, j.database)
	}
	return nil
}

// ofSQLServer adds to an error that is no answer of SQL Server that the transaction may be one of
// another database system.
func ofSQLServer(ctx context.Context, err error) error {
	if numberOf(err) != 0 || ctx.Err() != nil || errors.Is(err, sql.ErrTxDone) || errors.Is(err, driver.ErrBadConn) {
		return err
	}
	return fmt.Errorf("the *sql.Tx has to be one of SQL Server: %w", err)
}

// insertIn leaves tx as it was when it fails, even where ctx has ended.
func (j *joiner) insertIn(ctx context.Context, tx *sql.Tx, rows []tablequeue.Row) error {
	if _, err := tx.ExecContext(ctx, setSavepoint); err != nil {
		return err
	}
	err := j.writer.insert(ctx, tx, []*tablequeue.Unit{{Rows: rows}})
	if err == nil {
		return nil
	}
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), dialect.MaxSavepoint)
	defer cancel()
	if _, gone := tx.ExecContext(own, undoSavepoint); gone != nil {
		return errors.Join(err, fmt.Errorf("the transaction cannot go on: %w", gone))
	}
	return err
}
