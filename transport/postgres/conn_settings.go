package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// A proxy that pools transactions may send the next statement to another session. Each batch then
// sets the engine's planner options for itself, and statements are not prepared.

// options are settings of a session, each with its name and its value.
type options [][2]string

// planner are the settings that keep the planner from reading whole tables, whatever the
// statistics: a queue that was empty when its plan was made may have a million rows a moment later.
// The statements themselves decide on the index and on the order of joins (byKey).
var planner = options{
	{"plan_cache_mode", "force_generic_plan"},
	{"enable_seqscan", "off"},
	{"enable_bitmapscan", "off"},
	{"enable_mergejoin", "off"},
	{"jit", "off"},
}

// The settings for each purpose.
var (
	// lazily is for statements whose commit does not wait for the disk. When a crash of the server
	// undoes a claim, its rows are delivered again, and settling the lost deliveries fails.
	lazily = planner.with("synchronous_commit", "off")
	// claiming has a bound on waiting for table locks. Claims skip locked rows.
	claiming = lazily.with("lock_timeout", claimLockWait)
	// renewing has a short one: a row that another session has locked must not keep the leases of
	// others from being renewed.
	renewing = lazily.with("lock_timeout", dialect.LockWait)
	// writing bounds the wait for locks: a batch has messages of many senders for many tables, of
	// which one may be locked.
	writing = planner.with("lock_timeout", dialect.LockWait)
)

func (o options) with(name, value string) options {
	return append(slices.Clip(o), [2]string{name, value})
}

// textual are the settings of a role that change the text of values. Connections through a proxy
// read values as text.
var textual = options{{"bytea_output", "hex"}, {"datestyle", "ISO"}}

// statement returns the statement that makes the settings for the rest of a batch.
func (o options) statement() string {
	var calls []string
	for _, setting := range slices.Concat(o, textual) {
		calls = append(calls, fmt.Sprintf("set_config('%s', '%s', true)", setting[0], setting[1]))
	}
	return "SELECT " + strings.Join(calls, ", ")
}

// pool is connections for one purpose.
type pool struct {
	*pgxpool.Pool
	first string // the statement that begins a batch, where sessions do not have the settings; else ""
}

// batch returns a batch for statements of the engine on p.
func (s *store) batch(p pool) *pgx.Batch {
	var b pgx.Batch
	if p.first != "" {
		b.Queue(p.first)
	}
	return &b
}

// args returns parameters that the connections can encode.
func (s *store) args(args []any) []any {
	if s.pooled {
		return plain(args)
	}
	return args
}

// execute executes a durable statement, in a batch with its settings where that is needed.
func (s *store) execute(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	rows, err := s.query(ctx, s.writes, sql, args...)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	rows.Close()
	return rows.CommandTag(), rows.Err()
}

// query executes a statement on a connection of p, in a batch with its settings where that is
// needed.
func (s *store) query(ctx context.Context, p pool, sql string, args ...any) (pgx.Rows, error) {
	if !s.pooled {
		return p.Query(ctx, sql, args...)
	}
	b := s.batch(p)
	b.Queue(sql, plain(args)...)
	results := p.SendBatch(ctx, b)
	_, err := results.Exec()
	var rows pgx.Rows
	if err == nil {
		rows, err = results.Query()
	}
	if err != nil {
		return nil, errors.Join(err, results.Close())
	}
	return &batchRows{Rows: rows, results: results}, nil
}
