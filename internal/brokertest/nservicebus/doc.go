// Package nservicebus works on tables of PostgreSQL by the statements of NServiceBus's transport,
// so that tests can put its endpoints beside ours. The statements are written after the recordings
// of real endpoints. Only tests import it.
//
// An endpoint of NServiceBus receives in a transaction that deletes the row. It reads neither
// leases nor visible_at, and its tables have no such columns. It keeps a delayed message in a table
// of its own until the message is due.
package nservicebus

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DB is a *pgx.Conn, a pgx.Tx or a *pgxpool.Pool.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Address returns the address of a table as NServiceBus writes it: "schema"."table". The functions
// of this package that take an address put it into their statements as it is.
func Address(schema, table string) string { return pgx.Identifier{schema, table}.Sanitize() }

// DelayedAddress returns the address of the table in which the endpoint whose queue is table keeps
// delayed messages.
func DelayedAddress(schema, table string) string { return Address(schema, table+".Delayed") }
