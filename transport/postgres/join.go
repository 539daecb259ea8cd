package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/internal/uuid"
)

// joiner is the part of a store that sends in transactions of callers.
type joiner struct {
	*db
	writer   *writer
	notifier *notifier
}

// InsertIn implements [tablequeue.Queues], with one statement in tx. The server ends a transaction
// in which a statement fails, so a savepoint is around it, except where the rows are plain ones for
// a queue that took rows before.
func (j *joiner) InsertIn(ctx context.Context, tx any, rows []tablequeue.Row) error {
	users, err := usersTxOf(tx)
	switch {
	case err != nil:
	case len(rows) == 0:
		err = j.sameDatabase(ctx, users)
	case j.sure(rows):
		units := []*tablequeue.Unit{{Rows: rows}}
		if err = j.writer.detector.Once(ctx, units, func() error { return j.insertIn(ctx, users, rows) }); err != nil {
			j.table(rows[0].Queue).takesRows.Store(false)
			err = j.missing(ctx, rows[0].Queue, err)
		}
	default:
		units := []*tablequeue.Unit{{Rows: rows}}
		err = j.writer.detector.Repeat(ctx, units, func() error { return j.insertWithin(ctx, users, rows) })
	}
	return failure(timerless(err, &tablequeue.Unit{Rows: rows}), "send in a transaction")
}

// usersTx is a transaction of a caller.
type usersTx interface {
	exec(ctx context.Context, text string) error
	// query scans each row of the answer into dest and then calls row.
	query(ctx context.Context, text string, args, dest []any, row func()) error
	// home returns the database of the connection, if it is known: nil otherwise. setHome stores
	// it.
	home() *database
	setHome(d *database)
	// source returns a FROM item with the columns of o's rows, whose parameters begin with number
	// first, and them.
	source(o *out, first int) (text string, args []any)
}

func usersTxOf(tx any) (usersTx, error) {
	switch tx := tx.(type) {
	case pgx.Tx:
		return pgxTx{tx}, nil
	case *sql.Tx:
		if tx != nil {
			return sqlTx{tx}, nil
		}
	}
	return nil, fmt.Errorf("it is a %T: want a pgx.Tx of github.com/jackc/pgx/v5 or a *sql.Tx", tx)
}

// sure reports whether rows are visible at once, without a receipt, in one queue that is known to
// take them.
func (j *joiner) sure(rows []tablequeue.Row) bool {
	t := j.table(rows[0].Queue)
	if !t.takesRows.Load() || t.foreign.Load() {
		return false
	}
	for i := range rows {
		if r := &rows[i]; r.Queue != rows[0].Queue || r.Timed() || r.Named() || r.WantSeq || r.Published {
			return false
		}
	}
	return true
}

const (
	setSavepoint     = "SAVEPOINT holdfast_send"
	undoSavepoint    = "ROLLBACK TO SAVEPOINT holdfast_send"
	releaseSavepoint = "RELEASE SAVEPOINT holdfast_send"
)

// insertWithin is insertIn, and leaves tx as it was when it fails, even where ctx has ended.
func (j *joiner) insertWithin(ctx context.Context, tx usersTx, rows []tablequeue.Row) error {
	if err := tx.exec(ctx, setSavepoint); err != nil {
		return err
	}
	err := j.insertIn(ctx, tx, rows)
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), dialect.MaxSavepoint)
	defer cancel()
	if err == nil {
		return tx.exec(own, releaseSavepoint)
	}
	if gone := tx.exec(own, undoSavepoint); gone != nil {
		return errors.Join(err, fmt.Errorf("the transaction cannot go on: %w", gone))
	}
	if code(err) == undefinedTable {
		if other := j.sameDatabase(own, tx); other != nil {
			return other
		}
	}
	return err
}

// insertIn inserts rows where tx is one of the database of the queues.
func (j *joiner) insertIn(ctx context.Context, tx usersTx, rows []tablequeue.Row) error {
	home := j.home.Load()
	err := j.insertAt(ctx, tx, rows, home)
	if !errors.Is(err, errNotInserted) {
		return err
	}
	if err := j.sameDatabase(ctx, tx); err != nil {
		return err
	}
	if now := j.home.Load(); !now.is(*home) { // the server has been restarted
		return j.insertAt(ctx, tx, rows, now)
	}
	return err
}

// insertAt inserts rows where tx is one of a database, and returns errNotInserted elsewhere.
func (j *joiner) insertAt(
	ctx context.Context, tx usersTx, rows []tablequeue.Row, where *database,
) error {
	outs := j.writer.groups([]*tablequeue.Unit{{Rows: rows}})[0].outs
	known := tx.home() == where && !j.pooled // a proxy may change the server behind a connection
	text, args := joining(tx, outs, known)
	if !known {
		args = append(args, where.name, where.started)
	}
	var (
		queues  []string
		id, seq int64
		n       int // of an out
		at      = make([]int, len(outs))
	)
	err := tx.query(ctx, text, args, []any{&id, &n, &seq}, func() {
		if r := outs[n].rows[at[n]]; r.WantSeq {
			r.Seq = seq
		}
		at[n]++
	})
	if err != nil {
		return err
	}
	if at[0] == 0 {
		return errNotInserted
	}
	if !known {
		tx.setHome(where)
	}
	for _, o := range outs {
		queues = append(queues, o.to.name)
		o.to.takesRows.Store(true)
	}
	j.notifier.watchCommit(id, queues)
	return nil
}

var errNotInserted = errors.New("the server has inserted no rows: a trigger or a rule of the queue's table prevents that")

// database identifies a database by its name and by the time at which its server started. Another
// server with a database of that name has another time.
type database struct {
	name    string
	started int64 // in microseconds, which no setting of a session formats
}

func (d database) is(other database) bool {
	return d == other
}

const (
	askDatabase = "SELECT current_database(), " + askStarted
	askStarted  = "(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint"
)

// sameDatabase returns an error where tx is not one of the database of the queues.
func (j *joiner) sameDatabase(ctx context.Context, tx usersTx) error {
	var theirs database
	if err := tx.query(ctx, askDatabase, nil, []any{&theirs.name, &theirs.started}, func() {}); err != nil {
		return err
	}
	ours := j.home.Load()
	if theirs.name != ours.name {
		return fmt.Errorf("it is one of database %q and the queues are in %q: begin it there", theirs.name, ours.name)
	}
	if theirs.is(*ours) {
		return nil
	}
	var now database
	err := j.writes.QueryRow(ctx, askDatabase, pgx.QueryExecModeSimpleProtocol).Scan(&now.name, &now.started)
	if err != nil {
		return fmt.Errorf("ask the server of the queues when it was started: %w", err)
	}
	j.home.Store(&now)
	if !theirs.is(now) {
		server := j.writes.Config().ConnConfig
		return fmt.Errorf("it is one of a database %q of another server, and the queues are in that of %s, port %d: begin it there",
			now.name, server.Host, server.Port)
	}
	return nil
}

// missing returns err, or another error where it is that the table of queue is missing in tx and it
// is there: the server has ended tx, which cannot be asked for its database any more.
func (j *joiner) missing(ctx context.Context, queue string, err error) error {
	if code(err) != undefinedTable {
		return err
	}
	t := j.table(queue)
	var exists bool
	asked := j.writes.QueryRow(ctx, "SELECT "+regclass(t.quoted)+" IS NOT NULL", pgx.QueryExecModeSimpleProtocol).Scan(&exists)
	if asked != nil || !exists {
		return err
	}
	return fmt.Errorf("it is one of another database, which has no table %s, and the queues are in %q: begin it there",
		t.quoted, j.home.Load().name)
}

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
