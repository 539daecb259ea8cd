package sqlserver

import (
	"database/sql/driver"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// firstColumns are the columns of a table of version 1.
var firstColumns = column("seq", "Id", "CorrelationId", "ReplyToAddress", "Recoverable", "Expires", "Headers", "Body", "visible_at",
	"delivery_count", "lease_id", "lease_owner", "last_error")

// A statement on a table of version 1 is refused for its column RowVersion, and is repeated with
// seq.
func TestATableOfVersion1IsUsedByItsColumns(t *testing.T) {
	refused := serverError(invalidColumn, 16)
	lease := tablequeue.Lease{Seq: 7, ID: 10}
	page := tablequeue.Page{Queue: "q", Last: 9, Limit: 10}
	row := []driver.Value{int64(7), "order-1", "{}", nil, int64(1), int64(0)}
	for name, test := range map[string]struct {
		answers map[string]answer
		do      func(s *store) error
	}{
		"claim": {map[string]answer{"inserted.RowVersion": refused, "inserted.seq, inserted.Id": rowsOf(row)}, func(s *store) error {
			rows, _, err := s.Claim(t.Context(), tablequeue.Claim{Queue: "q", Limit: 1, Lease: 1, For: time.Minute}, nil)
			if err == nil && (len(rows) != 1 || rows[0].ID != "order-1") {
				t.Errorf("rows %+v", rows)
			}
			return err
		}},
		"renew": {map[string]answer{"q.RowVersion": refused, "q.seq": numbers(0)}, func(s *store) error {
			_, err := s.Renew(t.Context(), "q", []tablequeue.Lease{lease}, time.Second)
			return err
		}},
		"complete": {map[string]answer{"q.RowVersion": refused, "q.seq": numbers(0)}, func(s *store) error {
			return s.Flush(t.Context(), []*tablequeue.Unit{{Verb: tablequeue.Delete, Queue: "q", Lease: lease}})
		}},
		"send": {map[string]answer{"inserted.RowVersion": refused, "OUTPUT inserted.seq": numbers(7)}, func(s *store) error {
			return s.Flush(t.Context(), []*tablequeue.Unit{{Rows: []tablequeue.Row{{Queue: "q", ID: "order-1", Headers: []byte("{}")}}}})
		}},
		"cancel": {map[string]answer{"RowVersion = @seq": refused, "seq = @seq": numbers(1)}, func(s *store) error {
			_, err := s.Cancel(t.Context(), "q", 7)
			return err
		}},
		"last": {map[string]answer{"max(RowVersion)": refused, "max(seq)": numbers(7)}, func(s *store) error {
			_, err := s.Last(t.Context(), "q")
			return err
		}},
		"browse": {map[string]answer{"RowVersion > @after": refused, "seq > @after": rowsOf(row[:5])}, func(s *store) error {
			_, err := s.Browse(t.Context(), page)
			return err
		}},
		"purge": {map[string]answer{"RowVersion, visible_at": refused, "seq, visible_at": numbers(3)}, func(s *store) error {
			_, err := s.Purge(t.Context(), "q")
			return err
		}},
		"take": {map[string]answer{"RowVersion = @seq": refused, "q.seq": numbers(0)}, func(s *store) error {
			return s.Take(t.Context(), &tablequeue.Unit{Verb: tablequeue.Delete, Queue: "q", Lease: lease})
		}},
		"make visible": {map[string]answer{"q.RowVersion": refused}, func(s *store) error {
			return s.Hasten(t.Context(), "q", []int64{7})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			test.answers[columnsPart] = firstColumns
			f, s := newFake(t, test.answers)
			ok(t, test.do(s))
			calls := f.take()
			if last := calls[len(calls)-1].text; !s.table("q").traits.first || strings.Contains(last, "RowVersion") {
				t.Errorf("traits %+v, and last %s", s.table("q").traits, last)
			}
		})
	}
}

// An installer of this version leaves the tables of version 1 as they are, and gives new tables
// version 2.
func TestTablesKeepTheVersionThatTheyWereMadeBy(t *testing.T) {
	q := newTable("dbo", place{schema: "dbo", table: "q"}, traits{})
	for _, want := range []string{"version > 2)", "CASE WHEN col_length(N'[dbo].[q]', N'RowVersion') IS NULL THEN 1 ELSE 2 END"} {
		if !strings.Contains(q.note, want) {
			t.Errorf("no %q in %s", want, q.note)
		}
	}
}

// A table that other systems read too has a unique index on Id.
func TestOnlySharedQueuesHaveAUniqueIndexOnId(t *testing.T) {
	f, s := newFake(t, nil)
	ok(t, s.Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "in"}, {Name: "error", Shared: true}}}))
	var unique []bool
	for _, c := range f.take() {
		if strings.Contains(c.text, "Id uniqueidentifier NOT NULL DEFAULT newid()") {
			unique = append(unique, strings.Contains(c.text, "INDEX holdfast_id UNIQUE NONCLUSTERED (Id)"))
		}
	}
	if diff := cmp.Diff([]bool{false, true}, unique); diff != "" {
		t.Error(diff)
	}
}

