package postgres

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/transport"
)

// refusals returns the pieces that fail where the table of a queue of plan is one of another kind,
// but not exactly one of NServiceBus. They change nothing.
func (s *store) refusals(plan transport.Plan) (pieces []piece) {
	for _, q := range plan.Queues {
		if q.Shared {
			continue
		}
		t := s.table(q.Name)
		found := `(SELECT string_agg(problem, '; ') FROM (` + problems(t) + `) AS p)`
		pieces = append(pieces, piece{of: ofQueue(t), text: when(
			regclass(t.quoted)+` IS NOT NULL AND NOT `+isOurs(t)+` AND `+found+` IS NOT NULL`,
			`RAISE EXCEPTION '%', `+literal(refusal)+` || `+found,
		)})
	}
	return pieces
}

const refusal = "its table cannot be taken over, because it is not exactly one of NServiceBus: "

// problems returns the query for the texts about what t has that a queue table of NServiceBus does
// not have, or lacks.
func problems(t *table) string {
	return strings.ReplaceAll(`WITH c AS (SELECT * FROM pg_class WHERE oid = @table),
a AS (SELECT * FROM pg_attribute WHERE attrelid = @table AND attnum > 0 AND NOT attisdropped),
wanted (name, types) AS (VALUES
	('id', ARRAY['uuid']), ('expires', ARRAY['timestamp without time zone']), ('headers', ARRAY['text']),
	('body', ARRAY['bytea']), ('seq', ARRAY['integer', 'bigint']))
SELECT problem FROM (
	SELECT CASE relkind WHEN 'r' THEN NULL WHEN 'p' THEN 'it is partitioned' WHEN 'v' THEN 'it is a view'
		WHEN 'm' THEN 'it is a materialized view' WHEN 'f' THEN 'it is a table of another server' ELSE 'it is no table' END AS problem FROM c
	UNION ALL SELECT 'it is unlogged or temporary' FROM c WHERE relpersistence <> 'p'
	UNION ALL SELECT 'it is a partition' FROM c WHERE relispartition
	UNION ALL SELECT 'it is part of an inheritance' FROM c WHERE NOT relispartition AND relkind = 'r'
		AND EXISTS (SELECT FROM pg_inherits WHERE inhrelid = @table OR inhparent = @table)
	UNION ALL SELECT 'it belongs to ' || quote_ident(pg_get_userbyid(relowner)) || ', whose rights this user does not have'
		FROM c WHERE NOT pg_has_role(relowner, 'USAGE')
	UNION ALL SELECT 'this user may not create indexes in the schema ' || relnamespace::regnamespace
		FROM c WHERE NOT has_schema_privilege(relnamespace, 'CREATE')
	UNION ALL SELECT 'it has row security' FROM c WHERE relrowsecurity OR relforcerowsecurity
		OR EXISTS (SELECT FROM pg_policy WHERE polrelid = @table)
	UNION ALL SELECT 'it has the trigger ' || quote_ident(tgname) FROM pg_trigger WHERE tgrelid = @table AND NOT tgisinternal
	UNION ALL SELECT 'it has the rule ' || quote_ident(rulename) FROM pg_rewrite, c WHERE ev_class = @table AND relkind = 'r'
	UNION ALL SELECT 'it has no column ' || name FROM wanted WHERE name NOT IN (SELECT attname FROM a)
	UNION ALL SELECT 'its column ' || name || ' is of type ' || format_type(atttypid, atttypmod) || ', not ' || array_to_string(types, ' or ')
		FROM wanted JOIN a ON attname = name WHERE format_type(atttypid, atttypmod) <> ALL (types)
	UNION ALL SELECT 'its column ' || name || ' is generated' FROM wanted JOIN a ON attname = name WHERE attgenerated <> ''
	UNION ALL SELECT 'its column ' || attname || ' may be null' FROM a WHERE attname IN ('id', 'headers', 'seq') AND NOT attnotnull
	UNION ALL SELECT 'it has the column ' || quote_ident(attname) FROM a WHERE attname NOT IN (SELECT name FROM wanted)
		AND NOT (lower(attname) = 'bodystring' AND attgenerated <> '' AND atttypid = 'text'::regtype)
	UNION ALL SELECT 'its column seq has no sequence' FROM a WHERE attname = 'seq' AND attidentity = ''
		AND NOT EXISTS (SELECT FROM pg_attrdef WHERE adrelid = @table AND adnum = attnum AND pg_get_expr(adbin, adrelid) LIKE 'nextval(%')
	UNION ALL SELECT 'its column seq is not unique' FROM a WHERE attname = 'seq' AND NOT `+uniqueColumn(t, "seq")+`
	UNION ALL SELECT 'it has the unique index ' || indexrelid::regclass FROM pg_index WHERE indrelid = @table AND indisunique
		AND NOT (indnkeyatts = 1 AND indpred IS NULL AND indexprs IS NULL
			AND EXISTS (SELECT FROM a WHERE attnum = indkey[0] AND attname IN ('id', 'seq')))
	UNION ALL SELECT 'it has the constraint ' || quote_ident(conname) FROM pg_constraint WHERE conrelid = @table AND contype NOT IN ('p', 'u', 'n', 't')
	UNION ALL SELECT 'the table ' || conrelid::regclass || ' refers to it' FROM pg_constraint WHERE confrelid = @table AND conrelid <> @table
) AS p WHERE problem IS NOT NULL`, "@table", regclass(t.quoted))
}

// refused returns the text about a foreign table that cannot be taken over; empty where it can.
func (s *store) refused(ctx context.Context, t *table) (string, error) {
	rows, _ := s.writes.Query(ctx, problems(t), pgx.QueryExecModeExec) // an error is that of rows too
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(found) == 0 {
		return "", err
	}
	return refusal + strings.Join(found, "; "), nil
}
