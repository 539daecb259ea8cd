package sqlserver

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	mssql "github.com/microsoft/go-mssqldb"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

// Parts of statements that tell them apart.
const (
	claimPart  = "UPDATE fit"
	removePart = "DELETE q OUTPUT"
	updatePart = "r.after_us % 1000000, dateadd(second, r.after_us / 1000000 % 86400, dateadd(day, r.after_us / 1000000 / 86400, @now))),\n\tdelivery_count"
	insertPart = "INSERT INTO"

	columnsPart = "sys.columns AS c WHERE c.object_id ="
)

func TestClaimReadsRows(t *testing.T) {
	f, s := newFake(t, map[string]answer{claimPart: rowsOf(
		[]driver.Value{int64(7), "a", "{}", []byte("body"), int64(2), int64(0)},
		[]driver.Value{int64(8), "b", "{}", nil, int64(1), int64(1)},
	)})
	rows, next, err := s.Claim(t.Context(), tablequeue.Claim{Queue: "q", Limit: 5, Lease: 99, For: time.Minute, Owner: "me"}, nil)
	ok(t, err)
	want := []tablequeue.Claimed{
		{Seq: 7, ID: "a", Headers: "{}", Body: []byte("body"), Count: 2},
		{Seq: 8, ID: "b", Headers: "{}", Count: 1, Expired: true},
	}
	if diff := cmp.Diff(want, rows); diff != "" || next != 0 {
		t.Errorf("next %v, rows (-want +got):\n%s", next, diff)
	}
	args := map[string]any{"limit": 5, "for": int64(60_000_000), "lease": int64(99), "owner": mssql.NVarCharMax("me"), "bytes": int64(math.MaxInt64)}
	if diff := cmp.Diff(args, f.take()[0].args); diff != "" {
		t.Error(diff)
	}
}

func TestClaimOfNothingTellsWhenTheNextRowIsDue(t *testing.T) {
	now := time.Now()
	_, s := newFake(t, map[string]answer{
		"[due]":   claimed(now, int64(1500)),
		"[empty]": claimed(now, nil),
	})
	for queue, want := range map[string]time.Duration{"due": 1500 * time.Microsecond, "empty": 0} {
		rows, next, err := s.Claim(t.Context(), tablequeue.Claim{Queue: queue, Limit: 1}, nil)
		if err != nil || len(rows) != 0 || next != want {
			t.Errorf("%s: %d rows, next %v, error %v; want none, %v", queue, len(rows), next, err, want)
		}
	}
}

// claimed is the answer to a claim of no rows: the server's time, and the microseconds until the
// next row is due.
func claimed(now time.Time, next driver.Value) answer {
	return answer{sets: [][][]driver.Value{{}, {{now, next}}}}
}

func TestRenewTellsWhichLeasesAreLost(t *testing.T) {
	f, s := newFake(t, map[string]answer{"OUTPUT r.n": numbers(0, 2)})
	lost, err := s.Renew(t.Context(), "q", []tablequeue.Lease{{Seq: 1, ID: 10}, {Seq: 2, ID: 20}, {Seq: 3, ID: 1 << 62}}, time.Second)
	ok(t, err)
	if diff := cmp.Diff([]bool{false, true, false}, lost); diff != "" {
		t.Error(diff)
	}
	got := f.take()[0].args
	if diff := cmp.Diff(mssql.NVarCharMax("[[0,1,10],[1,2,20],[2,3,4611686018427387904]]"), got["rows"]); diff != "" {
		t.Error(diff)
	}
}

