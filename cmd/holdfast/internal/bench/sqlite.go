package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/sqlitefile"
	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// SQLite is a file with queues.
func SQLite(path string) Broker { return sqliteFile(path) }

type sqliteFile string

// do runs statements in one transaction on a connection of its own.
func (f sqliteFile) do(ctx context.Context, g func(tx *sql.Tx) error) (err error) {
	db, err := sqlitefile.Open(string(f))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := g(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func (f sqliteFile) prepareRows(ctx context.Context, name string) error {
	return f.do(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, fmt.Sprintf(`create table %q (id integer primary key, n integer not null default 0)`, name))
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, fmt.Sprintf(
			`with recursive ids (id) as (select 0 union all select id + 1 from ids where id < %d) insert into %q (id) select id from ids`,
			businessRows-1, name))
		return err
	})
}

func (f sqliteFile) writeRow(ctx context.Context, s *endpoint.Session, name string, row int) error {
	return sqlite.OnCommit(ctx, s, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `update "`+name+`" set n = n + 1 where id = ?`, row)
		return err
	})
}

func (f sqliteFile) rowWrites(ctx context.Context, name string) (sum int64, err error) {
	err = f.do(ctx, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, fmt.Sprintf(`select sum(n) from %q`, name)).Scan(&sum)
	})
	return sum, err
}

func (f sqliteFile) Remove(ctx context.Context, name string, queues []string) error {
	return f.do(ctx, func(tx *sql.Tx) error {
		for _, q := range queues {
			if _, err := tx.ExecContext(ctx, `delete from holdfast_messages where queue = ?`, q); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, `delete from holdfast_queues where name = ?`, q); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, fmt.Sprintf(`drop table if exists %q`, name))
		return err
	})
}
