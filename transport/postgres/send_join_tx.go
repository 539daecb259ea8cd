package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/uuid"
)

// joining returns the statement that inserts the rows of outs in a caller's transaction, and its
// parameters. Unless the transaction is known to be one of the right database, two more follow,
// those of the database that it must be in: in another one the statement inserts nothing. For each
// row it returns the transaction, the index of the row's out, and seq where that is wanted, in the
// order of the rows. To return seq takes the right to read the table.
func joining(tx usersTx, outs []*out, known bool) (text string, args []any) {
	if o := outs[0]; known && len(outs) == 1 && o.lone() && !o.seqs {
		return "INSERT INTO " + o.to.quoted + " (headers, body) VALUES ($1, $2) RETURNING txid_current(), 0, 0", o.values()
	}
	inserts, seqs := make([]string, len(outs)), make([]string, len(outs))
	for i, o := range outs {
		columns, values := o.columns()
		from, params := tx.source(o, len(args)+1)
		inserts[i] = "INSERT INTO " + o.to.quoted + " (" + columns + ") SELECT " + values + " FROM " + from
		if seqs[i] = "0"; o.seqs {
			seqs[i] = "seq"
		}
		args = append(args, params...)
	}
	where := ""
	if !known {
		where = fmt.Sprintf(" WHERE current_database()::text = $%d::text AND "+askStarted+" = $%d::bigint",
			len(args)+1, len(args)+2)
	}
	for i, o := range outs {
		inserts[i] += where + o.replacing() + " RETURNING "
	}
	if len(outs) == 1 {
		return inserts[0] + "txid_current(), 0, " + seqs[0], args
	}
	var with, union []string
	for i, insert := range inserts {
		with = append(with, fmt.Sprintf("out%d AS (%s%s AS seq)", i, insert, seqs[i]))
		union = append(union, fmt.Sprintf("SELECT %d AS n, seq FROM out%d", i, i))
	}
	return "WITH " + strings.Join(with, ", ") + " SELECT txid_current(), n, seq FROM (" +
		strings.Join(union, " UNION ALL ") + ") AS inserted ORDER BY n, seq", args
}

// sourceNames are the names of the parameters of a row.
func (o *out) sourceNames() string {
	switch {
	case o.named:
		return "headers, body, at, after, ttl, name"
	case o.timed:
		return "headers, body, at, after, ttl"
	}
	return "headers, body"
}

// sourceTypes are the types of the parameters of a row.
func (o *out) sourceTypes() []string {
	types := []string{"text", "bytea", "bigint", "bigint", "bigint", "text"}
	switch {
	case o.named:
		return types
	case o.timed:
		return types[:5]
	}
	return types[:2]
}

// list returns o's rows as a list of values, which every driver can encode.
func (o *out) list(first int) (text string, args []any) {
	kinds := o.sourceTypes()
	var b strings.Builder
	b.WriteString("(VALUES ")
	for i, r := range o.rows {
		if i > 0 {
			b.WriteString(", ")
		}
		values := []any{string(textOf(r.Headers)), bytesOf(r.Body)}
		if o.timed {
			at, after, ttl := timesOf(r)
			values = append(values, int64(at), int64(after), int64(ttl))
		}
		if o.named {
			values = append(values, uuid.Text(r.Name))
		}
		for j := range values {
			fmt.Fprintf(&b, "%c$%d::%s", "(,,,,,"[j], first+len(args)+j, kinds[j])
		}
		b.WriteString(")")
		args = append(args, values...)
	}
	b.WriteString(") AS r(" + o.sourceNames() + ")")
	return b.String(), args
}

// pgxTx is a transaction of pgx.
type pgxTx struct{ pgx.Tx }

func (tx pgxTx) exec(ctx context.Context, text string) error {
	_, err := tx.Exec(ctx, text)
	return err
}

func (tx pgxTx) query(ctx context.Context, text string, args, dest []any, row func()) error {
	rows, _ := tx.Query(ctx, text, args...) // an error is that of rows too
	_, err := pgx.ForEachRow(rows, dest, func() error {
		row()
		return nil
	})
	return err
}

// homeKey is the key of a connection's database in its custom data.
const homeKey = "holdfast.database"

func (tx pgxTx) home() *database {
	conn := tx.Conn()
	if conn == nil { // of a caller's own type
		return nil
	}
	d, _ := conn.PgConn().CustomData()[homeKey].(*database)
	return d
}

func (tx pgxTx) setHome(d *database) {
	if conn := tx.Conn(); conn != nil {
		conn.PgConn().CustomData()[homeKey] = d
	}
}

// source has arrays for several rows, so that their number does not make another statement, which
// pgx prepares.
func (pgxTx) source(o *out, first int) (text string, args []any) {
	if len(o.rows) == 1 {
		return o.list(first)
	}
	args = plain(o.arrays())
	kinds := o.sourceTypes()
	params := make([]string, len(args))
	for i := range args {
		params[i] = fmt.Sprintf("$%d::%s[]", first+i, kinds[i])
	}
	return "unnest(" + strings.Join(params, ", ") + ") AS r(" + o.sourceNames() + ")", args
}

// sqlTx is a transaction of package database/sql, with any driver for PostgreSQL.
type sqlTx struct{ *sql.Tx }

func (tx sqlTx) exec(ctx context.Context, text string) error {
	_, err := tx.ExecContext(ctx, text)
	return ofPostgres(ctx, err)
}

func (tx sqlTx) query(ctx context.Context, text string, args, dest []any, row func()) error {
	rows, err := tx.QueryContext(ctx, text, args...)
	if err != nil {
		return ofPostgres(ctx, err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := rows.Scan(dest...); err != nil {
			return err
		}
		row()
	}
	return ofPostgres(ctx, errors.Join(rows.Err(), rows.Close()))
}

// home returns nil: a *sql.Tx does not show its connection.
func (sqlTx) home() *database { return nil }

func (sqlTx) setHome(*database) {}

func (sqlTx) source(o *out, first int) (text string, args []any) { return o.list(first) }

// ofPostgres adds to an error without an SQLSTATE that the transaction may be one of another
// database system.
func ofPostgres(ctx context.Context, err error) error {
	switch {
	case err == nil, code(err) != "", ctx.Err() != nil,
		errors.Is(err, sql.ErrTxDone), errors.Is(err, sql.ErrConnDone), errors.Is(err, driver.ErrBadConn):
		return err
	}
	return fmt.Errorf("the *sql.Tx has to be one of PostgreSQL: its driver reports an error without an SQLSTATE: %w", err)
}