func TestWritesOneStatementWithoutATransaction(t *testing.T) {
	f, s := newFake(t, map[string]answer{removePart: numbers(1), insertPart: numbers(5)})
	removed := []*tablequeue.Unit{
		{Verb: tablequeue.Delete, Queue: "q", Lease: tablequeue.Lease{Seq: 1, ID: 10}, Lost: true},
		{Verb: tablequeue.Delete, Queue: "q", Lease: tablequeue.Lease{Seq: 2, ID: 20}, Lost: true},
	}
	ok(t, s.Flush(t.Context(), removed))
	if !removed[0].Lost || removed[1].Lost {
		t.Error("the lease that was hit is lost, or the other is not")
	}
	ok(t, s.Flush(t.Context(), []*tablequeue.Unit{{Rows: []tablequeue.Row{{Queue: "q", ID: "a", Headers: []byte("{}")}}}}))
	for _, a := range f.take() {
		if a.tx || a.text == "begin" {
			t.Errorf("a transaction for one statement: %s", a.text)
		}
	}
}

// Several statements are one transaction, each is for all units of a queue, and what was sent with
// a lost lease is not inserted.
func TestWritesABatchInOneTransaction(t *testing.T) {
	f, s := newFake(t, map[string]answer{removePart: numbers(1), updatePart: numbers(0, 1), "[out]": numbers(41)})
	row := func(id string) []tablequeue.Row {
		return []tablequeue.Row{{Queue: "out", ID: id, Headers: []byte("{}")}}
	}
	units := []*tablequeue.Unit{
		{Verb: tablequeue.Delete, Queue: "q", Lease: tablequeue.Lease{Seq: 1, ID: 10}, Rows: row("lost")},
		{Verb: tablequeue.Retry, Queue: "q", Lease: tablequeue.Lease{Seq: 2, ID: 20}, After: time.Second, Note: "it's \"out\""},
		{Verb: tablequeue.Delete, Queue: "q", Lease: tablequeue.Lease{Seq: 3, ID: 30}, Rows: row("kept")},
		{Verb: tablequeue.Release, Queue: "q", Lease: tablequeue.Lease{Seq: 4, ID: 40}},
	}
	ok(t, s.Flush(t.Context(), units))
	calls := f.take()
	var kinds []string
	for _, c := range calls {
		for _, kind := range []string{"begin", removePart, updatePart, insertPart, "commit", "rollback"} {
			if strings.Contains(c.text, kind) {
				kinds = append(kinds, kind)
			}
		}
	}
	if diff := cmp.Diff([]string{"begin", removePart, updatePart, insertPart, "commit"}, kinds); diff != "" {
		t.Fatal(diff)
	}
	for i, want := range map[int]string{
		1: "[[0,1,10],[1,3,30]]",
		2: `[[0,2,20,1000000,0,"it's \"out\""],[1,4,40,0,1]]`,
		3: `[{"n":0,"headers":{},"body_from":1,"body_size":0,"at_us":0,"after_us":0,"ttl_us":0}]`,
	} {
		if diff := cmp.Diff(mssql.NVarCharMax(want), calls[i].args["rows"]); diff != "" {
			t.Error(diff)
		}
		if !calls[i].tx {
			t.Errorf("outside the transaction: %s", calls[i].text)
		}
	}
	if !units[0].Lost || units[1].Lost || units[2].Lost || units[3].Lost {
		t.Error("the wrong leases are lost")
	}
}

func TestRowsTravelInOneParameterEach(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 6000, time.UTC)
	encoded, bodies := encodeRows([]*tablequeue.Row{
		{ID: "a", Headers: []byte(`{"k":"<é>"}`), Body: []byte("one"), At: at, TTL: time.Hour},
		{ID: "b", Headers: []byte(`{}`), After: time.Second},
		{ID: "c", Headers: []byte(`{}`), Body: []byte{}},
		{ID: "d", Headers: []byte(`{}`), Body: []byte("\x00\xff"), At: time.Unix(-1, 0)},
	})
	want := []jsonRow{
		{N: 0, Headers: json.RawMessage(`{"k":"<é>"}`), BodyFrom: 1, BodySize: 3, At: at.UnixMicro(), TTL: 3_600_000_000},
		{N: 1, Headers: json.RawMessage(`{}`), BodyFrom: 4, After: 1_000_000},
		{N: 2, Headers: json.RawMessage(`{}`), BodyFrom: 4},
		{N: 3, Headers: json.RawMessage(`{}`), BodyFrom: 4, BodySize: 2, At: 1},
	}
	if diff := cmp.Diff(want, encoded); diff != "" {
		t.Error(diff)
	}
	if !strings.HasPrefix(string(bodies), "one\x00\xff") || len(bodies) != 512 {
		t.Errorf("%d bytes of bodies", len(bodies))
	}
}

