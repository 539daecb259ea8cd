package testbed

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/sqlitefile"
	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// sqliteTable is in the file of the queues.
type sqliteTable string

// do runs f in a transaction of a connection of its own.
func (t sqliteTable) do(ctx context.Context, f func(tx *sql.Tx) error) (err error) {
	db, err := sqlitefile.Open(string(t))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// Create implements [Table].
func (t sqliteTable) Create(ctx context.Context, name string, n int) error {
	return t.do(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, fmt.Sprintf(`
			create table %q (id integer primary key, n integer not null default 0);
			with recursive ids (id) as (select 0 union all select id + 1 from ids where id < %d)
			insert into %[1]q (id) select id from ids`, name, n-1))
		return err
	})
}

// Add implements [Table].
func (t sqliteTable) Add(ctx context.Context, s *endpoint.Session, name string, row int) error {
	return sqlite.OnCommit(ctx, s, func(ctx context.Context, tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, `update "`+name+`" set n = n + 1 where id = ?`, row)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, errNoRow(name, row))
		}
		return nil
	})
}

// Counts implements [Table].
func (t sqliteTable) Counts(ctx context.Context, name string) (map[int]int, error) {
	counts := map[int]int{}
	return counts, t.do(ctx, func(tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, fmt.Sprintf(`select id, n from %q where n > 0`, name))
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var id, n int
			if err := rows.Scan(&id, &n); err != nil {
				return err
			}
			counts[id] = n
		}
		return rows.Err()
	})
}

// Drop implements [Table].
func (t sqliteTable) Drop(ctx context.Context, name string) error {
	return t.do(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, fmt.Sprintf(`drop table if exists %q`, name))
		return err
	})
}
