package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

// InsertIn implements [tablequeue.Queues]. Listeners notice the commit by themselves.
func (s *store) InsertIn(ctx context.Context, tx any, rows []tablequeue.Row) error {
	theirs, ok := tx.(*sql.Tx)
	if !ok || theirs == nil {
		return fmt.Errorf("sqlite: send in a transaction: it is a %T: want a *sql.Tx", tx)
	}
	err := s.sameFile(ctx, theirs)
	if err == nil && len(rows) > 0 {
		err = insertIn(ctx, theirs, rows, s.clock.now())
	}
	if isBusy(err) {
		err = fmt.Errorf("the file is locked by another transaction: "+
			"open it with _txlock=immediate and a _busy_timeout: %w", err)
	}
	return failed(err, "send in a transaction")
}

func (s *store) sameFile(ctx context.Context, tx *sql.Tx) error {
	var path string
	err := tx.QueryRowContext(ctx, `select file from pragma_database_list where name = 'main'`).Scan(&path)
	if err != nil {
		return ofSQLite(ctx, err)
	}
	theirs, err := os.Stat(path)
	if err == nil && os.SameFile(theirs, s.file.info) {
		return nil
	}
	return fmt.Errorf("it is one of file %q and the queues are in %q: begin it there", path, s.path)
}

// ofSQLite adds to an error that is not one of SQLite that the transaction may be one of another
// database system.
func ofSQLite(ctx context.Context, err error) error {
	if primary(err) != 0 || ctx.Err() != nil || errors.Is(err, sql.ErrTxDone) || errors.Is(err, driver.ErrBadConn) {
		return err
	}
	return fmt.Errorf("the *sql.Tx has to be one of SQLite: %w", err)
}

// insertIn leaves tx as it was when it fails. Its statements ignore the end of ctx: SQLite would
// end the transaction.
func insertIn(ctx context.Context, tx *sql.Tx, rows []tablequeue.Row, now int64) error {
	ctx = context.WithoutCancel(ctx)
	execute := func(query string) error {
		_, err := tx.ExecContext(ctx, query)
		return err
	}
	_, err := guard(execute, func() error {
		statements := map[string]*sql.Stmt{}
		defer func() {
			for _, stmt := range statements {
				_ = stmt.Close()
			}
		}()
		prepared := func(query string) (*sql.Stmt, error) {
			if stmt := statements[query]; stmt != nil {
				return stmt, nil
			}
			stmt, err := tx.PrepareContext(ctx, query)
			if err == nil {
				statements[query] = stmt
			}
			return stmt, err
		}
		return insertRows(prepared, rows, now)
	})
	return err
}
