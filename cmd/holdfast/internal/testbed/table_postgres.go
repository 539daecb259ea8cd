package testbed

import (
	"cmp"
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

// postgresTable is in the schema of the queues.
type postgresTable struct{ transport *postgres.Transport }

func (t postgresTable) name(table string) string {
	return pgx.Identifier{cmp.Or(t.transport.Schema, "public"), table}.Sanitize()
}

// do runs f with a connection of its own.
func (t postgresTable) do(ctx context.Context, f func(conn *pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, t.transport.URL)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return f(conn)
}

// Create implements [Table].
func (t postgresTable) Create(ctx context.Context, name string, n int) error {
	return t.do(ctx, func(conn *pgx.Conn) error {
		for _, statement := range []string{
			`create schema if not exists ` + pgx.Identifier{cmp.Or(t.transport.Schema, "public")}.Sanitize(),
			`create table ` + t.name(name) + ` (id int primary key, n bigint not null default 0) with (fillfactor = 50)`,
		} {
			if _, err := conn.Exec(ctx, statement); err != nil {
				return err
			}
		}
		_, err := conn.Exec(ctx, `insert into `+t.name(name)+` (id) select generate_series(0, $1::int - 1)`, n)
		return err
	})
}

// Add implements [Table].
func (t postgresTable) Add(ctx context.Context, s *endpoint.Session, name string, row int) error {
	tx, err := postgres.Tx(ctx, s)
	if err != nil {
		return err
	}
	tag, err := tx.Exec(ctx, `update `+t.name(name)+` set n = n + 1 where id = $1`, row)
	if err == nil && tag.RowsAffected() == 0 {
		err = errNoRow(name, row)
	}
	return err
}

// Counts implements [Table].
func (t postgresTable) Counts(ctx context.Context, name string) (map[int]int, error) {
	counts := map[int]int{}
	return counts, t.do(ctx, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `select id, n from `+t.name(name)+` where n > 0`)
		if err != nil {
			return err
		}
		var id, n int
		_, err = pgx.ForEachRow(rows, []any{&id, &n}, func() error {
			counts[id] = n
			return nil
		})
		return err
	})
}

// Drop implements [Table].
func (t postgresTable) Drop(ctx context.Context, name string) error {
	return t.do(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `drop table if exists `+t.name(name))
		return err
	})
}
