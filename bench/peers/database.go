package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// schema has all tables of a run. It is dropped and created when a run begins, and dropped when it
// ends.
const schema = "holdfast_bench_peers"

const tables = `
CREATE TABLE accounts (id int PRIMARY KEY, orders bigint NOT NULL DEFAULT 0) WITH (fillfactor = 50);
INSERT INTO accounts (id) SELECT generate_series(0, 999);
CREATE TABLE handled (id uuid PRIMARY KEY, at timestamptz NOT NULL DEFAULT now());
CREATE TABLE orders (id uuid PRIMARY KEY, account int NOT NULL, total double precision NOT NULL);
CREATE TABLE outbox (id uuid PRIMARY KEY, queue text NOT NULL, headers jsonb NOT NULL, body bytea NOT NULL);
`

// database is the schema of a run.
type database struct {
	pool *pgxpool.Pool
}

func openDatabase(ctx context.Context, s servers) (*database, error) {
	pool, err := s.pool(ctx, map[string]string{"search_path": schema})
	if err != nil {
		return nil, err
	}
	d := &database{pool}
	if _, err := pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+schema+" CASCADE; CREATE SCHEMA "+schema+";"+tables); err != nil {
		pool.Close()
		return nil, fmt.Errorf("create the tables: %w", err)
	}
	return d, nil
}

// close drops the schema. It works after the end of the run's context too.
func (d *database) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), settle)
	defer cancel()
	_, err := d.pool.Exec(ctx, "DROP SCHEMA "+schema+" CASCADE")
	d.pool.Close()
	if err != nil {
		return fmt.Errorf("drop the tables: %w", err)
	}
	return nil
}

// expectRows fails if the query does not return want.
func (d *database) expectRows(ctx context.Context, name string, want int, query string) error {
	return expect(ctx, name, int64(want), func() (n int64, err error) {
		err = d.pool.QueryRow(ctx, query).Scan(&n)
		return n, err
	})
}

const chargeAccount = `UPDATE accounts SET orders = orders + 1 WHERE id = $1`

// charge is the business write of a handler.
func charge(ctx context.Context, tx pgx.Tx, o order) error {
	_, err := tx.Exec(ctx, chargeAccount, o.Account)
	return err
}

// expectCharges fails unless each message was charged once.
func (d *database) expectCharges(ctx context.Context, want int) error {
	return d.expectRows(ctx, "business writes", want, `SELECT sum(orders)::bigint FROM accounts`)
}