func TestBodiesHaveOneOfAFewLengths(t *testing.T) {
	for size, want := range map[int]int{0: 512, 512: 512, 513: 1024, 4096: 4096, 4097: 8001, 8001: 8001, 100_000: 100_000} {
		if got := len(padded(make([]byte, size))); got != want {
			t.Errorf("%d bytes become %d, want %d", size, got, want)
		}
	}
}

// The server returns the keys in no particular order, but gives them in that of the rows.
func TestRowsGetTheirKeysInOrder(t *testing.T) {
	_, s := newFake(t, map[string]answer{insertPart: numbers(12, 10, 11)})
	u := &tablequeue.Unit{Rows: []tablequeue.Row{
		{Queue: "q", Headers: []byte("{}"), WantSeq: true}, {Queue: "q", Headers: []byte("{}")}, {Queue: "q", Headers: []byte("{}"), WantSeq: true},
	}}
	ok(t, s.Flush(t.Context(), []*tablequeue.Unit{u}))
	if got := []int64{u.Rows[0].Seq, u.Rows[1].Seq, u.Rows[2].Seq}; !cmp.Equal(got, []int64{10, 0, 12}) {
		t.Errorf("keys %v", got)
	}
}

func TestFailuresAreToldApart(t *testing.T) {
	both := []*tablequeue.Unit{
		{Verb: tablequeue.Delete, Queue: "q", Rows: []tablequeue.Row{{Queue: "out", Headers: []byte("{}")}}},
	}
	one := []*tablequeue.Unit{{Verb: tablequeue.Delete, Queue: "q"}}
	for name, test := range map[string]struct {
		answers map[string]answer
		units   []*tablequeue.Unit
		want    tablequeue.Class
	}{
		"deadlock":                      {map[string]answer{removePart: serverError(1205, 13)}, both, tablequeue.Conflict},
		"lock timeout":                  {map[string]answer{removePart: serverError(1222, 16)}, one, tablequeue.Locked},
		"no such table":                 {map[string]answer{removePart: numbers(0), "[out]": serverError(208, 16)}, both, tablequeue.Refused},
		"no right to insert":            {map[string]answer{removePart: numbers(0), "[out]": serverError(229, 14)}, both, tablequeue.Refused},
		"a trigger's error":             {map[string]answer{removePart: serverError(50000, 18)}, one, tablequeue.Refused},
		"full filegroup":                {map[string]answer{removePart: serverError(1105, 17)}, one, tablequeue.Impeded},
		"log full":                      {map[string]answer{removePart: serverError(9002, 17)}, one, tablequeue.Unavailable},
		"read only":                     {map[string]answer{removePart: serverError(3906, 16)}, one, tablequeue.Unavailable},
		"Azure is busy":                 {map[string]answer{removePart: serverError(40501, 16)}, one, tablequeue.Unavailable},
		"cut at a lone statement":       {map[string]answer{removePart: {err: io.EOF}}, one, tablequeue.Unknown},
		"cut before the commit":         {map[string]answer{removePart: {err: io.EOF}}, both, tablequeue.Unavailable},
		"cut at the commit":             {map[string]answer{removePart: numbers(0), insertPart: numbers(1), "commit": {err: io.EOF}}, both, tablequeue.Unknown},
		"killed by the server":          {map[string]answer{removePart: serverError(596, 21)}, one, tablequeue.Unknown},
		"deadlock at the commit":        {map[string]answer{removePart: numbers(0), insertPart: numbers(1), "commit": serverError(1205, 13)}, both, tablequeue.Conflict},
		"cannot begin":                  {map[string]answer{"begin": {err: io.EOF}}, both, tablequeue.Unavailable},
		"never sent on this connection": {map[string]answer{removePart: {err: mssql.RetryableError{}}}, one, tablequeue.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			f, s := newFake(t, test.answers)
			err := s.Flush(t.Context(), test.units)
			if err == nil {
				t.Fatal("no error")
			}
			if got := s.Classify(err); got != test.want {
				t.Errorf("class %v of %v, want %v", got, err, test.want)
			}
			if asked := f.texts(); asked[len(asked)-1] == insertPart {
				t.Error("the transaction was left open")
			}
		})
	}
}

