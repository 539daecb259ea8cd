package postgres

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/stateset"
	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

const recordKind = "orders/saga"

var (
	recordName = &transport.RecordName{Kind: recordKind, Key: "o-1"}
	recordID   = transport.RecordID{1}
)

// newRecords is a world with the table of records, and a connection to it.
func newRecords(t *testing.T) (*world, transport.Conn) {
	t.Helper()
	w := newWorld(t)
	c := w.open()
	ok(t, c.(transport.Installer).Install(t.Context(), transport.Plan{Records: []string{recordKind}}))
	return w, c
}

// recordTx begins a transaction, and returns it also as its handler uses it.
func recordTx(t *testing.T, c transport.Conn) (tx transport.Tx, states transport.StateStore, user pgx.Tx) {
	t.Helper()
	tx, err := c.(transport.OutboxStore).BeginStore(t.Context(), transport.OutboxEntry{})
	ok(t, err)
	inner, _ := tablequeue.Inner(transport.NewHandlerTx(tx))
	return tx, tx.(transport.StateStore), &inner.(*handlerTx).user
}

// save loads the record, and saves it with a state.
func save(t *testing.T, states transport.StateStore, state string) {
	t.Helper()
	r, err := states.Load(t.Context(), recordID, recordName)
	ok(t, err)
	r.State = []byte(state)
	ok(t, states.Save(t.Context(), r))
}

func TestALoadLeavesTheHandlersSettings(t *testing.T) {
	t.Parallel()
	_, c := newRecords(t)
	for _, set := range []string{"", "SET LOCAL lock_timeout = '123ms'"} {
		tx, states, user := recordTx(t, c)
		var before, after string
		const settings = `SELECT current_setting('lock_timeout') || ' ' || current_setting('enable_seqscan')`
		if set != "" {
			_, err := user.Exec(t.Context(), set)
			ok(t, err)
			ok(t, user.QueryRow(t.Context(), settings).Scan(&before))
		} else {
			before = "0 on" // the load begins the transaction
		}
		save(t, states, `1`)
		ok(t, user.QueryRow(t.Context(), settings).Scan(&after))
		if before != after {
			t.Errorf("the settings are %q, want %q as before the load", after, before)
		}
		ok(t, tx.Complete(t.Context(), nil))
	}
}

// A behavior, or a handler before, may have taken the role of a tenant, who has no rights on the
// table of records.
func TestALoadLeavesTheHandlersRole(t *testing.T) {
	t.Parallel()
	w, c := newRecords(t)
	role := w.tenant()
	tx, states, user := recordTx(t, c)
	_, err := user.Exec(t.Context(), "SET LOCAL ROLE "+role)
	ok(t, err)
	save(t, states, `1`)
	var after string
	ok(t, user.QueryRow(t.Context(), `SELECT quote_ident(current_user)`).Scan(&after))
	if after != role {
		t.Errorf("the role is %s after the load, want %s", after, role)
	}
	ok(t, tx.Complete(t.Context(), nil))
	r, err := c.(transport.StateInspector).Record(t.Context(), recordID)
	ok(t, err)
	if string(r.State) != `1` {
		t.Errorf("the state is %s", r.State)
	}
}

// A handler may roll its savepoint back, and so unlock a record that was loaded in it.
func TestARecordThatASavepointHasUnlockedIsAConflict(t *testing.T) {
	t.Parallel()
	for _, exists := range []bool{false, true} {
		_, c := newRecords(t)
		if exists {
			tx, states, _ := recordTx(t, c)
			save(t, states, `0`)
			ok(t, tx.Complete(t.Context(), nil))
		}
		tx, states, user := recordTx(t, c)
		savepoint, err := user.Begin(t.Context())
		ok(t, err)
		save(t, states, `"first"`)
		ok(t, savepoint.Rollback(t.Context()))
		rival, rivals, _ := recordTx(t, c)
		save(t, rivals, `"rival"`)
		ok(t, rival.Complete(t.Context(), nil))
		err = tx.Complete(t.Context(), nil)
		isErr(t, err, transport.ErrConflict)
		if !tx.(transport.ConflictDetector).Conflict(err) {
			t.Errorf("%v is no conflict", err)
		}
		r, err := c.(transport.StateInspector).Record(t.Context(), recordID)
		ok(t, err)
		if string(r.State) != `"rival"` {
			t.Errorf("the state is %s, want that of the rival", r.State)
		}
	}
}

