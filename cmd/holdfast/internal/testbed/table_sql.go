package testbed

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/sqlitefile"
	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// sqlTable is in an SQL database.
type sqlTable struct {
	open    func() (*sql.DB, error)
	quote   func(name string) string
	prepare []string // statements before the table is created
	options string   // of the table
	add     func(ctx context.Context, s *endpoint.Session, table string, row int) error
}

// sqliteTable is in the file of the queues.
func sqliteTable(t *sqlite.Transport) sqlTable {
	return sqlTable{
		open:  func() (*sql.DB, error) { return sqlitefile.Open(t.Path) },
		quote: func(name string) string { return `"` + name + `"` },
		add: func(ctx context.Context, s *endpoint.Session, table string, row int) error {
			return sqlite.OnCommit(ctx, s, func(ctx context.Context, tx *sql.Tx) error {
				result, err := tx.ExecContext(ctx, `update `+table+` set n = n + 1 where id = ?`, row)
				if err != nil {
					return err
				}
				n, err := result.RowsAffected()
				return cmp.Or(err, changed(n, table, row))
			})
		},
	}
}

// pgTable is in the schema of the queues.
type pgTable struct {
	sqlTable
	url string
}

// OpenOwn implements [OwnAdder].
func (t pgTable) OpenOwn(
	ctx context.Context, conns int,
) (add func(ctx context.Context, name string, row int) error, end func(), err error) {
	cfg, err := pgxpool.ParseConfig(t.url)
	if err != nil {
		return nil, nil, err
	}
	cfg.MaxConns = int32(min(conns, math.MaxInt32))
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, name string, row int) error {
		table := t.quote(name)
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, `update `+table+` set n = n + 1 where id = $1`, row)
			return cmp.Or(err, changed(tag.RowsAffected(), table, row))
		})
	}, pool.Close, nil
}

func postgresTable(t *postgres.Transport) pgTable {
	schema := cmp.Or(t.Schema, "public")
	return pgTable{url: t.URL, sqlTable: sqlTable{
		open:    func() (*sql.DB, error) { return sql.Open("pgx", t.URL) },
		quote:   func(name string) string { return pgx.Identifier{schema, name}.Sanitize() },
		prepare: []string{`create schema if not exists ` + pgx.Identifier{schema}.Sanitize()},
		options: ` with (fillfactor = 50)`,
		add: func(ctx context.Context, s *endpoint.Session, table string, row int) error {
			tx, err := postgres.Tx(ctx, s)
			if err != nil {
				return err
			}
			tag, err := tx.Exec(ctx, `update `+table+` set n = n + 1 where id = $1`, row)
			return cmp.Or(err, changed(tag.RowsAffected(), table, row))
		},
	}}
}

// changed fails a message whose number no row has.
func changed(rows int64, table string, row int) error {
	if rows == 0 {
		return fmt.Errorf("table %s has no row %d", table, row)
	}
	return nil
}

// do runs f in a transaction of a connection of its own.
func (t sqlTable) do(ctx context.Context, f func(tx *sql.Tx) error) (err error) {
	db, err := t.open()
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

// exec runs statements in a transaction.
func (t sqlTable) exec(ctx context.Context, statements ...string) error {
	return t.do(ctx, func(tx *sql.Tx) error {
		for _, s := range statements {
			if _, err := tx.ExecContext(ctx, s); err != nil {
				return err
			}
		}
		return nil
	})
}

// Create implements [Table].
func (t sqlTable) Create(ctx context.Context, name string, n int) error {
	return t.exec(ctx, append(t.prepare,
		`create table `+t.quote(name)+` (id integer primary key, n bigint not null default 0)`+t.options,
		fmt.Sprintf(`with recursive ids (id) as (select 0 union all select id + 1 from ids where id < %d)
			insert into %s (id) select id from ids`, n-1, t.quote(name)))...)
}

// Add implements [Table].
func (t sqlTable) Add(ctx context.Context, s *endpoint.Session, name string, row int) error {
	return t.add(ctx, s, t.quote(name), row)
}

// Counts implements [Table].
func (t sqlTable) Counts(ctx context.Context, name string) (map[int]int, error) {
	counts := map[int]int{}
	return counts, t.do(ctx, func(tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, `select id, n from `+t.quote(name)+` where n > 0`)
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
func (t sqlTable) Drop(ctx context.Context, name string) error {
	return t.exec(ctx, `drop table if exists `+t.quote(name))
}
