package postgres

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// inboxOf is the inbox beside the queue q.
const inboxOf = "q.handled"

// handledKey returns the nth key, which agedRows gives the nth row.
func handledKey(n int) transport.HandledKey {
	k := transport.HandledKey{Sum: 7}
	binary.BigEndian.PutUint64(k.ID[8:], uint64(n)) //nolint:gosec // not negative
	return k
}

// agedRows returns the statement that adds the rows from the first number to the last, of which the
// first half is two days old.
func agedRows(first, last int) string {
	return fmt.Sprintf(`INSERT INTO "q.handled" (key, at, sum) SELECT lpad(to_hex(n), 32, '0')::uuid,
	now() - CASE WHEN n < %d THEN interval '2 days' ELSE interval '2 hours' END + n * interval '1 microsecond', 7
	FROM generate_series(%d, %d) AS n`, (first+last)/2, first, last)
}

// Statements on an inbox find their rows by its indexes, whatever the planner knows of it.
func TestStatementsOnAnInboxReadNoMoreThanTheirRows(t *testing.T) {
	t.Parallel()
	forStatistics(t, func(t *testing.T, prepare []string) { plansOfInbox(t, false, prepare) })
}

func plansOfInbox(t *testing.T, pooled bool, prepare []string) {
	e := newExplained(t, pooled, false)
	ok(t, e.Install(t.Context(), transport.Plan{Inboxes: []string{inboxOf}}))
	e.exec(`ALTER TABLE "q.handled" SET (autovacuum_enabled = off)`)
	for _, sql := range prepare {
		sql = strings.NewReplacer(
			`INSERT INTO q (headers) SELECT '{}' FROM generate_series(1, 10000)`, agedRows(1, 10_000),
			` q`, ` "q.handled"`,
		).Replace(sql)
		e.exec(sql)
	}
	e.exec(`INSERT INTO q (headers) SELECT '{}' FROM generate_series(1, 50000)`)
	e.readsItsInbox(0)
	e.exec(agedRows(1_000_000, 1_200_000))
	e.readsItsInbox(1_000_000)
}

// readsItsInbox executes each statement; first is the number of the inbox's first row, or 0 for an
// empty one.
func (e *explained) readsItsInbox(first int) {
	e.t.Helper()
	ctx := e.t.Context()
	const some = 20
	var keys []transport.HandledKey
	for i := range some {
		keys = append(keys, handledKey(first+1000*i))
	}
	leases := e.claimed(int64(first+1), 2*some)
	with := func(u *tablequeue.Unit, n int) *tablequeue.Unit {
		k := handledKey(first + 2_000_000 + n)
		u.Inbox, u.Key = inboxOf, &k
		return u
	}
	row := tablequeue.Row{Queue: "out", ID: "id", Headers: []byte("{}")}
	inTx := func(u *tablequeue.Unit) {
		tx, err := e.Begin(ctx)
		ok(e.t, err)
		ok(e.t, tx.Complete(ctx, u))
		if u.Lost || u.Handled {
			e.t.Errorf("unit is lost: %t, handled: %t", u.Lost, u.Handled)
		}
	}
	for _, st := range []struct {
		name string
		rows int
		do   func()
	}{
		{"find", some, func() {
			got, err := e.FindHandled(ctx, inboxOf, keys)
			ok(e.t, err)
			if first > 0 && got[1] != transport.Handled {
				e.t.Errorf("a key is %v", got[1])
			}
		}},
		{"record", some, func() {
			var units []*tablequeue.Unit
			for n := range some {
				units = append(units, with(&tablequeue.Unit{Verb: tablequeue.Record, Rows: []tablequeue.Row{row}}, n))
			}
			ok(e.t, e.Flush(ctx, units))
		}},
		{"complete and record", some, func() {
			units := unitsOf(tablequeue.Delete, leases[:some])
			for n, u := range units {
				with(u, some+n)
			}
			ok(e.t, e.Flush(ctx, units))
			if units[0].Lost || units[0].Handled {
				e.t.Errorf("unit is lost: %t, handled: %t", units[0].Lost, units[0].Handled)
			}
		}},
		{"complete and record in a transaction", 1, func() {
			inTx(with(unitsOf(tablequeue.Delete, leases[some:])[0], 2*some))
		}},
		{"record in a transaction", 1, func() {
			inTx(with(&tablequeue.Unit{Verb: tablequeue.Record, Rows: []tablequeue.Row{row}}, 2*some+1))
		}},
		{"forget", 1000, func() {
			for range 3 {
				n, err := e.Forget(ctx, inboxOf, 24*time.Hour, 1000)
				ok(e.t, err)
				if first > 0 && n != 1000 {
					e.t.Errorf("%d ids were removed, want 1000", n)
				}
			}
		}},
		{"forget named ids", some, func() {
			_, err := e.ForgetKeys(ctx, inboxOf, keys)
			ok(e.t, err)
		}},
	} {
		plans := e.executedOn(inboxOf, st.do)
		if len(plans) == 0 {
			e.t.Errorf("%s: the server reported no plan", st.name)
		}
		for _, p := range plans {
			if most := 150 + 40*st.rows; p.buffers() > most {
				e.t.Errorf("%s, rows from %d: %d buffers for %d rows, want at most %d: %s", st.name, first, p.buffers(), st.rows, most, p.rawPlan)
			}
			if most := float64(3 * st.rows); p.removed() > most {
				e.t.Errorf("%s, rows from %d: read %v rows in vain, want at most %v: %s", st.name, first, p.removed(), most, p.rawPlan)
			}
		}
	}
	stats, err := e.InspectInbox(ctx, inboxOf)
	ok(e.t, err)
	if first > 0 && (stats.Rows < 150_000 || stats.Rows > 250_000 || stats.Oldest < 47*time.Hour) {
		e.t.Errorf("the inbox of about 197,000 ids is %+v", stats)
	}
}