func TestSaysWhichQueueIsMissing(t *testing.T) {
	_, s := newFake(t, map[string]answer{claimPart: serverError(208, 16), columnsPart: column()})
	_, _, err := s.Claim(t.Context(), tablequeue.Claim{Queue: "orders", Limit: 1}, nil)
	isErr(t, err, transport.ErrNoQueue)
	if want := `sqlserver: receive from queue "orders": `; !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	isErr(t, s.Exists(t.Context(), "orders"), transport.ErrNoQueue)
}

func TestAServerThatIsNotReachedHasDoneNothing(t *testing.T) {
	f := &fakeServer{connects: errors.New("no route")}
	s := newStore(connector{f}, dialect.Settings{Schema: "dbo", MaxTx: 1})
	defer func() { ok(t, s.Close()) }()
	err := s.Flush(t.Context(), []*tablequeue.Unit{{Verb: tablequeue.Delete, Queue: "q"}})
	if got := s.Classify(err); err == nil || got != tablequeue.Unavailable {
		t.Errorf("class %v of %v", got, err)
	}
	if got := s.Classify(errors.New("another's")); got != tablequeue.Failed {
		t.Errorf("class %v of another's error", got)
	}
	if s.connect(t.Context()) == nil {
		t.Error("opened without a server")
	}
}

func TestCutClaimsAreGivenBack(t *testing.T) {
	f, s := newFake(t, map[string]answer{claimPart: {err: io.EOF}})
	_, _, err := s.Claim(t.Context(), tablequeue.Claim{Queue: "q", Limit: 1}, nil)
	if got := s.Classify(err); got != tablequeue.Unknown {
		t.Fatalf("class %v of %v", got, err)
	}
	f.take()
	ok(t, s.AbandonClaims(t.Context(), "q", []int64{5, 6}, time.Second))
	ok(t, s.Abandon(t.Context(), "q", "me", time.Second))
	calls := f.take()
	if diff := cmp.Diff(map[string]any{"for": int64(1_000_000), "leases": mssql.NVarCharMax("[5,6]")}, calls[0].args); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]any{"for": int64(1_000_000), "owner": mssql.NVarCharMax("me")}, calls[1].args); diff != "" {
		t.Error(diff)
	}
}

func TestCancelSaysWhetherItDid(t *testing.T) {
	_, s := newFake(t, map[string]answer{"[new]": numbers(1), "[claimed]": numbers(0)})
	for queue, want := range map[string]bool{"new": true, "claimed": false} {
		if got, err := s.Cancel(t.Context(), queue, 7); err != nil || got != want {
			t.Errorf("%s: %v, %v", queue, got, err)
		}
	}
}

// Where the server is configured with NOCOUNT it reports to no client how many rows a statement has
// changed.
func TestPurgeCountsUnderNOCOUNT(t *testing.T) {
	f, s := newFake(t, map[string]answer{"DELETE FROM due;": numbers(5)})
	if n, err := s.Purge(t.Context(), "q"); err != nil || n != 5 {
		t.Errorf("%d rows purged, %v, want 5", n, err)
	}
	if n := len(f.take()); n != 1 {
		t.Errorf("%d statements, want one", n)
	}
}

