package postgres

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/internal/brokertest/nservicebus"
	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// planNode is a node of a plan as EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) describes it.
type planNode struct {
	Kind          string  `json:"Node Type"`
	Relation      string  `json:"Relation Name"`
	Index         string  `json:"Index Name"`
	Filtered      float64 `json:"Rows Removed by Filter"`
	Unjoined      float64 `json:"Rows Removed by Join Filter"`
	Loops         float64 `json:"Actual Loops"`
	Hit           int     `json:"Shared Hit Blocks"`
	Read          int     `json:"Shared Read Blocks"`
	Plans         []planNode
	text, rawPlan string
}

// buffers is how many pages the statement has looked at.
func (p *planNode) buffers() int { return p.Hit + p.Read }

// removed is how many rows were read and not wanted.
func (p *planNode) removed() float64 {
	n := (p.Filtered + p.Unjoined) * p.Loops
	for i := range p.Plans {
		n += p.Plans[i].removed()
	}
	return n
}

// through has the indexes and kinds of scans by which the plan reads the tables.
func (p *planNode) through() []string {
	var scans []string
	switch {
	case p.Index != "":
		scans = append(scans, p.Index)
	case strings.HasSuffix(p.Kind, "Scan") && p.Relation != "":
		scans = append(scans, p.Kind+" on "+p.Relation)
	}
	for i := range p.Plans {
		scans = append(scans, p.Plans[i].through()...)
	}
	return scans
}

// explained is a store whose server reports the plan of each statement that was executed: the
// plans are those of the engine's own sessions, with all that is cached there.
type explained struct {
	*store
	t     *testing.T
	sql   *pgx.Conn // for all else, not reported
	bySeq string    // the index by which rows are found

	mu    sync.Mutex
	plans []planNode
}

// TestClaimsUnderAnOldSnapshot holds a snapshot from before many messages have passed. Only a few
// claims may walk through what these have left in the index, and a row that becomes visible among
// that is found all the same.
func TestClaimsUnderAnOldSnapshot(t *testing.T) {
	t.Parallel()
	e := newExplained(t, false, false)
	old, err := e.leases.Begin(t.Context())
	ok(t, err)
	_, err = old.Exec(t.Context(), `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT 1`)
	ok(t, err)
	const passed, waiting, some = 150_000, 5000, 50
	e.exec(`INSERT INTO q (headers, visible_at) SELECT '{}', now() - interval '1 hour' FROM generate_series(1, $1::int)`, passed)
	e.exec(`DELETE FROM q`)
	e.exec(`INSERT INTO q (headers) SELECT '{}' FROM generate_series(1, $1::int)`, waiting)
	slow := 0
	for lease := range int64(20) {
		for _, p := range e.executed(func() { e.claimed(lease+1, some) }) {
			if most := 150 + 40*some; p.buffers() > most {
				slow++
			}
		}
	}
	if slow == 0 || slow > 5 { // the first two, and more if the machine pauses
		t.Errorf("%d of 20 claims walked through the index, want the first ones alone", slow)
	}
	var late int64
	ok(t, e.sql.QueryRow(t.Context(), `INSERT INTO q (headers, visible_at) VALUES ('{}', now() - interval '1 hour') RETURNING seq`).Scan(&late))
	for lease, deadline := int64(100), time.Now().Add(patience); ; lease++ {
		if slices.ContainsFunc(e.claimed(lease, some), func(l tablequeue.Lease) bool { return l.Seq == late }) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the row was never claimed")
		}
	}
	ok(t, old.Rollback(t.Context()))
	e.exec(`VACUUM q`)
}

// newExplained creates the queue q, with adopted from a table of NServiceBus.
func newExplained(t *testing.T, pooled, adopted bool) *explained {
	t.Helper()
	needServer(t)
	straight, way := brokertest.PgBouncer(t)
	e := &explained{t: t}
	sql, err := pgx.Connect(t.Context(), straight)
	ok(t, err)
	e.sql = sql
	t.Cleanup(func() { _ = sql.Close(context.Background()) })
	database := pgx.Identifier{sql.Config().Database}.Sanitize()
	for name, value := range map[string]string{
		"session_preload_libraries": "auto_explain", "auto_explain.log_min_duration": "0", "auto_explain.log_level": "notice",
		"auto_explain.log_analyze": "on", "auto_explain.log_buffers": "on", "auto_explain.log_timing": "off", "auto_explain.log_format": "json",
	} {
		e.exec("ALTER DATABASE " + database + " SET " + name + " = '" + value + "'")
	}
	if !pooled {
		way = straight
	}
	cfg, err := pgxpool.ParseConfig(way)
	ok(t, err)
	cfg.ConnConfig.OnNotice = e.noticed
	e.store, err = openStore(t.Context(), cfg, nil, settings{
		Settings: dialect.Settings{Schema: "public", MaxTx: 1, Endpoint: "explained"}, address: address{pooled: pooled},
	})
	ok(t, err)
	t.Cleanup(func() { _ = e.Close() })
	e.bySeq = "q_pkey"
	for _, q := range []string{"q", "out"} {
		if adopted && q == "q" {
			e.bySeq = "q_seq_key"
			ok(t, nservicebus.CreateQueue(t.Context(), e.sql, e.table(q).quoted))
			e.exec(`ALTER TABLE q ` + adoptedColumns)
		} else {
			e.exec(tableDDL(e.table(q)))
		}
		for _, index := range indexes(e.table(q)) {
			e.exec(index)
		}
		e.exec(`ALTER TABLE ` + q + ` SET (autovacuum_enabled = off)`) // the statistics are the test's
	}
	return e
}

