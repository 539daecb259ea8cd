package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

// An installer that waits logs that after progressFirst, and then each progressEvery.
const (
	progressFirst = time.Second
	progressEvery = 5 * time.Second
)

// installer is the part of a store that creates and removes tables.
type installer struct {
	*db
	ddl     ddl
	inboxes *inboxStore
}

// Install implements [tablequeue.Topology]. One process at a time installs.
func (in *installer) Install(ctx context.Context, plan transport.Plan) error {
	var err error
	if in.adopts {
		err = in.adopt(ctx, plan)
	} else {
		err = in.installing(ctx, func(tx pgx.Tx) error { return in.installIn(ctx, tx, plan) })
	}
	return failure(err, "install")
}

func (in *installer) installIn(ctx context.Context, tx pgx.Tx, plan transport.Plan) error {
	for _, step := range in.ddl.installation(plan) {
		if err := run(ctx, tx, step.text); err != nil {
			return fmt.Errorf("%s: %w", step.of, err)
		}
	}
	return nil
}

// installing calls change in a transaction: again while that fails because another process
// installs.
func (in *installer) installing(ctx context.Context, change func(pgx.Tx) error) error {
	pause, wait := backoff.Backoff{Min: 20 * time.Millisecond, Max: time.Second}, in.waiting()
	for {
		err := pgx.BeginFunc(ctx, in.writes, change)
		if code(err) != installerBusy {
			return err
		}
		wait(ctx)
		if ended := pause.Wait(ctx); ended != nil {
			return errors.Join(err, ended)
		}
	}
}

// waiting returns a function that logs that an installer waits for another one, when it is time for
// that.
func (in *installer) waiting() func(context.Context) {
	said := time.Now().Add(progressFirst - progressEvery)
	return func(ctx context.Context) {
		if time.Since(said) >= progressEvery {
			said = time.Now()
			in.log.WarnContext(ctx, "another installer is at work: waiting until it has ended", slog.String("schema", in.Schema))
		}
	}
}

// Remove implements [tablequeue.Topology].
func (in *installer) Remove(ctx context.Context, queues []string) error {
	err := in.installing(ctx, func(tx pgx.Tx) error {
		if err := run(ctx, tx, in.installLock(), lockTimeout); err != nil {
			return err
		}
		for _, q := range queues {
			if err := in.remove(ctx, tx, in.table(q)); err != nil {
				return fmt.Errorf("queue %q: %w", q, err)
			}
		}
		return nil
	})
	if err != nil {
		return failure(err, "remove queues")
	}
	for _, q := range queues {
		in.table(q).foreign.Store(false)
	}
	return nil
}

func (in *installer) remove(ctx context.Context, tx pgx.Tx, t *table) error {
	if in.inboxes.inboxState(ctx, tx, t.name) == nil {
		_, err := tx.Exec(ctx, `DROP TABLE `+t.quoted)
		if err == nil {
			_, err = tx.Exec(ctx, `DELETE FROM `+in.inboxVersions()+` WHERE name = $1`, t.name)
		}
		return err
	}
	if err := unfit(ctx, tx, t); err != nil && !errors.Is(err, transport.ErrNoQueue) && !errors.Is(err, errOlder) {
		return err
	}
	versions, subscriptions := in.versions(), in.subscribers()
	return run(
		ctx, tx, `DROP TABLE IF EXISTS `+t.quoted,
		when(regclass(versions)+` IS NOT NULL`, `DELETE FROM `+versions+` WHERE name = `+literal(t.name)),
		when(regclass(subscriptions.table)+` IS NOT NULL`, subscriptions.forget+literal(in.subscriber(t.name))),
	)
}

func run(ctx context.Context, tx pgx.Tx, texts ...string) error {
	for _, text := range texts {
		if _, err := tx.Exec(ctx, text); err != nil {
			return err
		}
	}
	return nil
}