// Rows that others have locked are skipped: waiting for them is a deadlock with whoever takes the
// row first.
func TestReleasesSkipLockedRows(t *testing.T) {
	q := newTable("dbo", place{schema: "dbo", table: "q"}, traits{})
	for _, text := range []string{q.abandon, q.orphans} {
		if !strings.Contains(text, dueHint) {
			t.Errorf("no %s in %s", dueHint, text)
		}
	}
}

func TestTakesInOneTransaction(t *testing.T) {
	f, s := newFake(t, map[string]answer{removePart: numbers()})
	u := &tablequeue.Unit{Verb: tablequeue.Delete, Queue: "q", Lease: tablequeue.Lease{Seq: 3, ID: 30}}
	ok(t, s.Take(t.Context(), u))
	if !u.Lost {
		t.Error("a leased row was taken")
	}
	calls := f.take()
	if len(calls) != 4 || calls[0].text != "begin" || calls[3].text != "commit" {
		t.Fatalf("%+v", calls)
	}
	if diff := cmp.Diff(map[string]any{"lease": int64(30), "seq": int64(3)}, calls[1].args); diff != "" {
		t.Error(diff)
	}
}

func TestInstallsUnderALockInOneTransaction(t *testing.T) {
	f, s := newFake(t, nil)
	ok(t, s.Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "a"}, {Name: "b"}}}))
	want := []string{
		"begin", "DECLARE @got int;",
		"IF schema_id(N'dbo') IS NULL EXEC (N'CREATE SCHEMA [dbo]');",
		"IF object_id(N'[dbo].[holdfast_tables]', N'U') IS NULL",
		"IF object_id(N'[dbo].[holdfast_subscriptions]', N'U') IS NULL",
		"IF object_id(N'[dbo].[a]', N'U') IS NULL",
		"IF EXISTS (SELECT 1 FROM [dbo].[holdfast_tables] WHERE name = N'a' AND version > 2)",
		"IF object_id(N'[dbo].[b]', N'U') IS NULL",
		"IF EXISTS (SELECT 1 FROM [dbo].[holdfast_tables] WHERE name = N'b' AND version > 2)",
		"commit",
	}
	if diff := cmp.Diff(want, f.texts()); diff != "" {
		t.Error(diff)
	}
	f.answers = map[string]answer{"[b]": serverError(262, 14)}
	if err := s.Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "a"}, {Name: "b"}}}); err == nil ||
		!strings.Contains(err.Error(), `install: queue "b"`) {
		t.Errorf("without the right to: %v", err)
	}
	if got := f.texts(); got[len(got)-1] != "rollback" {
		t.Errorf("ended with %q", got)
	}
}

func TestScriptIsWhatTheInstallerDoes(t *testing.T) {
	plan := transport.Plan{Queues: []transport.Queue{{Name: "a"}, {Name: "b"}}}
	text, err := (&Transport{}).Script(plan)
	ok(t, err)
	f, s := newFake(t, nil)
	ok(t, s.Install(t.Context(), plan))
	var want strings.Builder
	want.WriteString("SET XACT_ABORT, QUOTED_IDENTIFIER, ANSI_NULLS ON\nGO\n")
	done := f.take()
	for _, a := range done[2 : len(done)-1] { // apart from the transaction and its lock
		want.WriteString(a.text + "\nGO\n")
	}
	if diff := cmp.Diff(want.String(), text); diff != "" {
		t.Error(diff)
	}
	for _, name := range []string{"#a", "a\nGO\nDROP TABLE b", "$(a)"} {
		if _, err := (&Transport{}).Script(transport.Plan{Queues: []transport.Queue{{Name: name}}}); err == nil {
			t.Errorf("a script for the impossible name %q", name)
		}
	}
}

