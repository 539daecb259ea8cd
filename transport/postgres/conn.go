package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ tablequeue.Store    = (*store)(nil)
	_ tablequeue.Waker    = (*store)(nil)
	_ tablequeue.Sweeper  = (*store)(nil)
	_ tablequeue.Orphaner = (*store)(nil)
	_ tablequeue.Examiner = (*store)(nil)
	_ tablequeue.Warner   = (*store)(nil)
	_ tablequeue.Locks    = (*store)(nil)
	_ tablequeue.Foreign  = (*store)(nil)

	_ tablequeue.DelayedTables = (*store)(nil)
)

// store is the PostgreSQL dialect of the lease engine. Its parts share the database.
type store struct {
	*db
	*claimer
	*writer
	*notifier
	*joiner
	*transactions
	*inspector
	*installer
	*subscriptions
	*browser
	*inboxStore
	*recordStore
	*handingOver

	release func() error // returns the connections
}

// settings are the settings of a store.
type settings struct {
	dialect.Settings
	address address
	adopts  bool // the installer takes over tables of NServiceBus
	log     *slog.Logger
	shared  *transport.Shared // has the connections except those of handlers; nil: they are not shared
}

// newStore returns a store without connections, which can only compose statements.
func newStore(set settings) *store {
	d := &db{schema: &schema{Settings: set.Settings, adopts: set.adopts}, address: set.address, log: set.log}
	w := &writer{db: d}
	w.detector = dialect.Detector{Suspect: refusedByForeign, Detect: w.detectForeign, Foreign: d.Foreign}
	n := &notifier{db: d, self: fmt.Sprintf("%016x", rand.Uint64())}
	inboxes := &inboxStore{d}
	records := &recordStore{db: d, inboxes: inboxes, statements: newRecordStatements(d.recordTable())}
	inspects := &inspector{db: d}
	s := &store{
		db: d, claimer: &claimer{db: d}, writer: w, notifier: n, joiner: &joiner{d, w, n},
		transactions: &transactions{db: d, writer: w, records: records, inspector: inspects, open: map[*handlerTx]struct{}{}},
		inspector:    inspects, installer: &installer{d, ddl{d.schema}, inboxes}, subscriptions: &subscriptions{d},
		browser: &browser{d, w}, inboxStore: inboxes, recordStore: records, handingOver: &handingOver{d},
	}
	s.clock.Log, s.clock.Restore, s.clock.MaxRestored = set.log, s.restore, maxRestored
	return s
}

