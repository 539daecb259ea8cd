package bench

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

// Postgres is a database of PostgreSQL; an empty schema is public.
func Postgres(url, schema string) Broker {
	if schema == "" {
		schema = "public"
	}
	return &postgresBroker{url: url, schema: schema}
}

type postgresBroker struct {
	url, schema string
	update      string // the business write, put together once
}

func (p *postgresBroker) table(name string) string { return pgx.Identifier{p.schema, name}.Sanitize() }

// do runs f with a connection of its own.
func (p *postgresBroker) do(ctx context.Context, f func(conn *pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, p.url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return f(conn)
}

func (p *postgresBroker) prepareRows(ctx context.Context, name string) error {
	p.update = `update ` + p.table(name) + ` set n = n + 1 where id = $1`
	return p.do(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `create schema if not exists `+pgx.Identifier{p.schema}.Sanitize())
		if err != nil {
			return err
		}
		_, err = conn.Exec(ctx, `create table `+p.table(name)+` (id int primary key, n bigint not null default 0) with (fillfactor = 50)`)
		if err != nil {
			return err
		}
		_, err = conn.Exec(ctx, `insert into `+p.table(name)+` (id) select generate_series(0, $1::int - 1)`, businessRows)
		return err
	})
}

func (p *postgresBroker) writeRow(ctx context.Context, s *endpoint.Session, _ string, row int) error {
	tx, err := postgres.Tx(ctx, s)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, p.update, row)
	return err
}

func (p *postgresBroker) rowWrites(ctx context.Context, name string) (sum int64, err error) {
	err = p.do(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `select sum(n)::bigint from `+p.table(name)).Scan(&sum)
	})
	return sum, err
}

func (p *postgresBroker) Remove(ctx context.Context, name string, queues []string) error {
	return p.do(ctx, func(conn *pgx.Conn) error {
		for _, table := range append([]string{name}, queues...) {
			if _, err := conn.Exec(ctx, `drop table if exists `+p.table(table)); err != nil {
				return err
			}
		}
		return nil
	})
}