// inspector is the part of a store that looks at tables.
type inspector struct {
	*db
	routingAsked atomic.Bool
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Inspect implements [tablequeue.Topology].
func (in *inspector) Inspect(ctx context.Context, queue string) (transport.QueueStats, error) {
	t := in.table(queue)
	st := transport.QueueStats{Name: t.name}
	const live = ` WHERE expires IS NULL OR expires > now() AT TIME ZONE 'UTC'`
	var oldest int64
	err := in.writes.QueryRow(ctx, `SELECT
	count(*) FILTER (WHERE visible_at <= now()),
	count(*) FILTER (WHERE visible_at > now() AND lease_id IS NOT NULL),
	count(*) FILTER (WHERE visible_at > now() AND lease_id IS NULL),
	coalesce(extract(epoch FROM now() - min(visible_at) FILTER (WHERE visible_at <= now())) * 1000000, 0)::bigint
FROM `+t.quoted+live).Scan(&st.Ready, &st.Unsettled, &st.Delayed, &oldest)
	st.Oldest = time.Duration(oldest) * time.Microsecond
	switch {
	case err == nil:
		t.takesRows.Store(true)
	case code(err) == undefinedColumn: // a foreign table
		err = in.writes.QueryRow(ctx, `SELECT count(*) FROM `+t.quoted+live).Scan(&st.Ready)
	}
	return st, in.failed(err, "inspect queue %q", queue)
}

// List implements [tablequeue.Topology]. Queues are the tables that have the columns of one.
func (in *inspector) List(ctx context.Context) ([]string, error) {
	rows, _ := in.writes.Query(ctx, `SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind IN ('r', 'p') AND 3 = (SELECT count(*) FROM pg_attribute a
	WHERE a.attrelid = c.oid AND a.attname IN ('visible_at', 'delivery_count', 'lease_id'))
ORDER BY 1`, in.Schema) // an error is that of rows too
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for i := range names {
		names[i] = in.shortName(in.Schema, names[i])
	}
	return names, failure(err, "list queues")
}

// schema is the tables of a database schema, by the names of their queues.
type schema struct {
	dialect.Settings
	adopts bool                 // the installer takes over tables of NServiceBus
	tables dialect.Memo[*table] // by queue
}

var _ transport.Addresser = (*schema)(nil)

// errAddress is why text that begins with a quotation mark is no queue. NServiceBus quotes the
// names of tables too.
var errAddress = errors.New(`it begins with a quotation mark, so it must be an address: "table" or "schema"."table", ` +
	`with each quotation mark within a name doubled`)

// parse returns the schema and the table of a queue. Text that does not begin with a quotation mark
// is the name of a table in the store's schema, also with dots.
func (s *schema) parse(queue string) (schema, table string, err error) {
	schema, table = s.Schema, queue
	if strings.HasPrefix(queue, `"`) {
		var ok bool
		if schema, table, ok = s.unquote(queue); !ok {
			return "", "", fmt.Errorf("postgres: queue %.300q: %w", queue, errAddress)
		}
	}
	return schema, table, errors.Join(checkName("schema", schema), checkName("queue", table))
}

// unquote reads an address.
func (s *schema) unquote(address string) (schema, table string, ok bool) {
	first, rest, ok := dialect.Unquote(address, '"', '"')
	if !ok || rest == "" {
		return s.Schema, first, ok
	}
	rest, dot := strings.CutPrefix(rest, ".")
	second, rest, ok := dialect.Unquote(rest, '"', '"')
	return first, second, dot && ok && rest == ""
}

// split is parse for a queue that Check has passed, or that the store itself has listed: versions
// before addresses took any text for the name of a table.
func (s *schema) split(queue string) (schema, table string) {
	schema, table, err := s.parse(queue)
	if err != nil {
		return s.Schema, queue
	}
	return schema, table
}

// shortName returns the name of the queue with that table.
func (s *schema) shortName(schema, table string) string {
	switch {
	case schema != s.Schema:
		return quote(schema, table)
	case strings.HasPrefix(table, `"`): // without quotation marks it would be an address
		return quote(table)
	}
	return table
}

// Address implements [transport.Addresser]: "schema"."table".
func (s *schema) Address(queue string) string {
	schema, table, err := s.parse(queue)
	if err != nil {
		return queue
	}
	return quote(schema, table)
}

// ShortName implements [transport.Addresser]: the table, with its schema where that is not the
// store's.
func (s *schema) ShortName(address string) string {
	if !strings.HasPrefix(address, `"`) {
		return address
	}
	schema, table, err := s.parse(address)
	if err != nil {
		return address
	}
	return s.shortName(schema, table)
}

// maxName is the longest identifier in bytes. PostgreSQL truncates longer ones without an error, so
// that two queues could become one.
const maxName = 63

// table is a queue's table with its statements.
type table struct {
	name      string      // the queue
	plain     string      // without a schema
	quoted    string      // with its schema, for use in statements
	foreign   atomic.Bool // a foreign table
	takesRows atomic.Bool // a caller's transaction can insert rows, as far as is known
	front     front

	filtersLogged atomic.Bool
	filtersAt     atomic.Int64 // when lookAtFilters looked, in nanoseconds since 1970
	filtered      atomic.Bool  // by that look
	largeUntil    atomic.Int64 // in nanoseconds since 1970: until then the table is taken to be large
	claim, renew, abandon, orphans, restore,
	cancel, update, sweep, purge, lock, take, byIndex string
	find, record, forget, forgetKeys string       // of an inbox
	forgotten                        atomic.Int64 // the time, in microseconds since 1970, up to which old ids were removed
}

func checkName(what, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("postgres: %s name is empty", what)
	case len(name) > maxName:
		return fmt.Errorf("postgres: %s name %.300q has %d bytes: PostgreSQL allows %d", what, name, len(name), maxName)
	case strings.ContainsRune(name, 0) || !utf8.ValidString(name):
		return fmt.Errorf("postgres: %s name %.300q is not text that PostgreSQL can store", what, name)
	}
	return nil
}