func TestADeadlockOfTwoRecordsIsAConflict(t *testing.T) {
	t.Parallel()
	_, c := newRecords(t)
	other := transport.RecordID{2}
	first, firsts, _ := recordTx(t, c)
	second, seconds, _ := recordTx(t, c)
	save(t, firsts, `1`)
	_, err := seconds.Load(t.Context(), other, recordName)
	ok(t, err)
	crossed := make(chan error, 1)
	go func() {
		_, err := firsts.Load(t.Context(), other, recordName)
		crossed <- err
	}()
	_, err = seconds.Load(t.Context(), recordID, recordName)
	if err != nil {
		ok(t, second.Rollback(t.Context()))
	}
	if err2 := <-crossed; (err == nil) == (err2 == nil) || !errors.Is(errors.Join(err, err2), transport.ErrConflict) {
		t.Errorf("the transactions got %v and %v, want a conflict of one", err, err2)
	}
	ok(t, first.Rollback(t.Context()))
	ok(t, second.Rollback(t.Context()))
}

func TestRecordsWithoutTheirTable(t *testing.T) {
	t.Parallel()
	c := newWorld(t).open()
	tx, states, _ := recordTx(t, c)
	_, err := states.Load(t.Context(), recordID, recordName)
	isErr(t, err, transport.ErrNoQueue)
	ok(t, tx.Rollback(t.Context()))
	inspector := c.(transport.StateInspector)
	_, err = inspector.InspectRecords(t.Context(), recordKind)
	isErr(t, err, transport.ErrNoQueue)
	_, err = inspector.Record(t.Context(), recordID)
	isErr(t, err, transport.ErrNoQueue)
	isErr(t, inspector.RemoveRecord(t.Context(), recordID), transport.ErrNoQueue)
}

func TestTheTableOfRecordsIsVerified(t *testing.T) {
	t.Parallel()
	w, c := newRecords(t)
	plan := transport.Plan{Records: []string{recordKind}}
	verified := func() string {
		found, err := c.(transport.Verifier).Verify(t.Context(), plan)
		ok(t, err)
		return fmt.Sprint(found)
	}
	for _, step := range []struct{ sql, want string }{
		{`UPDATE %sholdfast_handled SET version = 99`, "version 99"},
		{`DELETE FROM %sholdfast_handled`, "missing table"},
		{`ALTER TABLE %sholdfast_state DROP COLUMN meta`, `no column "meta"`},
		{`DROP TABLE %sholdfast_state`, "missing table"},
	} {
		w.exec(step.sql)
		if got := verified(); !strings.Contains(got, step.want) {
			t.Errorf("after %s: %s, want %q", step.sql, got, step.want)
		}
	}
	ok(t, c.(transport.Installer).Install(t.Context(), plan))
	if got := verified(); got != "[]" {
		t.Errorf("after Install: %s, want nothing", got)
	}
	w.exec(`UPDATE %sholdfast_handled SET version = 99`)
	if err := c.(transport.Installer).Install(t.Context(), plan); err == nil || !strings.Contains(err.Error(), "update this program") {
		t.Errorf("Install over a newer table: %v", err)
	}
	if _, err := c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: "holdfast_state"}); err == nil {
		t.Error("the table of records was opened as a queue")
	}
}

// addRecords returns the statement that adds n records, of which the first tenth has ended.
func addRecords(n int) string {
	return fmt.Sprintf(`INSERT INTO holdfast_state (id, kind, key, version, status, state, forget_at)
	SELECT md5(n::text)::uuid, '%s', lpad(n::text, 9, '0'), 1, CASE WHEN n <= %[2]d / 10 THEN 2 ELSE 1 END, '{"n":1}',
		CASE WHEN n <= %[2]d / 10 THEN now() - interval '1 hour' END
	FROM generate_series(1, %[2]d) AS n`, recordKind, n)
}

// Statements about records find their rows by the indexes, whatever the planner knows of the table.
func TestStatementsOnRecordsReadNoMoreThanTheirRows(t *testing.T) {
	t.Parallel()
	forStatistics(t, func(t *testing.T, prepare []string) { plansOfRecords(t, false, prepare) })
}

func plansOfRecords(t *testing.T, pooled bool, prepare []string) {
	e := newExplained(t, pooled, false)
	ok(t, e.Install(t.Context(), transport.Plan{Records: []string{recordKind}}))
	e.exec(`ALTER TABLE holdfast_state SET (autovacuum_enabled = off)`)
	for _, sql := range prepare {
		sql = strings.NewReplacer(
			`INSERT INTO q (headers) SELECT '{}' FROM generate_series(1, 10000)`, addRecords(10_000),
			` q`, ` holdfast_state`,
		).Replace(sql)
		e.exec(sql)
	}
	e.usesRecords(0)
	e.exec(`DELETE FROM holdfast_state`)
	e.exec(addRecords(100_000))
	e.usesRecords(100_000)
}

