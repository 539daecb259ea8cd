package postgres

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/transport"
)

// adoption returns the pieces that take over the tables of plan's queues, which exist: those of
// NServiceBus get the columns and indexes of a queue, except shared ones, which both systems use as
// they are. Tables of the version before get ids of type uuid. A kill at any point leaves a state
// that the pieces complete when they are repeated.
func (s *store) adoption(plan transport.Plan) (pieces []piece) {
	for _, q := range plan.Queues {
		t := s.table(q.Name)
		if !q.Shared {
			pieces = append(pieces, s.addColumns(t))
		}
		pieces = append(pieces, warnOfRewrite(t), s.widenID(t), giveUniqueIDs(t, q.Shared), dropInvalid(t))
		pieces = append(pieces, createMissing(t, q.Shared)...)
		pieces = append(pieces, s.finish(t))
	}
	return pieces
}

// columns that a foreign table lacks. The default of visible_at is evaluated once for all rows, so
// the table is not rewritten.
const adoptedColumns = `ADD COLUMN visible_at timestamptz NOT NULL DEFAULT statement_timestamp(),
	ADD COLUMN delivery_count integer NOT NULL DEFAULT 0, ADD COLUMN lease_id bigint, ADD COLUMN lease_owner text,
	ADD COLUMN last_error text, ALTER COLUMN id SET DEFAULT gen_random_uuid()`

func (s *store) addColumns(t *table) piece {
	return piece{of: ofQueue(t), text: repeated(t, "adding columns", "NOT "+isOurs(t), `ALTER TABLE `+t.quoted+` `+adoptedColumns+`;
			`+s.versioned(t, adoptingVersion))}
}

// uuidText matches text that is a UUID.
const uuidText = `'^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$'`

// warnOfRewrite returns the piece that reports, before it begins, that a table is locked for long.
func warnOfRewrite(t *table) piece {
	return piece{of: ofQueue(t), text: when(hasTextID(t), `RAISE WARNING 'queue %: its table (%) is rewritten for ids of type uuid, and is locked meanwhile; programs of an earlier version cannot use it afterwards: stop them', `+
		literal(t.name)+`, pg_size_pretty(pg_total_relation_size(`+regclass(t.quoted)+`))`)}
}

// hasTextID returns the condition that t is a queue of the version before.
func hasTextID(t *table) string { return idIs(t, "text") + ` AND ` + isOurs(t) }

func (s *store) widenID(t *table) piece {
	return piece{of: ofQueue(t), text: repeated(t, "changing the type of id", hasTextID(t), `ALTER TABLE `+t.quoted+` ALTER COLUMN id DROP DEFAULT,
				ALTER COLUMN id TYPE uuid USING CASE WHEN id ~* `+uuidText+` THEN id::uuid ELSE gen_random_uuid() END,
				ALTER COLUMN id SET DEFAULT gen_random_uuid();
			`+s.versioned(t, tableVersion))}
}

// giveUniqueIDs returns the piece that gives copies of a row a new id each.
func giveUniqueIDs(t *table, shared bool) piece {
	copies := `EXISTS (SELECT FROM ` + t.quoted + ` GROUP BY id HAVING count(*) > 1)`
	return piece{of: ofQueue(t), text: repeated(t, "giving rows ids of their own", wantsUniqueID(t, shared)+` AND `+copies, `UPDATE `+t.quoted+` SET id = gen_random_uuid() WHERE ctid = ANY (ARRAY(
				SELECT ctid FROM (SELECT ctid, row_number() OVER (PARTITION BY id ORDER BY seq) AS n FROM `+t.quoted+`) AS r WHERE n > 1))`)}
}

// dropInvalid returns the piece that drops the indexes of which the creation was interrupted.
func dropInvalid(t *table) piece {
	names := []string{}
	for _, i := range adoptedIndexes(t) {
		names = append(names, literal(i.name))
	}
	return piece{of: ofQueue(t), generates: true, text: `SELECT 'DROP INDEX CONCURRENTLY ' || indexrelid::regclass FROM pg_index
WHERE indrelid = ` + regclass(t.quoted) + ` AND NOT indisvalid
AND indexrelid IN (` + `to_regclass(` + strings.Join(names, `), to_regclass(`) + `))`}
}

// adoptedIndex is an index that an adopted table needs.
type adoptedIndex struct {
	name    string // quoted, with its schema
	create  string
	missing string // a condition
}

func adoptedIndexes(t *table) []adoptedIndex {
	byName := func(suffix, unique, on string) adoptedIndex {
		plain := indexName(t, suffix)
		name := strings.TrimSuffix(t.quoted, quote(t.plain)) + plain
		return adoptedIndex{
			name: name, create: `CREATE ` + unique + `INDEX CONCURRENTLY ` + plain + ` ON ` + t.quoted + ` ` + on,
			missing: isOurs(t) + ` AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = ` + regclass(t.quoted) +
				` AND indexrelid = to_regclass(` + literal(name) + `) AND indisvalid)`,
		}
	}
	return []adoptedIndex{
		byName("_visible_at_seq_idx", "", "(visible_at, seq)"),
		byName("_expires_idx", "", "(expires) WHERE expires IS NOT NULL"),
		byName("_id_key", "UNIQUE ", "(id)"),
	}
}

