package demo

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/sqlitefile"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// ledger is where the demo's handlers write what became of each order: tables
// beside the queues, in the same file. A row is written in the transaction that
// completes the message it is about, so a kill leaves both or neither. Rows
// are only ever added, without a key that could hide one too many.
type ledger struct {
	db *sql.DB
	// write adds to the ledger on behalf of the message being handled.
	write func(ctx context.Context, s txer, add func(context.Context, execer) error) error
}

const ledgerSchema = `
create table if not exists demo_run (
	input_hash text not null, input_name text not null, lines integer not null
);
create table if not exists demo_import (
	first integer primary key, lines integer not null
);
create table if not exists demo_outcome (
	line integer not null, endpoint text not null, outcome text not null,
	retries integer not null, currency text not null, amount integer not null, reason text not null
);`

// execer is a *sql.DB or a *sql.Tx.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// txer is a session that can give the transaction of its message.
type txer interface {
	Tx(ctx context.Context) (transport.Tx, error)
}

// Outcomes of handling a message until it leaves its queue.
const (
	processed = "processed"
	delayed   = "delayed" // sent to the queue again, to be handled later
	failed    = "failed"  // moved to the error queue
)

// entry is a row of demo_outcome.
type entry struct {
	line     int
	endpoint string
	outcome  string
	retries  int // at once, before this outcome
	currency string
	amount   Amount
	reason   string
}

// openLedger opens the ledger in the file at path, or in memory where path is "". It
// writes nothing yet.
func openLedger(path string) (*ledger, error) {
	if path == "" {
		return memoryLedger()
	}
	db, err := sqlitefile.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the ledger: %w", err)
	}
	return &ledger{db: db, write: onCommit}, nil
}

func memoryLedger() (*ledger, error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return nil, fmt.Errorf("open the ledger: %w", err)
	}
	db.SetMaxOpenConns(1) // each would be a memory of its own
	l := &ledger{db: db}
	l.write = l.directly
	return l, nil
}

func (l *ledger) close() error { return l.db.Close() }

// onCommit writes in the transaction that completes the message.
func onCommit(ctx context.Context, s txer, add func(context.Context, execer) error) error {
	return sqlite.OnCommit(ctx, s, func(ctx context.Context, tx *sql.Tx) error { return add(ctx, tx) })
}

// directly writes without waiting for the message: enough where nothing outlives
// the process anyway.
func (l *ledger) directly(ctx context.Context, _ txer, add func(context.Context, execer) error) error {
	return add(ctx, l.db)
}

// record writes an entry together with the completion of the message that s handles.
func (l *ledger) record(ctx context.Context, s txer, e entry) error {
	return l.write(ctx, s, func(ctx context.Context, tx execer) error {
		_, err := tx.ExecContext(ctx, `insert into demo_outcome values (?, ?, ?, ?, ?, ?, ?)`,
			e.line, e.endpoint, e.outcome, e.retries, e.currency, int64(e.amount), e.reason)
		return err
	})
}

// recordImport writes that the lines from the first-th on have been sent. It fails the
// message when that is in the ledger already.
func (l *ledger) recordImport(ctx context.Context, s txer, first, lines int) error {
	return l.write(ctx, s, func(ctx context.Context, tx execer) error {
		_, err := tx.ExecContext(ctx, `insert into demo_import values (?, ?)`, first, lines)
		return err
	})
}

// imported tells whether the lines from the first-th on have been sent.
func (l *ledger) imported(ctx context.Context, first int) (bool, error) {
	var n int
	err := l.db.QueryRowContext(ctx, `select count(*) from demo_import where first = ?`, first).Scan(&n)
	return n > 0, err
}

// run is what the ledger is about.
type run struct {
	hash, name string
	lines      int
}

// errNothing says that the demo has not been run here.
var errNothing = errors.New("the demo has not been run here yet")

// lastRun reads what the ledger is about: errNothing where there is none.
func (l *ledger) lastRun(ctx context.Context) (run, error) {
	var tables int
	err := l.db.QueryRowContext(ctx, `select count(*) from sqlite_master where name = 'demo_run'`).Scan(&tables)
	if err == nil && tables == 0 {
		err = errNothing
	}
	if err != nil {
		return run{}, err
	}
	var r run
	err = l.db.QueryRowContext(ctx, `select input_hash, input_name, lines from demo_run`).Scan(&r.hash, &r.name, &r.lines)
	if errors.Is(err, sql.ErrNoRows) {
		err = errNothing
	}
	return r, err
}

// begin makes the ledger be about in, unless it is about something already.
func (l *ledger) begin(ctx context.Context, in *Input) error {
	_, err := l.db.ExecContext(ctx, ledgerSchema)
	if err == nil {
		_, err = l.db.ExecContext(ctx, `insert into demo_run select ?, ?, ? where not exists (select 1 from demo_run)`,
			in.Hash, in.Name, len(in.Lines))
	}
	if err != nil {
		return fmt.Errorf("begin the ledger: %w", err)
	}
	return nil
}