// foreignRow is a recorded message of a .NET endpoint. Its SQL transports store the same texts.
type foreignRow struct{ What, Table, ID, Headers, Body string }

func recordedRows(t *testing.T) (rows []foreignRow) {
	t.Helper()
	text, err := os.ReadFile("../../testdata/nservicebus/postgresql.json")
	ok(t, err)
	ok(t, json.Unmarshal(text, &rows))
	return rows
}

// foreignPart tells the statements on a foreign table apart from those on one of ours.
const (
	foreignBrowse = "convert(varbinary(max), Body), 0 FROM [dbo].[foreign]"
	foreignTake   = "DELETE FROM [dbo].[foreign]"
)

func browsingAnswers(rows []foreignRow) map[string]answer {
	found := [][]driver.Value{}
	for i, r := range rows {
		found = append(found, []driver.Value{int64(i + 1), r.ID, r.Headers, []byte(r.Body), int64(0)})
	}
	answers := foreignAnswers()
	answers["max(RowVersion)"] = numbers(int64(len(rows)))
	answers["delivery_count FROM [dbo].[foreign]"] = serverError(invalidColumn, 16)
	answers[foreignBrowse] = rowsOf(found...)
	answers["SET lease_id = @lease"] = serverError(invalidColumn, 16)
	answers["[foreign] WITH (INDEX"] = serverError(missingIndex, 16)
	return answers
}

func TestRowsOfNServiceBusAreBrowsedAsRecorded(t *testing.T) {
	rows := recordedRows(t)
	_, s := newFake(t, browsingAnswers(rows))
	last, err := s.Last(t.Context(), "foreign")
	if err != nil || last != int64(len(rows)) {
		t.Fatalf("last %d, %v", last, err)
	}
	found, err := s.Browse(t.Context(), tablequeue.Page{Queue: "foreign", Last: last, Limit: 100})
	ok(t, err)
	if len(found) != len(rows) {
		t.Fatalf("%d rows of %d", len(found), len(rows))
	}
	for i, r := range rows {
		if g := found[i]; g.ID != r.ID || g.Headers != r.Headers || string(g.Body) != r.Body || g.Seq != int64(i+1) {
			t.Errorf("%s: %+v", r.What, g)
		}
	}
}

