package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/backoff"
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

// Versions of queue tables.
const (
	// tableVersion is the version of the tables that this package creates.
	tableVersion = 3
	// textVersion is the version before, whose id is text. This package works on such a table, and
	// programs of that version do at the same time. It is changed on demand only.
	textVersion = 2
	// adoptingVersion is that of a table that is being taken over from NServiceBus.
	adoptingVersion = 0
)

// storage are the storage parameters of a queue's table, whose rows are updated and deleted soon
// after their insert. Pages have room for an update, vacuum removes dead rows early and without
// pauses, and it does not lock the table to truncate the file, which the next backlog needs again.
const storage = `fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.1,
	autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off,
	toast.autovacuum_vacuum_scale_factor = 0.01, toast.autovacuum_vacuum_cost_delay = 0, toast.vacuum_truncate = off`

// ddl composes the statements of the installer.
type ddl struct{ *schema }

// tableDDL returns the statement that creates a queue's table. Its first five columns are those of
// NServiceBus's queue tables, with the time in UTC, so that its endpoints can send to it and read
// it; the others have defaults.
func tableDDL(t *table) string {
	return `CREATE TABLE ` + t.quoted + ` (
	seq bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
	id uuid NOT NULL DEFAULT gen_random_uuid(),
	expires timestamp,
	headers text NOT NULL,
	body bytea,
	visible_at timestamptz NOT NULL DEFAULT statement_timestamp(),
	delivery_count integer NOT NULL DEFAULT 0,
	lease_id bigint,
	lease_owner text,
	last_error text
) WITH (` + storage + `)`
}

// indexes returns the statements that create the index for claims and the index for expired rows.
func indexes(t *table) []string {
	return []string{
		`CREATE INDEX IF NOT EXISTS ` + indexName(t, "_visible_at_seq_idx") + ` ON ` + t.quoted + ` (visible_at, seq)`,
		`CREATE INDEX IF NOT EXISTS ` + indexName(t, "_expires_idx") + ` ON ` + t.quoted + ` (expires) WHERE expires IS NOT NULL`,
	}
}

// uniqueID returns the statement that creates the unique index on the ids of a queue's rows.
// NServiceBus deletes by id, so queues that it may read have the index: shared ones, and those of
// adopted tables.
func uniqueID(t *table) string {
	return `CREATE UNIQUE INDEX IF NOT EXISTS ` + indexName(t, "_id_key") + ` ON ` + t.quoted + ` (id)`
}

// installTimers returns the statement that adds to a queue's table what named rows need. It only
// adds, and the names of other rows are null, so that programs of the version before keep working
// on the table.
func (d *ddl) installTimers(t *table) string {
	return when(`NOT `+d.hasTimers(t)+` AND EXISTS (
	SELECT FROM pg_attribute WHERE attrelid = `+regclass(t.quoted)+` AND attname = 'lease_id' AND NOT attisdropped)`,
		`ALTER TABLE `+t.quoted+` ADD COLUMN IF NOT EXISTS name uuid;
CREATE UNIQUE INDEX `+indexName(t, nameIndex)+` ON `+t.quoted+` (name) WHERE name IS NOT NULL`)
}

// migration returns the statements that migrate a table of version 1 to textVersion. Repeated they
// change nothing. They only add, so that programs of the first version keep working on the table
// until they are replaced.
func migration(t *table) []string {
	return append([]string{
		do(`IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = ` + literal(t.quoted) + `::regclass AND attname = 'expires_at' AND NOT attisdropped) THEN
	ALTER TABLE ` + t.quoted + ` ADD COLUMN IF NOT EXISTS expires timestamp;
	UPDATE ` + t.quoted + ` SET expires = expires_at AT TIME ZONE 'UTC' WHERE expires_at IS NOT NULL AND expires IS NULL;
	ALTER TABLE ` + t.quoted + ` SET (` + storage + `);
END IF`),
	}, indexes(t)...)
}

// lockTimeout lets an installer fail instead of blocking all receivers while it waits for a lock,
// for example of a dump.
const lockTimeout = `SET LOCAL lock_timeout = '10s'`

// installerBusy is the SQLSTATE with which an installer fails while another process installs.
const installerBusy = "HF001"

// step is a statement of the installer, and what it is for.
type step struct{ of, text string }

