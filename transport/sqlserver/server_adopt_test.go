//go:build mssql

package sqlserver

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

// nsbTable creates a queue table as NServiceBus does.
func (w *world) nsbTable(name string) {
	table := quote(w.schema, name)
	w.exec(`CREATE TABLE ` + table + ` (Id uniqueidentifier NOT NULL, CorrelationId varchar(255), ReplyToAddress varchar(255),
	Recoverable bit NOT NULL, Expires datetime, Headers nvarchar(max) NOT NULL, Body varbinary(max), RowVersion bigint IDENTITY(1,1) NOT NULL);
CREATE NONCLUSTERED INDEX Index_RowVersion ON ` + table + ` (RowVersion);
CREATE NONCLUSTERED INDEX Index_Expires ON ` + table + ` (Expires) INCLUDE (Id, RowVersion) WHERE Expires IS NOT NULL`)
}

// nsbSend inserts n rows as NServiceBus does.
func (w *world) nsbSend(name string, n int) {
	for i := range n {
		w.exec(fmt.Sprintf(`INSERT INTO %s (Id, Recoverable, Headers, Body) VALUES (newid(), 1, N'{"n":"%d"}', 0x01)`, quote(w.schema, name), i))
	}
}

func (w *world) adopting() *store {
	s := w.store("")
	s.adopts = true
	return s
}

func headersOf(t *testing.T, s *store, queue string) (all []string) {
	t.Helper()
	rows, _, err := s.Claim(t.Context(), tablequeue.Claim{Queue: queue, Limit: 100, Lease: 1, For: time.Minute, Owner: "me"}, nil)
	ok(t, err)
	slices.SortFunc(rows, func(a, b tablequeue.Claimed) int { return int(a.Seq - b.Seq) })
	for _, r := range rows {
		all = append(all, r.Headers)
	}
	return all
}

func TestAnAdoptedTableKeepsItsMessagesOnAServer(t *testing.T) {
	for name, install := range map[string]func(w *world, queue string){
		"installer": func(w *world, queue string) { ok(w.t, w.adopting().Install(w.t.Context(), plan(queue))) },
		"script": func(w *world, queue string) {
			text, err := (&Transport{Schema: w.schema, Adopt: true}).Script(plan(queue))
			ok(w.t, err)
			for _, batch := range strings.Split(strings.TrimSuffix(text, "GO\n"), "\nGO\n") {
				w.exec(batch)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			const queue = "Net.[Peer's]"
			w := worlds{}.of(t)
			w.nsbTable(queue)
			w.nsbSend(queue, 3)
			for range 2 {
				install(w, queue)
			}
			w.nsbSend(queue, 2)
			s := w.store("")
			ok(t, s.Exists(t.Context(), queue))
			ok(t, s.Flush(t.Context(), []*tablequeue.Unit{{Rows: []tablequeue.Row{{Queue: queue, Headers: []byte(`{"n":"ours"}`)}}}}))
			want := []string{`{"n":"0"}`, `{"n":"1"}`, `{"n":"2"}`, `{"n":"0"}`, `{"n":"1"}`, `{"n":"ours"}`}
			if got := headersOf(t, s, queue); !slices.Equal(got, want) {
				t.Errorf("received %q, want %q", got, want)
			}
		})
	}
}

func TestAnAdoptionRepeatsWhileATableIsLockedOnAServer(t *testing.T) {
	w := worlds{}.of(t)
	w.nsbTable("in")
	w.nsbSend("in", 1)
	db, err := sql.Open("sqlserver", testURL(t))
	ok(t, err)
	defer db.Close()
	tx, err := db.BeginTx(t.Context(), nil)
	ok(t, err)
	_, err = tx.ExecContext(t.Context(), `INSERT INTO `+quote(w.schema, "in")+` (Id, Recoverable, Headers) VALUES (newid(), 1, N'{}')`)
	ok(t, err)
	adopted := make(chan error, 1)
	go func() { adopted <- w.adopting().Install(context.WithoutCancel(t.Context()), plan("in")) }()
	w.nsbSend("in", 20) // each waits for one attempt at most
	select {
	case err := <-adopted:
		t.Fatalf("adopted beside an open transaction: %v", err)
	default:
	}
	ok(t, tx.Commit())
	ok(t, <-adopted)
	if got := headersOf(t, w.store(""), "in"); len(got) != 22 {
		t.Errorf("%d rows, want 22", len(got))
	}
}