func TestInspectsTheQueuesThatThereAre(t *testing.T) {
	_, s := newFake(t, map[string]answer{
		"sys.tables": rowsOf([]driver.Value{"a"}, []driver.Value{"b"}),
		"[a]":        rowsOf([]driver.Value{int64(3), int64(2), int64(1), int64(1_500_000)}),
		"[b]":        rowsOf([]driver.Value{int64(0), int64(0), int64(0), int64(0)}),
	})
	names, err := s.List(t.Context())
	ok(t, err)
	var stats []transport.QueueStats
	for _, name := range names {
		st, err := s.Inspect(t.Context(), name)
		ok(t, err)
		stats = append(stats, st)
	}
	want := []transport.QueueStats{{Name: "a", Ready: 3, Unsettled: 2, Delayed: 1, Oldest: 1500 * time.Millisecond}, {Name: "b"}}
	if diff := cmp.Diff(want, stats, cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
}

func TestBrowsesAPage(t *testing.T) {
	big := make([]byte, tablequeue.MaxPage+1)
	row := func(seq int64, body []byte) []driver.Value { return []driver.Value{seq, "id", "{}", body, int64(0)} }
	_, s := newFake(t, map[string]answer{
		"coalesce(max(RowVersion), 0)": numbers(9),
		"AND RowVersion <= @last":      rowsOf(row(1, nil), row(2, big), row(3, nil)),
	})
	last, err := s.Last(t.Context(), "q")
	if err != nil || last != 9 {
		t.Fatalf("last %d, %v", last, err)
	}
	found, err := s.Browse(t.Context(), tablequeue.Page{Queue: "q", Last: 9, Limit: 10})
	ok(t, err)
	if len(found) != 2 || found[1].Seq != 2 {
		t.Errorf("%d rows on a page that the second fills", len(found))
	}
}

func TestSubscriptions(t *testing.T) {
	f, s := newFake(t, map[string]answer{"SELECT [type], queue": rowsOf([]driver.Value{"Shop.Paid", "billing"})})
	ok(t, s.Subscribe(t.Context(), "billing", []string{"Shop.Paid", "it's"}))
	if diff := cmp.Diff(map[string]any{"queue": "billing", "types": mssql.NVarCharMax(`["Shop.Paid","it's"]`)}, f.take()[0].args); diff != "" {
		t.Error(diff)
	}
	ok(t, s.Unsubscribe(t.Context(), "billing", []string{"Shop.Paid"}))
	all, err := s.Subscriptions(t.Context())
	ok(t, err)
	if diff := cmp.Diff([]tablequeue.Subscription{{Type: "Shop.Paid", Queue: "billing"}}, all); diff != "" {
		t.Error(diff)
	}
	if err := s.Subscribe(t.Context(), "q", []string{strings.Repeat("t", 301)}); err == nil || !strings.Contains(err.Error(), "at most 300") {
		t.Errorf("a type too long for the key: %v", err)
	}
	f.answers = map[string]answer{"holdfast_subscriptions": serverError(208, 16)}
	_, err = s.Subscriptions(t.Context())
	isErr(t, err, tablequeue.ErrNotInstalled)
}

func TestRemoveDropsAQueueWithItsSubscriptions(t *testing.T) {
	f, s := newFake(t, nil)
	s.tables.Set("q", newTable("dbo", s.place("q"), traits{triggers: true}))
	ok(t, s.Remove(t.Context(), []string{"q"}))
	calls := f.take()
	var texts []string
	for _, c := range calls {
		texts = append(texts, c.text)
	}
	q, in := s.table("q"), s.inbox("q")
	if diff := cmp.Diff([]string{"begin", installLock, in.drop, in.unnote, q.drop, q.forget, s.subscribers().forget, "commit"}, texts); diff != "" {
		t.Fatal(diff)
	}
	if calls[6].args["queue"] != "q" || q.traits.triggers {
		t.Errorf("arguments %v, traits %+v", calls[6].args, q.traits)
	}
	s.Routing = "SubscriptionRouting"
	ok(t, s.Remove(t.Context(), []string{"q"}))
	if calls := f.take(); calls[6].args["queue"] != "q@[dbo]@[shop]" {
		t.Errorf("arguments %v", calls[6].args)
	}
	f.answers = map[string]answer{"DROP TABLE": serverError(50000, 16)}
	if s.Remove(t.Context(), []string{"q"}) == nil {
		t.Error("a table of another kind was removed")
	}
	if texts := f.texts(); texts[len(texts)-1] != "rollback" {
		t.Errorf("asked %q", texts)
	}
}

func TestOpensOnlyWhatItUnderstands(t *testing.T) {
	for want, m := range map[string]Transport{
		"URL is empty":           {},
		"may not be negative":    {URL: "sqlserver://h", Lease: -1},
		"schema name \"#\"":      {URL: "sqlserver://h", Schema: "#"},
		"percent-encoded":        {URL: "sqlserver://sa:hunter%2@h"},
		"URL cannot be parsed (": {URL: "sqlserver://sa:hunter2@h?encrypt=perhaps"},
	} {
		_, err := m.Open(context.Background(), transport.Env{})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter") {
			t.Errorf("%+v: %v, want %q and no password", m, err, want)
		}
	}
}