// truncated returns as much of name as fits into n bytes.
func truncated(name string, n int) string { return strings.ToValidUTF8(name[:min(n, len(name))], "") }

// quote returns the identifier of a name with any characters.
func quote(parts ...string) string { return pgx.Identifier(parts).Sanitize() }

// Check implements [tablequeue.Queues].
func (s *schema) Check(queue string) error {
	if _, known := s.tables.Load(queue); known {
		return nil
	}
	_, name, err := s.parse(queue)
	if err == nil && slices.Contains([]string{dialect.SubscriptionTable, dialect.VersionTable, dialect.RecordTable, s.Routing}, name) {
		err = fmt.Errorf("postgres: queue name %q is taken by a table of another kind", queue)
	}
	if err != nil {
		return &transport.NameError{Err: err}
	}
	return nil
}

// table returns the table of a queue, whose name Check has passed.
func (s *schema) table(queue string) *table {
	if t, ok := s.tables.Load(queue); ok {
		return t
	}
	return s.tables.Add(queue, s.newTable(queue))
}

// subscriptions is the part of a store with the table of subscriptions.
type subscriptions struct{ *db }

// subscribers is the table of subscriptions with its statements. Their parameters are @queue, the
// address by which the table names a queue, @endpoint and @types.
type subscribers struct{ table, columns, add, remove, all, forget string }

// subscribers returns the driver's own table, or one of NServiceBus's shape, which is shared with
// its endpoints and has the endpoint in its key.
func (s *schema) subscribers() subscribers {
	if s.Routing == "" {
		t := quote(s.Schema, dialect.SubscriptionTable)
		return subscribers{
			table: t, columns: ` (type text, queue text, PRIMARY KEY (type, queue))`,
			add: `INSERT INTO ` + t + ` (type, queue)
SELECT t, @queue FROM unnest(@types::text[]) AS t ON CONFLICT DO NOTHING`,
			remove: `DELETE FROM ` + t + ` WHERE queue = @queue AND type = ANY (@types::text[])`,
			all:    `SELECT type, queue FROM ` + t + ` ORDER BY 1, 2`,
			forget: `DELETE FROM ` + t + ` WHERE queue = `,
		}
	}
	t := quote(s.Schema, s.Routing)
	return subscribers{
		table: t, columns: ` (
	queueaddress varchar(200) NOT NULL,
	endpoint varchar(200) NOT NULL,
	topic varchar(200) NOT NULL,
	PRIMARY KEY (endpoint, topic)
)`,
		add: `INSERT INTO ` + t + ` (endpoint, queueaddress, topic)
SELECT DISTINCT @endpoint, @queue, t FROM unnest(@types::text[]) AS t
ON CONFLICT (endpoint, topic) DO UPDATE SET queueaddress = excluded.queueaddress`,
		remove: `DELETE FROM ` + t + ` WHERE endpoint = @endpoint AND topic = ANY (@types::text[])`,
		all:    `SELECT topic, queueaddress FROM ` + t + ` ORDER BY 1, 2`,
		forget: `DELETE FROM ` + t + ` WHERE queueaddress = `,
	}
}

// subscriber returns the name of a queue in the table of subscriptions.
func (s *schema) subscriber(queue string) string {
	if s.Routing == "" {
		return queue
	}
	return s.Address(queue)
}