func TestTablesOfOthersAreNotAdoptedOnAServer(t *testing.T) {
	for want, change := range map[string]string{
		"column [Priority] int(4)": `ALTER TABLE %s ADD Priority int`,
		"trigger [":                `CREATE TRIGGER %s_trigger ON %[1]s AFTER INSERT AS SET NOCOUNT ON`,
		"check constraint [small]": `ALTER TABLE %s ADD CONSTRAINT small CHECK (RowVersion < 1000)`,
	} {
		t.Run(want, func(t *testing.T) {
			w := worlds{}.of(t)
			w.nsbTable("q")
			w.exec(fmt.Sprintf(change, w.schema+".q"))
			err := w.adopting().Install(t.Context(), plan("q"))
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q", err, want)
			}
		})
	}
}

func TestATableOfVersion1IsRewrittenOnAServer(t *testing.T) {
	w := worlds{}.of(t)
	s := w.adopting()
	ok(t, s.Install(t.Context(), plan("other"))) // the table of versions
	w.exec(`CREATE TABLE ` + w.schema + `.q (seq bigint IDENTITY PRIMARY KEY CLUSTERED, Id nvarchar(max) NOT NULL DEFAULT convert(nvarchar(36), newid()),
	CorrelationId varchar(255), ReplyToAddress varchar(255), Recoverable bit, Expires datetime2(7), Headers nvarchar(max) NOT NULL, Body varbinary(max),
	visible_at datetime2(7) NOT NULL DEFAULT sysutcdatetime(), delivery_count int NOT NULL DEFAULT 0, lease_id bigint, lease_owner nvarchar(max),
	last_error nvarchar(max), INDEX holdfast_due NONCLUSTERED (visible_at, seq));
INSERT INTO ` + w.schema + `.q (Id, Headers) VALUES (N'no uuid', N'{"n":"1"}'), (N'` + anID + `', N'{"n":"2"}')`)
	old := w.store("")
	if got := headersOf(t, old, "q"); len(got) != 2 {
		t.Errorf("received %q of version 1", got)
	}
	ok(t, old.Abandon(t.Context(), "q", "me", time.Minute))
	for range 2 {
		ok(t, s.Install(t.Context(), plan("q")))
	}
	rows, err := old.Browse(t.Context(), tablequeue.Page{Queue: "q", Last: 10, Limit: 10})
	ok(t, err)
	if len(rows) != 2 || rows[0].ID == "no uuid" || rows[1].ID != anID {
		t.Errorf("rows %+v", rows)
	}
}

// A queue of this transport becomes one of NServiceBus with its delayed messages, and is taken over
// again.
func TestAQueueIsHandedOverAndTakenBackOnAServer(t *testing.T) {
	const queue = "Go.[Peer's]"
	w := worlds{}.of(t)
	s := w.adopting()
	ok(t, s.Install(t.Context(), plan(queue)))
	row := func(n string, after time.Duration) tablequeue.Row {
		return tablequeue.Row{Queue: queue, Headers: []byte(`{"n":"` + n + `"}`), After: after}
	}
	ok(t, s.Flush(t.Context(), []*tablequeue.Unit{{Rows: []tablequeue.Row{row("now", 0), row("late", time.Hour)}}}))
	ok(t, s.PrepareHandOver(t.Context(), queue))
	moved, err := s.MoveDelayed(t.Context(), queue, queue, 10, same)
	if err != nil || moved != 1 {
		t.Fatalf("moved %d, %v", moved, err)
	}
	if _, err := s.EndHandOver(t.Context(), queue, same); err != nil || !s.Foreign(queue) {
		t.Fatalf("foreign %v, %v", s.Foreign(queue), err)
	}
	w.exec(`WITH message AS (SELECT TOP (1) * FROM ` + quote(w.schema, queue) + ` WITH (UPDLOCK, READPAST, ROWLOCK) ORDER BY RowVersion)
DELETE FROM message; IF @@ROWCOUNT <> 1 THROW 50000, N'NServiceBus received nothing', 1`)
	w.exec(`UPDATE ` + quote(w.schema, queue+tablequeue.DelayedSuffix) + ` SET Due = dateadd(second, -1, getutcdate())`)
	ok(t, s.Install(t.Context(), plan(queue)))
	if n, _, err := s.MoveDue(t.Context(), queue, 10); err != nil || n != 1 {
		t.Errorf("moved %d that are due, %v", n, err)
	}
	if got := headersOf(t, s, queue); !slices.Equal(got, []string{`{"n":"late"}`}) {
		t.Errorf("received %q", got)
	}
}