func TestARowOfNServiceBusIsTakenInOneTransaction(t *testing.T) {
	for name, test := range map[string]struct {
		deleted int64
		lost    bool
	}{
		"there":                                {1, false},
		"taken, locked, or another row by now": {0, true},
	} {
		t.Run(name, func(t *testing.T) {
			f, s := newFake(t, browsingAnswers(nil))
			f.answers[foreignTake] = numbers(test.deleted)
			u := &tablequeue.Unit{
				Verb: tablequeue.Delete, Queue: "foreign", Lease: tablequeue.Lease{Seq: 7, ID: 1}, RowID: anID,
				Rows: []tablequeue.Row{{Queue: "out", Headers: []byte("{}")}},
			}
			ok(t, s.Take(t.Context(), u))
			calls := f.take()
			last := calls[len(calls)-2:]
			if inserted := strings.Contains(last[0].text, "INSERT INTO [dbo].[out]"); u.Lost != test.lost || inserted == test.lost || last[1].text != "commit" {
				t.Errorf("lost %v, inserted %v, and last %q", u.Lost, inserted, last[1].text)
			}
			for _, c := range calls {
				if strings.HasPrefix(c.text, foreignTake) && (c.args["seq"] != int64(7) || c.args["id"] != anID || !c.tx) {
					t.Errorf("deleted by %v, in a transaction %v", c.args, c.tx)
				}
			}
		})
	}
}

// Rows that a receiver of NServiceBus has locked are being handled.
func TestLockedRowsOfNServiceBusAreLeftAlone(t *testing.T) {
	q := newTable("dbo", place{schema: "dbo", table: "q"}, traits{foreign: true})
	for name, text := range map[string]string{"last": q.last, "browse": q.browse, "take": q.take, "purge": q.purge, "inspect": q.inspect} {
		if !strings.Contains(text, "READPAST") || strings.Contains(text, "lease_id") || strings.Contains(text, "visible_at") {
			t.Errorf("%s: %s", name, text)
		}
	}
}

func TestAQueueOfNServiceBusIsPurged(t *testing.T) {
	f, s := newFake(t, browsingAnswers(nil))
	f.answers["DELETE TOP (1000) FROM [dbo].[foreign]"] = numbers(3)
	if n, err := s.Purge(t.Context(), "foreign"); err != nil || n != 3 {
		t.Errorf("%d rows purged, %v, want 3", n, err)
	}
}

func TestATableThatIsNoQueueIsNamedAsSuch(t *testing.T) {
	_, s := newFake(t, map[string]answer{columnsPart: column("OrderId", "Id", "Headers", "Expires", "Body")})
	err := s.Exists(t.Context(), "orders")
	unfit, is := errors.AsType[*tablequeue.UnfitError](err)
	if !is || unfit.Foreign || !strings.Contains(err.Error(), `its table is no queue: it has no column "RowVersion"`) {
		t.Errorf("error %v", err)
	}
}

// A tool reads an error queue of NServiceBus through the engine, and takes a failure by the id of
// its row.
func TestAToolTakesAFailureOfNServiceBus(t *testing.T) {
	rows := recordedRows(t)
	f, s := newFake(t, browsingAnswers(rows))
	f.answers[foreignTake] = numbers(1)
	c := tablequeue.Open(s.parts(), tablequeue.Config{})
	defer func() { ok(t, c.Close()) }()
	cursor, err := c.Browse(t.Context(), "foreign@[dbo]@[shop]")
	ok(t, err)
	found, err := cursor.Next(t.Context(), 100)
	ok(t, err)
	if len(found) != len(rows) {
		t.Fatalf("%d messages of %d", len(found), len(rows))
	}
	for i, m := range found {
		var headers map[string]string
		ok(t, json.Unmarshal([]byte(rows[i].Headers), &headers))
		if m.Undecodable != nil || m.ID != headers["NServiceBus.MessageId"] {
			t.Errorf("%s: id %q, %v", rows[i].What, m.ID, m.Undecodable)
		}
	}
	f.take()
	ok(t, cursor.Take(t.Context(), found[2], []transport.Operation{{Queue: "out", Message: &transport.Message{ID: "a"}}}))
	for _, call := range f.take() {
		if strings.HasPrefix(call.text, foreignTake) && call.args["id"] != rows[2].ID {
			t.Errorf("deleted by %v", call.args)
		}
	}
}