func (e *explained) exec(sql string, args ...any) {
	e.t.Helper()
	_, err := e.sql.Exec(e.t.Context(), sql, args...)
	ok(e.t, err)
}

// noticed is called by the connections.
func (e *explained) noticed(_ *pgconn.PgConn, n *pgconn.Notice) {
	_, text, found := strings.Cut(n.Message, "plan:\n")
	if !found {
		return
	}
	var told struct {
		Text string `json:"Query Text"`
		Plan planNode
	}
	if err := json.Unmarshal([]byte(text), &told); err != nil {
		e.t.Errorf("%v: %s", err, text)
	}
	told.Plan.text, told.Plan.rawPlan = told.Text, text
	e.mu.Lock()
	defer e.mu.Unlock()
	e.plans = append(e.plans, told.Plan)
}

// executed returns the plans of what do has executed on the queue.
func (e *explained) executed(do func()) []planNode { return e.executedOn("q", do) }

// executedOn returns the plans of what do has executed on the table of that name.
func (e *explained) executedOn(name string, do func()) []planNode {
	e.mu.Lock()
	e.plans = nil
	e.mu.Unlock()
	do()
	e.mu.Lock()
	defer e.mu.Unlock()
	var on []planNode
	for _, p := range e.plans {
		if strings.Contains(p.text, e.table(name).quoted) {
			on = append(on, p)
		}
	}
	return on
}

// claimed leases n rows.
func (e *explained) claimed(lease int64, n int) []tablequeue.Lease {
	e.t.Helper()
	rows, _, err := e.Claim(e.t.Context(), tablequeue.Claim{Queue: "q", Limit: n, Lease: lease, For: time.Minute, Owner: "me"}, nil)
	ok(e.t, err)
	leases := make([]tablequeue.Lease, n)
	for i := range leases {
		leases[i] = tablequeue.Lease{Seq: int64(-1 - i), ID: lease} // of no row
		if i < len(rows) {
			leases[i].Seq = rows[i].Seq
		}
	}
	return leases
}

func unitsOf(verb tablequeue.Verb, leases []tablequeue.Lease) []*tablequeue.Unit {
	all := make([]*tablequeue.Unit, len(leases))
	for i, l := range leases {
		all[i] = &tablequeue.Unit{Verb: verb, Queue: "q", Lease: l}
		if verb == tablequeue.Delete {
			all[i].Rows = []tablequeue.Row{{Queue: "out", ID: "id", Headers: []byte("{}")}}
		}
	}
	return all
}

// statistics are what the planner knows of a queue before the test fills it.
var statistics = []struct {
	name string
	make []string
}{
	{"never gathered", nil},
	{"of an empty file", []string{`VACUUM ANALYZE q`}},
	{"of a drained queue", []string{`INSERT INTO q (headers) SELECT '{}' FROM generate_series(1, 10000)`, `DELETE FROM q`, `VACUUM q`, `VACUUM q`}},
	{"of a full queue", []string{`INSERT INTO q (headers) SELECT '{}' FROM generate_series(1, 10000)`, `VACUUM ANALYZE q`, `DELETE FROM q`}},
}

// Every statement on a queue reads the rows that it is about, by an index, however wrong the
// planner's statistics are, and also where its plan was made when the queue was empty: a burst
// after an idle time is that.
func TestStatementsReadNoMoreThanTheirRows(t *testing.T) {
	t.Parallel()
	forStatistics(t, func(t *testing.T, prepare []string) { plansOfQueue(t, false, prepare) })
	t.Run("adopted", func(t *testing.T) {
		forStatistics(t, func(t *testing.T, prepare []string) { newExplained(t, false, true).readsOnlyItsRows(prepare, 100_000) })
	})
}

// The same statements through pgbouncer, which are planned anew each time.
func TestChaosPlansThroughPgBouncer(t *testing.T) {
	brokertest.Fault(t)
	for name, of := range map[string]func(t *testing.T, pooled bool, prepare []string){"queue": plansOfQueue, "inbox": plansOfInbox, "records": plansOfRecords} {
		t.Run(name, func(t *testing.T) {
			forStatistics(t, func(t *testing.T, prepare []string) { of(t, true, prepare) })
		})
	}
}

// forStatistics runs test with each state of the statistics, beside the others.
func forStatistics(t *testing.T, test func(t *testing.T, prepare []string)) {
	for _, known := range statistics {
		t.Run(known.name, func(t *testing.T) {
			t.Parallel()
			test(t, known.make)
		})
	}
}

