package sqlserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/uuid"
)

// namedList is [rowList] with the names of the rows.
const namedList = `OPENJSON(@rows) WITH (` + rowParts + `, [name] uniqueidentifier) AS r`

// naming sets the statements on rows with names. The index on their column finds each, whatever the
// statistics. vacate also locks the places of names that no row has, until the transaction ends, so
// that of two transactions that insert a name one waits for the other. The conditions on the column
// let the server use the index, which has one.
func (t *table) naming(q string) {
	t.vacate = `DELETE q FROM OPENJSON(@names) WITH ([name] uniqueidentifier '$') AS r
INNER LOOP JOIN ` + q + ` AS q WITH (INDEX (holdfast_timer), UPDLOCK, HOLDLOCK, ROWLOCK) ON q.timer = r.[name] AND q.timer IS NOT NULL;`
	t.insertNamed = t.inserting(q, ", timer", ", r.[name]")
	t.addNames = `IF col_length(` + literal(q) + `, N'lease_id') IS NOT NULL AND col_length(` + literal(q) + `, N'timer') IS NULL
	ALTER TABLE ` + q + ` ADD timer uniqueidentifier;`
	t.indexNames = `IF col_length(` + literal(q) + `, N'timer') IS NOT NULL
	AND NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = object_id(` + literal(q) + `, N'U') AND name = N'holdfast_timer')
	EXEC (` + literal(`CREATE UNIQUE NONCLUSTERED INDEX holdfast_timer ON `+q+` (timer) WHERE timer IS NOT NULL`) + `);`
}

// named reports whether units have rows with names.
func named(units []*tablequeue.Unit) bool {
	return slices.ContainsFunc(units, func(u *tablequeue.Unit) bool {
		for i := range u.Rows {
			if u.Rows[i].Named() {
				return true
			}
		}
		return false
	})
}

// replacement is the rows with names that a transaction leaves in a queue, in the order of the
// names: of the rows with one name the last.
type replacement struct {
	queue string
	rows  []*tablequeue.Row
}

func replacements(units []*tablequeue.Unit) (all []*replacement) {
	for _, u := range units {
		for i := range u.Rows {
			row := &u.Rows[i]
			if !row.Named() {
				continue
			}
			at := slices.IndexFunc(all, func(r *replacement) bool { return r.queue == row.Queue })
			if at < 0 {
				at, all = len(all), append(all, &replacement{queue: row.Queue})
			}
			all[at].rows = append(all[at].rows, row)
		}
	}
	for _, r := range all {
		slices.SortStableFunc(r.rows, func(a, b *tablequeue.Row) int { return bytes.Compare(a.Name[:], b.Name[:]) })
		last := r.rows[:0]
		for i, row := range r.rows {
			if i+1 == len(r.rows) || r.rows[i+1].Name != row.Name {
				last = append(last, row)
			}
		}
		r.rows = last
	}
	return all
}

// errNamedTwice means that another transaction has inserted a row with the same name meanwhile.
// Repeated, the statements replace that row.
var errNamedTwice = errors.New("another transaction sets the same name")

// replace deletes the rows with the names of those of units, and inserts these.
func (s *store) replace(ctx context.Context, o on, units []*tablequeue.Unit) error {
	for _, r := range replacements(units) {
		names := make([]string, len(r.rows))
		for i, row := range r.rows {
			names[i] = uuid.Text(row.Name)
		}
		_, err := o.ExecContext(ctx, s.table(r.queue).vacate, list("names", names))
		r.rows = slices.DeleteFunc(r.rows, func(row *tablequeue.Row) bool { return row.Removes })
		if err == nil && len(r.rows) > 0 {
			err = s.insertRows(ctx, o, &outgoing{queue: r.queue, rows: r.rows}, s.table(r.queue).insertNamed)
		}
		switch numberOf(err) {
		case duplicateKey, duplicateIndex:
			err = fmt.Errorf("%w: %w", errNamedTwice, err)
		case invalidColumn, missingIndex:
			err = fmt.Errorf("%w: %w", tablequeue.ErrNoTimers, err)
		}
		if err != nil {
			return fmt.Errorf("replace in queue %q: %w", r.queue, err)
		}
	}
	return nil
}
