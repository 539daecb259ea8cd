package demo

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"strconv"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/sqlitefile"
	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// ledger holds the work of the handlers: tables beside the queues, in the same file. A row is
// committed with the completion of its message, so a kill leaves both or neither. No key hides a
// row too many.
type ledger struct {
	db   *sql.DB
	path string // "" for memory
}

// beginLedger keeps the tables and the row of an earlier run.
const beginLedger = `
create table if not exists demo_run (
	input_hash text not null, input_name text not null, lines integer not null, imported integer not null
);
create table if not exists demo_outcome (
	line integer not null, endpoint text not null, outcome text not null,
	retries integer not null, -- the immediate ones before the outcome
	currency text not null, amount integer not null, reason text not null
);
insert into demo_run select ?, ?, ?, 0 where not exists (select 1 from demo_run);`

// Values of demo_outcome.outcome: delayed is for a delayed retry, failed is moved to the error
// queue.
const processed, delayed, failed = "processed", "delayed", "failed"

// key identifies an order at an endpoint.
type key struct {
	line     int
	endpoint string
}

// entry is a row of demo_outcome.
type entry struct {
	key
	outcome, currency, reason string
	amount                    Amount
}

// openLedger opens the ledger in the file at path, or in memory when path is "". It writes nothing.
func openLedger(path string) (*ledger, error) {
	db, err := sqlitefile.Open(cmp.Or(path, ":memory:"))
	if err == nil && path == "" {
		db.SetMaxOpenConns(1) // each connection has a memory of its own
	}
	return &ledger{db, path}, err
}

// begin creates the tables of a new ledger for in. It fails for a ledger of another input.
func (l *ledger) begin(ctx context.Context, in *Input) error {
	if _, err := l.db.ExecContext(ctx, beginLedger, in.Hash, in.Name, len(in.Lines)); err != nil {
		return fmt.Errorf("begin the ledger: %w", err)
	}
	return l.match(ctx, in)
}

// match fails with errNothing for a file without a ledger, and for a ledger of another input; a nil
// in is any.
func (l *ledger) match(ctx context.Context, in *Input) error {
	var hash, name string
	var lines int
	row := l.db.QueryRowContext(ctx, `select input_hash, input_name, lines from demo_run`)
	if err := row.Scan(&hash, &name, &lines); err != nil {
		return fmt.Errorf("%w: %w", errNothing, err)
	}
	if in != nil && in.Hash != hash {
		return fmt.Errorf("%s is about other orders (%d lines of %s): start over with --reset, "+
			"or use another file by --transport", l.path, lines, name)
	}
	return nil
}

// record writes an entry in the transaction that completes the message of s. In memory it writes at
// once.
func (l *ledger) record(
	ctx context.Context, s *endpoint.Session, endpoint, outcome string, o OrderPlaced, reason string,
) error {
	const insert = `insert into demo_outcome values (?, ?, ?, ?, ?, ?, ?)`
	line, _ := strconv.Atoi(s.Header(lineHeader)) // 0 for a foreign message
	row := []any{line, endpoint, outcome, s.Attempt().N - 1, o.Currency, int64(o.Amount), reason}
	if l.path == "" {
		_, err := l.db.ExecContext(ctx, insert, row...)
		return err
	}
	return sqlite.OnCommit(ctx, s, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, insert, row...)
		return err
	})
}

// each calls scan for every row of a query.
func (l *ledger) each(ctx context.Context, query string, scan func(*sql.Rows) error) error {
	rows, err := l.db.QueryContext(ctx, query)
	if err != nil {
		return fmt.Errorf("read the ledger: %w", err)
	}
	defer rows.Close()
	for err == nil && rows.Next() {
		err = scan(rows)
	}
	return cmp.Or(err, rows.Err())
}

// entries returns all entries but delayed retries.
func (l *ledger) entries(ctx context.Context) (map[key][]entry, error) {
	all := map[key][]entry{}
	return all, l.each(ctx, `select line, endpoint, outcome, currency, amount, reason from demo_outcome
		where outcome <> 'delayed'`, func(rows *sql.Rows) error {
		var e entry
		err := rows.Scan(&e.line, &e.endpoint, &e.outcome, &e.currency, &e.amount, &e.reason)
		all[e.key] = append(all[e.key], e)
		return err
	})
}

// count is the work of one endpoint: messages processed and moved to the error queue, and retries.
type count struct{ processed, failed, delayed, retried int }

func (c count) settled() int { return c.processed + c.failed }

func (c count) plus(d count) count {
	return count{c.processed + d.processed, c.failed + d.failed, c.delayed + d.delayed, c.retried + d.retried}
}

// counts are the work of all endpoints, in every run of the demo on this file.
type counts struct {
	lines, imported int // of the input, and those that were sent to sales
	by              map[string]count
	total           count
}

// counts reads the ledger, also when ctx has ended.
func (l *ledger) counts(ctx context.Context) (counts, error) {
	all := counts{by: map[string]count{}}
	return all, l.each(context.WithoutCancel(ctx), `
		select lines, imported, coalesce(endpoint, ''), count(*) filter (where outcome = 'processed'),
			count(*) filter (where outcome = 'failed'), count(*) filter (where outcome = 'delayed'), coalesce(sum(retries), 0)
		from demo_run left join demo_outcome group by endpoint`, func(rows *sql.Rows) error {
		var name string // "" before the first outcome
		var c count
		err := rows.Scan(&all.lines, &all.imported, &name, &c.processed, &c.failed, &c.delayed, &c.retried)
		all.by[name], all.total = c, all.total.plus(c)
		return err
	})
}

// finished returns the number of orders that are finished everywhere, if the same orders are missing
// at billing and at shipping.
func (c counts) finished() int {
	return c.by[sales].failed + min(c.by[billing].settled(), c.by[shipping].settled())
}

// done reports whether every order is finished.
func (c counts) done() bool { return c.finished() >= c.lines }

// String fits into a terminal's line together with a short bar.
func (c counts) String() string {
	return fmt.Sprintf("sales %d billing %d shipping %d retried %d delayed %d error %d", c.by[sales].settled(),
		c.by[billing].settled(), c.by[shipping].settled(), c.total.retried, c.total.delayed, c.total.failed)
}