// installation returns the statements that create the missing parts of plan and migrate older ones.
// Where there is nothing to do they need no right to create.
func (d *ddl) installation(plan transport.Plan) []step {
	schema, versions, subs := quote(d.Schema), d.versions(), d.subscribers()
	steps := []step{
		{"strings", `SET LOCAL standard_conforming_strings = on`},
		{"wait for another installer", d.installLock()},
		{"lock timeout", lockTimeout},
		{fmt.Sprintf("schema %q", d.Schema), when(`to_regnamespace(`+literal(schema)+`) IS NULL`, `CREATE SCHEMA `+schema)},
		{"subscriptions", when(regclass(subs.table)+` IS NULL`, `CREATE TABLE `+subs.table+subs.columns)},
		{"versions", when(regclass(versions)+` IS NULL`, `CREATE TABLE `+versions+` (
	name text PRIMARY KEY,
	version integer NOT NULL,
	swept_at timestamptz NOT NULL DEFAULT now()
)`)},
	}
	for _, q := range plan.Queues {
		steps = append(steps, step{fmt.Sprintf("queue %q", q.Name), d.installQueue(d.table(q.Name), q.Shared)})
		if q.Timers {
			steps = append(steps, step{fmt.Sprintf("timers of queue %q", q.Name), d.installTimers(d.table(q.Name))})
		}
	}
	for _, inbox := range plan.Inboxes {
		steps = append(steps, d.installInbox(inbox)...)
	}
	if len(plan.Records) > 0 {
		steps = append(steps, d.installRecords()...)
	}
	return steps
}

// installQueue returns the statement that creates a queue's table, or migrates one of the first
// version. A foreign table stays as it is, and so does one whose id is text.
func (d *ddl) installQueue(t *table, shared bool) string {
	create := append([]string{tableDDL(t), d.versioned(t, tableVersion)}, indexes(t)...)
	if shared {
		create = append(create, uniqueID(t))
	}
	migrate := append(migration(t), d.versioned(t, textVersion))
	incomplete := `RAISE EXCEPTION '%', ` + literal(errAdopting.Error())
	if d.adopts { // which completes it
		incomplete = `NULL`
	}
	return do(`IF ` + regclass(t.quoted) + ` IS NULL THEN
` + strings.Join(create, ";\n") + `;
ELSIF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = ` + regclass(t.quoted) + ` AND attname = 'lease_id' AND NOT attisdropped) THEN
	RAISE NOTICE 'queue % is a table of another kind, such as one of NServiceBus: it is left as it is', ` + literal(t.name) + `;
ELSE
	CASE ` + d.versionOf(t) + `
WHEN 1 THEN
` + strings.Join(migrate, ";\n") + `;
WHEN ` + fmt.Sprintf("%d, %d", textVersion, tableVersion) + ` THEN NULL;
WHEN ` + strconv.Itoa(adoptingVersion) + ` THEN ` + incomplete + `;
	ELSE RAISE EXCEPTION 'its table is of version %, this program knows those up to ` + strconv.Itoa(tableVersion) + `: update this program', ` + d.versionOf(t) + `;
	END CASE;
END IF`)
}

// Script returns the installer's statements for plan as text for psql, for databases in which
// endpoints may not create tables and changes are reviewed. It needs no connection. Executed again,
// or on tables of an earlier version, the text creates the missing parts and keeps all messages.
// With Adopt it is no single transaction: psql executes the statements one by one.
func (p *Transport) Script(plan transport.Plan) (string, error) {
	set, err := p.settings(transport.Env{})
	if err != nil {
		return "", err
	}
	s := newStore(set)
	plan.Queues = slices.Clone(plan.Queues)
	for i := range plan.Queues {
		q := &plan.Queues[i]
		if err := s.Check(q.Name); err != nil {
			return "", err
		}
		q.Name = s.ShortName(q.Name)
	}
	for _, inbox := range plan.Inboxes {
		if err := s.Check(inbox); err != nil {
			return "", err
		}
	}
	if s.adopts {
		return s.ddl.adoptScript(plan), nil
	}
	var b strings.Builder
	s.ddl.writeInstallation(&b, plan)
	return b.String(), nil
}

func (d *ddl) writeInstallation(b *strings.Builder, plan transport.Plan) {
	b.WriteString("BEGIN;\n")
	for _, step := range d.installation(plan) {
		b.WriteString(step.text + ";\n")
	}
	b.WriteString("COMMIT;\n")
}

// inboxVersion is the version of the inboxes that this package creates.
const inboxVersion = 1

// inboxStorage are the storage parameters of an inbox, to which rows are added and from which the
// oldest are deleted.
const inboxStorage = `autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0`