// Subscribe implements [tablequeue.Subscriptions].
func (s *subscriptions) Subscribe(ctx context.Context, queue string, types []string) error {
	return noSubscriptions(s.subscription(ctx, s.subscribers().add, queue, types), "subscribe queue %q", queue)
}

// Unsubscribe implements [tablequeue.Subscriptions].
func (s *subscriptions) Unsubscribe(ctx context.Context, queue string, types []string) error {
	return noSubscriptions(s.subscription(ctx, s.subscribers().remove, queue, types), "unsubscribe queue %q", queue)
}

func (s *subscriptions) subscription(ctx context.Context, text, queue string, types []string) error {
	args := pgx.NamedArgs{"queue": s.subscriber(queue), "endpoint": cmp.Or(s.Endpoint, queue), "types": types}
	_, err := s.writes.Exec(ctx, text, args)
	return err
}

// Subscriptions implements [tablequeue.Subscriptions].
func (s *subscriptions) Subscriptions(ctx context.Context) ([]tablequeue.Subscription, error) {
	rows, _ := s.writes.Query(ctx, s.subscribers().all) // an error is that of rows too
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[tablequeue.Subscription])
	for i := range all {
		all[i].Queue = s.ShortName(all[i].Queue)
	}
	return all, noSubscriptions(err, "read subscriptions")
}

// noSubscriptions is failure, but with [tablequeue.ErrNotInstalled] where the table of
// subscriptions is missing.
func noSubscriptions(err error, doing string, args ...any) error {
	if code(err) == undefinedTable {
		err = fmt.Errorf("%w: %w", tablequeue.ErrNotInstalled, err)
	}
	return failure(err, doing, args...)
}

// theirRouting is NServiceBus's default name of its table of subscriptions.
const theirRouting = "SubscriptionRouting"

// unsharedRouting returns the expression that is true if the schema has a table of subscriptions of
// NServiceBus, which the driver does not use.
func (s *schema) unsharedRouting() string {
	return fmt.Sprintf("%t AND %s IS NOT NULL", s.Routing == "", regclass(quote(s.Schema, theirRouting)))
}

const routingAdvice = "the schema has a table SubscriptionRouting, as NServiceBus creates it, and SubscriptionRouting of the Transport is not set: " +
	"no event crosses between these endpoints and those of NServiceBus. Set it to \"SubscriptionRouting\" in every endpoint"

// warnOfRouting logs once that a table of subscriptions of NServiceBus is not used.
func (in *inspector) warnOfRouting(ctx context.Context) error {
	if in.Routing != "" || !in.routingAsked.CompareAndSwap(false, true) {
		return nil
	}
	var unshared bool
	err := in.writes.QueryRow(ctx, "SELECT "+in.unsharedRouting(), pgx.QueryExecModeExec).Scan(&unshared)
	if err != nil {
		in.routingAsked.Store(false)
		return err
	}
	if unshared {
		in.log.WarnContext(ctx, "events of NServiceBus are not subscribed to", slog.String("reason", routingAdvice))
	}
	return nil
}

// DueForSweep implements [tablequeue.Sweeper]. The first process that marks a due queue sweeps it.
func (in *inspector) DueForSweep(ctx context.Context) ([]string, error) {
	versions := in.versions()
	rows, _ := in.writes.Query(ctx, `UPDATE `+versions+` SET swept_at = now() WHERE name IN (
	SELECT name FROM `+versions+` WHERE swept_at <= now() - $1::bigint * interval '1 microsecond' FOR UPDATE SKIP LOCKED
) RETURNING name`, tablequeue.SweepPause.Microseconds()) // an error is that of rows too
	queues, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return queues, in.failed(err, "look for expired rows")
}

// SweepSome implements [tablequeue.Sweeper].
func (in *inspector) SweepSome(ctx context.Context, queue string) (int64, error) {
	tag, err := in.execute(ctx, in.table(queue).sweep)
	return tag.RowsAffected(), in.failed(err, "remove expired rows of queue %q", queue)
}

// Now implements [tablequeue.Timed].
func (d *db) Now(ctx context.Context) (time.Time, error) {
	var micros int64 // which no setting of a session formats
	err := d.writes.QueryRow(ctx, `SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint`).Scan(&micros)
	return time.UnixMicro(micros), d.failed(err, "read the clock")
}
