package postgres

import (
	"errors"
	"fmt"
	"slices"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/uuid"
)

// A row with a name is inserted, or replaces the row with that name, by one statement, which finds
// that row by the unique index on name whatever the statistics, and which is the same for a row
// that is only removed: such a row replaces the other as one that has expired, which the next claim
// deletes. So rows are locked in the order of their names, and no two transactions wait for each
// other.
//
// The row gets the seq and the id of a new one: a lease, a receipt or a page of a tool that names
// the row before misses it.

// removed is the ttl, as a parameter, of a row that removes the one with its name.
const removed = -1

// namedExpiry is [expiry] of a row with a name.
const namedExpiry = `CASE WHEN r.ttl < 0 THEN timestamp 'epoch' ELSE ` + expiry + ` END`

// replacing returns the end of an insert of named rows; "" of others.
func (o *out) replacing() string {
	if !o.named {
		return ""
	}
	return ` ORDER BY r.name::uuid
ON CONFLICT (name) WHERE name IS NOT NULL DO UPDATE SET seq = excluded.seq, id = excluded.id, headers = excluded.headers, body = excluded.body,
	visible_at = excluded.visible_at, expires = excluded.expires, delivery_count = 0, lease_id = NULL, lease_owner = NULL, last_error = NULL`
}

// namesOf returns the names of rows as texts.
func namesOf(rows []*tablequeue.Row) array[text] {
	names := make(array[text], len(rows))
	for i, r := range rows {
		names[i] = text(uuid.Text(r.Name))
	}
	return names
}

// renames reports whether u has a row with the name of one of g's: one statement cannot replace a
// row twice.
func (g *group) renames(u *tablequeue.Unit) bool {
	for i := range u.Rows {
		r := &u.Rows[i]
		if r.Named() && slices.ContainsFunc(g.outs, func(o *out) bool { return o.takes(r) && o.has(r.Name) }) {
			return true
		}
	}
	return false
}

// has reports whether a row of o has the name.
func (o *out) has(name [16]byte) bool {
	for _, r := range o.rows[len(o.names):] {
		if o.names == nil {
			o.names = map[[16]byte]struct{}{}
		}
		o.names[r.Name] = struct{}{}
	}
	_, found := o.names[name]
	return found
}

// noConflictIndex is the SQLSTATE with which a table without the unique index on name refuses a
// named row.
const noConflictIndex = "42P10"

// timerless adds [tablequeue.ErrNoTimers] to the error of units with named rows for a table that
// lacks what they need.
func timerless(err error, units ...*tablequeue.Unit) error {
	if c := code(err); c != undefinedColumn && c != noConflictIndex || errors.Is(err, errWrites) {
		return err
	}
	for _, u := range units {
		for i := range u.Rows {
			if u.Rows[i].Named() {
				return fmt.Errorf("queue %q: %w: %w", u.Rows[i].Queue, tablequeue.ErrNoTimers, err)
			}
		}
	}
	return err
}