// openStore connects, or shares the connections of other stores with the same address.
func openStore(ctx context.Context, cfg, listening *pgxpool.Config, set settings) (*store, error) {
	s := newStore(set)
	if ctx.Err() != nil { // which shared connections would not notice
		return nil, fmt.Errorf("postgres: connect: %w", context.Cause(ctx))
	}
	cfg = cfg.Copy()
	if set.address.pooled {
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	name := "holdfast " + set.Endpoint
	common := name
	if set.shared != nil {
		common = "holdfast shared"
	}
	var err error
	s.connections, s.release, err = transport.Share(set.shared, set.address, func() (*connections, error) {
		return openConnections(ctx, cfg, listening, set, common)
	})
	if err != nil {
		return nil, err
	}
	if err := s.transactions.connect(ctx, cfg, name); err != nil {
		return nil, errors.Join(err, s.release())
	}
	return s, nil
}

// Close implements [tablequeue.Store]. It does not wait for a server that does not answer.
func (s *store) Close() error {
	s.abort()
	s.commits.close()
	s.disconnect()
	return s.release()
}

// greeting is what the server says about the database and the session of a new connection. Its
// statements name the schema of each function: a search_path may put functions of others before
// those of the server.
type greeting struct {
	at       database
	level    string // the isolation level at which transactions begin
	encoding string
	path     string // the schemas in which names are looked for, as the text of an array
	role     string
	most     int // the connections that the role may have; -1: not limited
}

const askGreeting = `SELECT pg_catalog.current_database(), ` + askStarted + `, pg_catalog.current_setting('default_transaction_isolation'),
	pg_catalog.current_setting('server_encoding'), pg_catalog.current_schemas(true)::pg_catalog.text, current_user::pg_catalog.text,
	coalesce((SELECT CASE WHEN rolsuper THEN -1 ELSE rolconnlimit END FROM pg_catalog.pg_roles WHERE rolname OPERATOR(pg_catalog.=) current_user), -1)`

// askShadows finds a function or an operator that the search_path puts before one of the server's
// with the same parameters. Members of extensions do not count: pgcrypto has a gen_random_uuid that
// does the same, and orafce is used with such a search_path.
const askShadows = `WITH before AS (
	SELECT n.oid, n.nspname FROM pg_catalog.pg_namespace AS n
	WHERE pg_catalog.left(n.nspname::pg_catalog.text, 7) OPERATOR(pg_catalog.<>) 'pg_temp' AND pg_catalog.array_position(pg_catalog.current_schemas(true), n.nspname)
		OPERATOR(pg_catalog.<) pg_catalog.array_position(pg_catalog.current_schemas(true), 'pg_catalog'::pg_catalog.name)
), named AS (
	SELECT 'function' AS kind, 'pg_catalog.pg_proc'::pg_catalog.regclass AS class, oid, pronamespace AS home, proname AS name,
		proargtypes::pg_catalog.text AS types FROM pg_catalog.pg_proc
	UNION ALL SELECT 'operator', 'pg_catalog.pg_operator'::pg_catalog.regclass, oid, oprnamespace, oprname, pg_catalog.concat(oprleft, ' ', oprright) FROM pg_catalog.pg_operator
)
SELECT pg_catalog.concat(theirs.kind, ' ', before.nspname, '.', theirs.name) FROM before
JOIN named AS theirs ON theirs.home OPERATOR(pg_catalog.=) before.oid
JOIN named AS own ON own.home OPERATOR(pg_catalog.=) 'pg_catalog'::pg_catalog.regnamespace AND own.kind OPERATOR(pg_catalog.=) theirs.kind
	AND own.name OPERATOR(pg_catalog.=) theirs.name AND own.types OPERATOR(pg_catalog.=) theirs.types
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_depend AS d WHERE d.classid OPERATOR(pg_catalog.=) theirs.class
	AND d.objid OPERATOR(pg_catalog.=) theirs.oid AND d.deptype OPERATOR(pg_catalog.=) 'e')
ORDER BY 1 LIMIT 1`

// leastConnections is the number of connections with which an endpoint receives: for claims,
// renewals, writes, notifications and one handler's transaction.
const leastConnections = 5

// greet asks for the greeting, in one round trip, and refuses a database or a session that cannot
// be used.
func (c *connections) greet(ctx context.Context, log *slog.Logger) (g greeting, err error) {
	err = c.writes.QueryRow(ctx, askGreeting, pgx.QueryExecModeSimpleProtocol).
		Scan(&g.at.name, &g.at.started, &g.level, &g.encoding, &g.path, &g.role, &g.most)
	if err != nil {
		return g, err
	}
	if g.encoding != "UTF8" {
		return g, fmt.Errorf("database %q has the encoding %s, which cannot store every message: want UTF8, "+
			"as by CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0", g.at.name, g.encoding)
	}
	if g.most >= 0 && g.most < leastConnections {
		log.WarnContext(ctx, "the role may have fewer connections than an endpoint that receives needs: raise its CONNECTION LIMIT",
			slog.String("role", g.role), slog.Int("limit", g.most), slog.Int("least", leastConnections))
	}
	if !strings.HasPrefix(g.path, "{pg_catalog") {
		if err := c.unshadowed(ctx); err != nil {
			return g, err
		}
	}
	if c.pooled {
		err = c.transacts(ctx)
	}
	return g, err
}

// unshadowed fails if the search_path replaces a function or an operator of the server.
func (c *connections) unshadowed(ctx context.Context) error {
	rows, err := c.writes.Query(ctx, askShadows, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		return err
	}
	shadows, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err == nil && len(shadows) > 0 {
		err = fmt.Errorf("the search_path of the session replaces functions of the server, such as by the %s: "+
			"put pg_catalog first, or leave it out", shadows[0])
	}
	return err
}

// transacts fails behind a proxy that pools statements, which refuses transactions.
func (c *connections) transacts(ctx context.Context) error {
	tx, err := c.writes.Begin(ctx)
	if err == nil {
		err = tx.Rollback(ctx)
	}
	if err != nil && strings.Contains(err.Error(), "statement pooling") {
		return fmt.Errorf("the proxy pools statements, and messages need transactions: set pool_mode = transaction in pgbouncer (%w)", err)
	}
	return err
}

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

// db is the database of a store: its tables, and the connections. The parts of the store share it.
type db struct {
	*schema
	*connections
	address  address
	log      *slog.Logger
	handlers *pgxpool.Pool // for transactions of handlers
	standby  standby       // what their sessions say about the server
}

// batch returns a batch for statements of the engine on p.
func (d *db) batch(p pool) *pgx.Batch {
	var b pgx.Batch
	if p.first != "" {
		b.Queue(p.first)
	}
	return &b
}

// args returns parameters that the connections can encode.
func (d *db) args(args []any) []any {
	if d.pooled {
		return plain(args)
	}
	return args
}

// execute executes a durable statement, in a batch with its settings where that is needed.
func (d *db) execute(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	rows, err := d.query(ctx, d.writes, sql, args...)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	rows.Close()
	return rows.CommandTag(), rows.Err()
}

// query executes a statement on a connection of p, in a batch with its settings where that is
// needed.
func (d *db) query(ctx context.Context, p pool, sql string, args ...any) (pgx.Rows, error) {
	if !d.pooled {
		return p.Query(ctx, sql, args...)
	}
	b := d.batch(p)
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