func plansOfQueue(t *testing.T, pooled bool, prepare []string) {
	full := 100_000
	if os.Getenv("HOLDFAST_SOAK") != "" {
		full = 1_000_000
	}
	newExplained(t, pooled, false).readsOnlyItsRows(prepare, full)
}

// readsOnlyItsRows executes each statement with the statistics that prepare leaves, in a queue of
// up to full rows.
func (e *explained) readsOnlyItsRows(prepare []string, full int) {
	e.t.Helper()
	for _, sql := range prepare {
		e.exec(sql)
	}
	rows := 0
	for _, n := range []int{0, 1000, full} {
		e.exec(`INSERT INTO q (headers) SELECT '{}' FROM generate_series(1, $1::int)`, n-rows)
		rows = n
		e.readsItsRows(n)
	}
}

// readsItsRows executes each statement in a queue of n rows.
func (e *explained) readsItsRows(n int) {
	e.t.Helper()
	const some = 20
	ctx := e.t.Context()
	var last int64
	ok(e.t, e.sql.QueryRow(ctx, `SELECT coalesce(max(seq), 1) FROM q`).Scan(&last))
	var a, b, c []tablequeue.Lease
	for _, st := range []struct {
		name    string
		rows    int
		through string // the only scan of q; empty: any that is not too large
		do      func()
	}{
		{"claim", some, "", func() { a = e.claimed(1, some) }},
		{"claim again", some, "", func() { b = e.claimed(2, some) }},
		{"claim once more", some, "", func() { c = e.claimed(3, some) }},
		{"renew", some, e.bySeq, func() {
			_, err := e.Renew(ctx, "q", a, time.Minute)
			ok(e.t, err)
		}},
		{"retry", some, e.bySeq, func() { ok(e.t, e.Flush(ctx, unitsOf(tablequeue.Retry, a))) }},
		{"complete", some, e.bySeq, func() { ok(e.t, e.Flush(ctx, unitsOf(tablequeue.Delete, b))) }},
		{"complete in transactions", 1, e.bySeq, func() { e.inTransactions(c[:10]) }},
		{"cancel", 1, e.bySeq, func() {
			_, err := e.Cancel(ctx, "q", last)
			ok(e.t, err)
		}},
		{"take", 1, e.bySeq, func() {
			u := &tablequeue.Unit{Verb: tablequeue.Delete, Queue: "q", Lease: tablequeue.Lease{Seq: last - 1, ID: 4}}
			ok(e.t, e.Take(ctx, u))
		}},
		{"abandon", some, "", func() { ok(e.t, e.Abandon(ctx, "q", "me", time.Minute)) }},
		{"abandon claims", some, "", func() { ok(e.t, e.AbandonClaims(ctx, "q", []int64{3}, time.Minute)) }},
		{"sweep", some, "", func() {
			_, err := e.SweepSome(ctx, "q")
			ok(e.t, err)
		}},
		{"last", 1, e.bySeq, func() {
			_, err := e.Last(ctx, "q")
			ok(e.t, err)
		}},
		{"browse", some, e.bySeq, func() {
			_, err := e.Browse(ctx, tablequeue.Page{Queue: "q", After: last - 1000, Last: last, Limit: some})
			ok(e.t, err)
		}},
	} {
		plans := e.executed(st.do)
		if len(plans) == 0 && n > 0 {
			e.t.Errorf("%s: the server reported no plan", st.name)
		}
		for _, p := range plans {
			// A row costs its place in each of three or four indexes, in its own table and in that
			// which is sent to.
			if most := 150 + 40*st.rows; p.buffers() > most {
				e.t.Errorf("%s, %d rows in the queue: %d buffers for %d rows, want at most %d: %s", st.name, n, p.buffers(), st.rows, most, p.rawPlan)
			}
			if most := float64(3 * some); p.removed() > most {
				e.t.Errorf("%s, %d rows in the queue: read %v rows in vain, want at most %v: %s", st.name, n, p.removed(), most, p.rawPlan)
			}
			for _, scan := range p.through() {
				if st.through != "" && scan != st.through && n > 1000 {
					e.t.Errorf("%s, %d rows in the queue: goes through %s, want %s: %s", st.name, n, scan, st.through, p.rawPlan)
				}
			}
		}
	}
}

// inTransactions completes rows, each in a transaction of a handler.
func (e *explained) inTransactions(leases []tablequeue.Lease) {
	e.t.Helper()
	for i, u := range unitsOf(tablequeue.Delete, leases) {
		tx, err := e.Begin(e.t.Context())
		ok(e.t, err)
		h := tx.(*handlerTx)
		lock := rowLock{wanted: i%2 == 1, table: e.table("q"), lease: u.Lease, hold: func() {}}
		if lock.wanted && u.Lease.Seq > 0 {
			h.user.lock = lock
		}
		_, err = h.user.Exec(e.t.Context(), "SELECT 1")
		ok(e.t, err)
		ok(e.t, tx.Complete(e.t.Context(), u))
	}
}