// usesRecords executes each statement on a table of n records.
func (e *explained) usesRecords(n int) {
	e.t.Helper()
	ctx := e.t.Context()
	var active, removed transport.RecordID
	ok(e.t, e.sql.QueryRow(ctx, `SELECT md5('60000')::uuid, md5('60001')::uuid`).Scan((*[16]byte)(&active), (*[16]byte)(&removed)))
	inTx := func(changes ...*stateset.Change) {
		tx, err := e.Begin(ctx)
		ok(e.t, err)
		for _, c := range changes {
			c.Record, err = tx.(tablequeue.RecordTx).LoadRecord(ctx, c.Record.ID, recordName)
			ok(e.t, err)
			c.Loaded = c.Record.Version
			c.Record.Version++
		}
		ok(e.t, tx.Complete(ctx, &tablequeue.Unit{Verb: tablequeue.Record, Records: changes}))
	}
	for _, st := range []struct {
		name string
		rows int
		do   func()
	}{
		{"create", 1, func() {
			for range 10 { // longer than it takes for a generic plan
				id := transport.RecordID{byte(n >> 8), byte(n), 0xff, 1}
				inTx(&stateset.Change{Verb: stateset.Store, Record: transport.Record{ID: id}})
				inTx(&stateset.Change{Verb: stateset.Remove, Record: transport.Record{ID: id}})
			}
		}},
		{"save", 1, func() {
			for range 10 {
				inTx(&stateset.Change{Verb: stateset.Store, Record: transport.Record{ID: active}})
			}
		}},
		{"remove", 1, func() { inTx(&stateset.Change{Verb: stateset.Remove, Record: transport.Record{ID: removed}}) }},
		{"find", 1, func() {
			_, err := e.Record(ctx, active)
			ok(e.t, err)
		}},
		{"page", 100, func() {
			for _, after := range []string{"", "000050000"} {
				page, err := e.Records(ctx, transport.RecordPage{Kind: recordKind, After: after, Limit: 100})
				ok(e.t, err)
				if n > 0 && len(page) != 100 {
					e.t.Errorf("a page has %d records, want 100", len(page))
				}
			}
		}},
		{"forget", 1000, func() {
			for range 3 {
				forgotten, err := e.ForgetRecords(ctx, 1000)
				ok(e.t, err)
				if n > 0 && forgotten != 1000 {
					e.t.Errorf("%d records were forgotten, want 1000", forgotten)
				}
			}
		}},
	} {
		plans := e.executedOn("holdfast_state", st.do)
		if len(plans) == 0 {
			e.t.Errorf("%s: the server reported no plan", st.name)
		}
		for _, p := range plans {
			if most := 150 + 40*st.rows; p.buffers() > most {
				e.t.Errorf("%s in %d records: %d buffers, want at most %d: %s", st.name, n, p.buffers(), most, p.rawPlan)
			}
			if most := float64(3 * st.rows); p.removed() > most {
				e.t.Errorf("%s in %d records: read %v rows in vain, want at most %v: %s", st.name, n, p.removed(), most, p.rawPlan)
			}
		}
	}
}

// A save changes no index.
func TestSavesAreHeapOnlyUpdates(t *testing.T) {
	t.Parallel()
	w, c := newRecords(t)
	tx, states, _ := recordTx(t, c)
	save(t, states, `0`)
	ok(t, tx.Complete(t.Context(), nil))
	s := w.store()
	var hot int64
	tx2, err := w.sql.Begin(t.Context())
	ok(t, err)
	for version := int64(1); version <= 20; version++ {
		_, err := tx2.Exec(t.Context(), s.recordStore.statements.save, "01000000-0000-0000-0000-000000000000", version, version+1,
			int16(transport.RecordActive), fmt.Sprint(version), nil, time.Hour.Microseconds())
		ok(t, err)
	}
	ok(t, tx2.QueryRow(t.Context(), `SELECT pg_stat_get_xact_tuples_hot_updated($1::text::regclass)`, w.schema+".holdfast_state").Scan(&hot))
	ok(t, tx2.Rollback(t.Context()))
	if hot != 20 {
		t.Errorf("%d of 20 updates changed no index, want all", hot)
	}
}

func TestARecordsCountsAreEstimatedInALargeTable(t *testing.T) {
	t.Parallel()
	w, c := newRecords(t)
	w.exec(`INSERT INTO %sholdfast_state (id, kind, key, version, status, state, changed)
SELECT gen_random_uuid(), 'orders/saga', n::text, 1, CASE WHEN n % 4 = 0 THEN 2 ELSE 1 END, to_json(repeat('x', 900)), now() - interval '1 hour'
FROM generate_series(1, 100000) AS n`)
	stats, err := c.(transport.StateInspector).InspectRecords(t.Context(), recordKind)
	ok(t, err)
	if stats.Active < 50_000 || stats.Active > 100_000 || stats.Ended < 15_000 || stats.Ended > 40_000 || stats.Oldest < 59*time.Minute {
		t.Errorf("75,000 active and 25,000 ended records are %+v", stats)
	}
}