func createMissing(t *table, shared bool) (pieces []piece) {
	for i, index := range adoptedIndexes(t) {
		missing := index.missing
		if i == 2 {
			missing = wantsUniqueID(t, shared)
		}
		pieces = append(pieces, piece{
			of: ofQueue(t) + ": create an index", generates: true,
			text: `SELECT ` + literal(index.create) + ` WHERE ` + missing,
		})
	}
	return pieces
}

// finish returns the piece that ends the adoption of a foreign table.
func (s *store) finish(t *table) piece {
	adopting := s.versionOf(t) + ` = ` + strconv.Itoa(adoptingVersion)
	return piece{of: ofQueue(t), text: repeated(t, "setting storage parameters", adopting, `ALTER TABLE `+t.quoted+` SET (`+storage+`);
			`+s.versioned(t, tableVersion))}
}

func ofQueue(t *table) string { return fmt.Sprintf("queue %q", t.name) }

// isOurs returns the condition that t exists with the columns of a lease.
func isOurs(t *table) string {
	return `EXISTS (SELECT FROM pg_attribute WHERE attrelid = ` + regclass(t.quoted) + ` AND attname = 'lease_id' AND NOT attisdropped)`
}

// idIs returns the condition that the ids of t are of a type.
func idIs(t *table, kind string) string {
	return `EXISTS (SELECT FROM pg_attribute WHERE attrelid = ` + regclass(t.quoted) +
		` AND attname = 'id' AND NOT attisdropped AND atttypid = ` + literal(kind) + `::regtype)`
}

// isAdopted returns the condition that t was created by NServiceBus and taken over: its seq is no
// identity column.
func isAdopted(t *table) string {
	return `(` + isOurs(t) + ` AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = ` + regclass(t.quoted) + ` AND attname = 'seq' AND attidentity = ''))`
}

// wantsUniqueID returns the condition that t is a queue whose ids should have a unique index, and
// have none.
func wantsUniqueID(t *table, shared bool) string {
	wanted := isAdopted(t)
	if shared {
		wanted = isOurs(t)
	}
	return wanted + ` AND ` + idIs(t, "uuid") + ` AND NOT ` + uniqueColumn(t, "id")
}

// uniqueColumn returns the condition that t has a valid unique index on a column alone.
func uniqueColumn(t *table, column string) string {
	return `EXISTS (SELECT FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
	WHERE i.indrelid = ` + regclass(t.quoted) + ` AND i.indisunique AND i.indisvalid AND i.indnkeyatts = 1
	AND i.indpred IS NULL AND i.indexprs IS NULL AND a.attname = ` + literal(column) + `)`
}

// adoptLockWait is the longest time that a change of a table waits for its lock, and keeps inserts
// waiting behind it.
const adoptLockWait = "50ms"

// repeated returns the statement that executes text in a transaction of its own: again, after a
// pause, while it does not get its locks in time. Where condition is false, which text brings
// about, it does nothing.
func repeated(t *table, doing, condition, text string) string {
	return do(`DECLARE
	said timestamptz := clock_timestamp() - interval '` + fmt.Sprint((progressEvery - progressFirst).Seconds()) + ` seconds';
	pause double precision := 0.05;
	refused boolean := true;
BEGIN
	WHILE refused AND (` + condition + `) LOOP
		refused := false;
		BEGIN
			PERFORM set_config('lock_timeout', '` + adoptLockWait + `', true);
			` + text + `;
		EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
			refused := true;
		END;
		COMMIT;
		IF refused THEN
			IF clock_timestamp() - said >= interval '` + fmt.Sprint(progressEvery.Seconds()) + ` seconds' THEN
				said := clock_timestamp();
				RAISE WARNING 'queue %: ` + doing + ` waits for a lock%', ` + literal(t.name) + `, ` + holders(t) + `;
			END IF;
			pause := least(1.5 * pause, 1);
			PERFORM pg_sleep(pause * (0.5 + random() / 2));
			COMMIT;
		END IF;
	END LOOP;
END`)
}

// holders returns the expression for a text about the sessions that have locked t.
func holders(t *table) string {
	return `coalesce((SELECT ' of ' || string_agg(` + sessionText + `, ', ') FROM pg_stat_activity AS a
				WHERE a.pid <> pg_backend_pid() AND a.pid IN (SELECT l.pid FROM pg_locks AS l WHERE l.granted AND l.relation = ` + regclass(t.quoted) + `
				AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))), '')`
}

// adoptScript returns the statements of an adoption as text for psql, which executes each by
// itself.
func (s *store) adoptScript(plan transport.Plan) string {
	var b strings.Builder
	b.WriteString("-- For psql, without --single-transaction.\n\\set ON_ERROR_STOP on\n\\set AUTOCOMMIT on\n" + adoptSettings + ";\n")
	b.WriteString(when(`NOT pg_try_advisory_lock(`+s.installKey()+`)`, s.busy()) + ";\n")
	writePieces(&b, s.refusals(plan))
	s.writeInstallation(&b, plan)
	writePieces(&b, s.adoption(plan))
	b.WriteString("SELECT pg_advisory_unlock(" + s.installKey() + ");\n")
	return b.String()
}

func writePieces(b *strings.Builder, pieces []piece) {
	for _, p := range pieces {
		b.WriteString(p.text)
		if p.generates {
			b.WriteString("\n\\gexec\n")
		} else {
			b.WriteString(";\n")
		}
	}
}
