package torture

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/sqlitefile"
	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// Rows is a table beside the queues, in which handlers write a row for each message in the
// transaction of that message. It has no key: a message that was handled twice has two rows.
type Rows interface {
	create(ctx context.Context, table string) error
	write(ctx context.Context, s *endpoint.Session, table string, n int) error
	read(ctx context.Context, table string) ([]int, error)
}

// SQLiteRows are in the file of the queues.
func SQLiteRows(path string) Rows { return sqliteRows(path) }

type sqliteRows string

func (r sqliteRows) create(ctx context.Context, table string) (err error) {
	db, err := sqlitefile.Open(string(r))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	_, err = db.ExecContext(ctx, fmt.Sprintf(`create table %q (n integer not null)`, table))
	return err
}

func (r sqliteRows) write(ctx context.Context, s *endpoint.Session, table string, n int) error {
	return sqlite.OnCommit(ctx, s, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, fmt.Sprintf(`insert into %q (n) values (?)`, table), n)
		return err
	})
}

func (r sqliteRows) read(ctx context.Context, table string) (ns []int, err error) {
	db, err := sqlitefile.Open(string(r))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	rows, err := db.QueryContext(ctx, fmt.Sprintf(`select n from %q`, table))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var n int
		if err := rows.Scan(&n); err != nil {
			return nil, err
		}
		ns = append(ns, n)
	}
	return ns, rows.Err()
}

// PostgresRows are in the database of the queues; an empty schema is public.
func PostgresRows(url, schema string) Rows {
	if schema == "" {
		schema = "public"
	}
	return &postgresRows{url, schema}
}

type postgresRows struct{ url, schema string }

func (r *postgresRows) name(table string) string { return pgx.Identifier{r.schema, table}.Sanitize() }

func (r *postgresRows) create(ctx context.Context, table string) error {
	conn, err := pgx.Connect(ctx, r.url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, `create table `+r.name(table)+` (n int not null)`)
	return err
}

func (r *postgresRows) write(ctx context.Context, s *endpoint.Session, table string, n int) error {
	tx, err := postgres.Tx(ctx, s)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `insert into `+r.name(table)+` (n) values ($1)`, n)
	return err
}

func (r *postgresRows) read(ctx context.Context, table string) ([]int, error) {
	conn, err := pgx.Connect(ctx, r.url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, `select n from `+r.name(table))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int])
}