// installInbox returns the statements that create an inbox and its version. Its keys grow with
// time, so that inserts change few pages.
func (d *ddl) installInbox(inbox string) []step {
	t, of := d.table(inbox), fmt.Sprintf("inbox %q", inbox)
	version := `(SELECT version FROM ` + d.inboxVersions() + ` WHERE name = ` + literal(inbox) + `)`
	return []step{
		d.installInboxVersions(),
		{of, do(`IF ` + regclass(t.quoted) + ` IS NULL THEN
CREATE TABLE ` + t.quoted + ` (
	key uuid PRIMARY KEY,
	at timestamptz NOT NULL DEFAULT now(),
	sum integer NOT NULL
) WITH (` + inboxStorage + `);
CREATE INDEX IF NOT EXISTS ` + indexName(t, "_at_idx") + ` ON ` + t.quoted + ` (at);
` + d.versionedAs(inbox, inboxVersion) + `;
ELSIF 3 > (SELECT count(*) FROM pg_attribute WHERE attrelid = ` + regclass(t.quoted) + ` AND attname IN ('key', 'at', 'sum')) THEN
	RAISE EXCEPTION '% is a table of another kind: rename it', ` + literal(t.quoted) + `;
ELSIF coalesce(` + version + `, 0) > ` + strconv.Itoa(inboxVersion) + ` THEN
	RAISE EXCEPTION 'the inbox is of version %, this program knows version ` + strconv.Itoa(inboxVersion) + `: update this program', ` + version + `;
ELSIF ` + version + ` IS NULL THEN
	` + d.versionedAs(inbox, inboxVersion) + `;
END IF`)},
	}
}

// installInboxVersions returns the statement that creates the table with the versions of inboxes.
func (d *ddl) installInboxVersions() step {
	return step{"versions of inboxes", when(regclass(d.inboxVersions())+` IS NULL`, `CREATE TABLE `+d.inboxVersions()+` (
	name text PRIMARY KEY,
	version integer NOT NULL,
	forgotten_at timestamptz NOT NULL DEFAULT now()
)`)}
}

// versionedAs returns the statement that stores the version of an inbox or of the table of records.
func (d *ddl) versionedAs(name string, version int) string { //nolint:unparam // both have one version so far
	return `INSERT INTO ` + d.inboxVersions() + ` (name, version) VALUES (` + literal(name) + `, ` + strconv.Itoa(version) + `)
	ON CONFLICT (name) DO UPDATE SET version = excluded.version`
}

// recordsVersion is the version of the table of records that this package creates.
const recordsVersion = 1

// recordStorage are the storage parameters of the table of records. Pages have room for updates of
// records, which change no indexed column unless a record ends.
const recordStorage = `fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0,
	toast.autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_cost_delay = 0`

// installRecords returns the statements that create the table of records and its version, which is
// among those of inboxes. Names are compared bytewise: another version of the system's collations
// would damage the index.
func (d *ddl) installRecords() []step {
	name, records := dialect.RecordTable, d.recordTable()
	version := `(SELECT version FROM ` + d.inboxVersions() + ` WHERE name = ` + literal(name) + `)`
	return []step{
		d.installInboxVersions(),
		{"table of records", do(`IF ` + regclass(records) + ` IS NULL THEN
CREATE TABLE ` + records + ` (
	id uuid PRIMARY KEY,
	kind text COLLATE "C" NOT NULL,
	key text COLLATE "C" NOT NULL,
	version bigint NOT NULL,
	status smallint NOT NULL,
	state json,
	meta json,
	started timestamptz NOT NULL DEFAULT clock_timestamp(),
	changed timestamptz NOT NULL DEFAULT clock_timestamp(),
	forget_at timestamptz
) WITH (` + recordStorage + `);
CREATE INDEX ` + quote(name+"_kind_key_idx") + ` ON ` + records + ` (kind, key);
CREATE INDEX ` + quote(name+"_forget_at_idx") + ` ON ` + records + ` (forget_at) WHERE forget_at IS NOT NULL;
` + d.versionedAs(name, recordsVersion) + `;
ELSIF ` + strconv.Itoa(len(recordTableColumns)) + ` > (SELECT count(*) FROM pg_attribute WHERE attrelid = ` + regclass(records) + ` AND NOT attisdropped AND attname IN ` + literals(recordTableColumns) + `) THEN
	RAISE EXCEPTION '% is a table of another kind: rename it', ` + literal(records) + `;
ELSIF coalesce(` + version + `, 0) > ` + strconv.Itoa(recordsVersion) + ` THEN
	RAISE EXCEPTION 'the table of records is of version %, this program knows version ` + strconv.Itoa(recordsVersion) + `: update this program', ` + version + `;
ELSIF ` + version + ` IS NULL THEN
	` + d.versionedAs(name, recordsVersion) + `;
END IF`)},
	}
}

// recordTableColumns are the columns of the table of records.
var recordTableColumns = []string{
	"id", "kind", "key", "version", "status", "state", "meta", "started", "changed", "forget_at",
}