func TestAConnectorOpensTheConnections(t *testing.T) {
	f := &fakeServer{answers: map[string]answer{databaseAndLevel: rowsOf([]driver.Value{"shop", int64(130)})}}
	c, err := (&Transport{Connector: f}).Open(t.Context(), transport.Env{})
	ok(t, err)
	_, err = c.Dispatch(t.Context(), []transport.Operation{{Queue: "out", Message: &transport.Message{ID: "a"}}})
	if err == nil || !strings.Contains(err.Error(), "0 of 1 rows were inserted") {
		t.Errorf("the fake server answered %v", err)
	}
	ok(t, c.Close())
	_, err = (&Transport{Connector: f, URL: "sqlserver://h"}).Open(t.Context(), transport.Env{})
	if err == nil || !strings.Contains(err.Error(), "set one of them") {
		t.Errorf("both URL and Connector: %v", err)
	}
}

func TestNamesItsConnections(t *testing.T) {
	for url, want := range map[string]string{
		"sqlserver://h":              "holdfast billing",
		"sqlserver://h?app+name=app": "app",
	} {
		cfg, err := (&Transport{URL: url}).config(transport.Env{Endpoint: "billing"})
		if err != nil || cfg.AppName != want {
			t.Errorf("%s: %q, %v", url, cfg.AppName, err)
		}
	}
}

// A trigger may skip some rows of an insert. Outside a transaction the others would be there, and a
// retry would insert them again.
func TestAnInsertThatATriggerCutsIsUndone(t *testing.T) {
	f, s := newFake(t, map[string]answer{"INSERT INTO": numbers(1)})
	s.tables.Set("q", newTable("dbo", s.place("q"), traits{triggers: true}))
	rows := []tablequeue.Row{{Queue: "q", Headers: []byte("{}")}, {Queue: "q", Headers: []byte("{}")}}
	err := s.Flush(t.Context(), []*tablequeue.Unit{{Verb: tablequeue.Send, Rows: rows}})
	if err == nil || !strings.Contains(err.Error(), "1 of 2 rows were inserted: a trigger") || s.Classify(err) != tablequeue.Refused {
		t.Errorf("class %v: %v", s.Classify(err), err)
	}
	if texts := f.texts(); texts[0] != "begin" || texts[len(texts)-1] != "rollback" {
		t.Errorf("asked %q", texts)
	}
}
