package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// filters returns the SQL expression for the parts of the table oid that can keep rows from being
// inserted, deleted or read, as a text, or ” without any. A trigger that is executed before each
// row can skip the row (PostgreSQL 15, "Overview of Trigger Behavior"). row_security_active is
// false for an owner and a role that bypass policies.
func filters(oid string) string {
	return `array_to_string(ARRAY(
	SELECT 'trigger ' || quote_ident(tgname) FROM pg_trigger
	WHERE tgrelid = ` + oid + ` AND NOT tgisinternal AND tgenabled IN ('O', 'A') AND tgtype & 3 = 3 AND tgtype & 12 <> 0
	UNION ALL SELECT 'rule ' || quote_ident(rulename) FROM pg_rewrite WHERE ev_class = ` + oid + ` AND ev_enabled IN ('O', 'A')
	UNION ALL SELECT 'row level security' WHERE row_security_active(` + oid + `)
	ORDER BY 1), ', ')`
}

// filterWarning returns a text about filters, or "" without any.
func filterWarning(filters string) string {
	if filters == "" {
		return ""
	}
	return fmt.Sprintf("its table has %s: if that skips a row without an error, a message is lost or handled again. "+
		"Have triggers raise an exception or return the row, and give the endpoint's role BYPASSRLS or policies for all commands", filters)
}

// filtersFor is the time after which a table is looked at again.
const filtersFor = time.Minute

// lookAtFilters finds the filters of the tables that groups insert into, unless they were looked at
// a short time ago. The inserts into a table with filters are counted. A failure of the query is
// one of the next statement too.
func (s *store) lookAtFilters(ctx context.Context, groups []*group) {
	now := time.Now()
	var tables []*table
	for _, g := range groups {
		for _, o := range g.outs {
			if at := o.to.filtersAt.Load(); now.Sub(time.Unix(0, at)) > filtersFor && o.to.filtersAt.CompareAndSwap(at, now.UnixNano()) {
				tables = append(tables, o.to)
			}
		}
	}
	if len(tables) > 0 {
		names := make([]string, len(tables))
		for i, t := range tables {
			names[i] = t.quoted
		}
		var filtered bool
		i := 0
		rows, _ := s.writes.Query(ctx, `SELECT `+filters(`to_regclass(q.name)`)+` <> '' FROM unnest($1::text[]) WITH ORDINALITY AS q(name, n) ORDER BY q.n`, names)
		_, err := pgx.ForEachRow(rows, []any{&filtered}, func() error {
			tables[i].filtered.Store(filtered)
			i++
			return nil
		})
		for _, t := range tables[i:] {
			t.filtersAt.Store(0)
		}
		if err != nil {
			s.log.DebugContext(ctx, "tables cannot be looked at for triggers", slog.Any("error", err))
		}
	}
	for _, g := range groups {
		for _, o := range g.outs {
			o.counted = o.to.filtered.Load() && !o.named && !o.leased && !o.foreign
		}
	}
}

// skipped begins the text of the error by which the statement of a counted insert fails. A cast of
// the text fails.
const skipped = "a trigger, a rule or a policy of the table has skipped a row; rows written: "

// skipsDelete is an expression for a row of q that was to be deleted and is there. It fails.
var skipsDelete = "(" + literal(skipped+"0, row ") + " || q.seq)::bigint"

// countedInsert returns the statement that inserts the rows of o and returns their seqs, or fails
// when a row was skipped. Want is the expression for the number of rows.
func (o *out) countedInsert(insert, want string) string {
	return "WITH out0 AS (" + insert + " RETURNING seq) SELECT seq FROM out0 UNION ALL SELECT " + o.skips(0) +
		" WHERE (SELECT count(*) FROM out0) < " + want
}

// skips returns an expression that fails, with the number of the rows that output i of a statement
// has inserted. The planner cannot evaluate the expression before.
func (o *out) skips(i int) string {
	return fmt.Sprintf("(%s || (SELECT count(*) FROM out%d))::bigint", literal(skipped), i)
}

// unskipped returns the condition that no counted insert of a statement has skipped a row of a unit
// in gone, or "". The parameters of the inserts begin with number param.
func unskipped(outs []*out, param int) string {
	var all []string
	for i, o := range outs {
		if o.counted {
			all = append(all, fmt.Sprintf(`(SELECT CASE WHEN (SELECT count(*) FROM out%d) < (SELECT count(*) FROM unnest($%d::bigint[]) AS o(n) JOIN gone USING (n)) THEN %s END) IS NULL`,
				i, param, o.skips(i)))
		}
		param += len(o.args)
	}
	if len(all) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(all, " AND ")
}

// warnOfFilters logs the filters of a queue's table, once for each table.
func (s *store) warnOfFilters(ctx context.Context, t *table) error {
	var found string
	row := s.writes.QueryRow(ctx, "SELECT "+filters(regclass(t.quoted)), pgx.QueryExecModeExec)
	if err := row.Scan(&found); err != nil {
		return err
	}
	t.filtered.Store(found != "")
	t.filtersAt.Store(time.Now().UnixNano())
	if text := filterWarning(found); text != "" && t.filtersLogged.CompareAndSwap(false, true) {
		s.log.WarnContext(ctx, "a queue's table may keep messages out", slog.String("queue", t.name), slog.String("reason", text))
	}
	return nil
}
