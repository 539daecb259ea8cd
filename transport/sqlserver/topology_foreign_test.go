package sqlserver

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	mssql "github.com/microsoft/go-mssqldb"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

// foreignAnswers answers as a server does on which the queue "foreign" is one of NServiceBus's.
func foreignAnswers() map[string]answer {
	return map[string]answer{
		"[foreign] (Headers":         serverError(207, 16),
		"[foreign] (Id, Recoverable": {},
		"'[dbo].[foreign]', N'U')":   column("Id", "CorrelationId", "ReplyToAddress", "Recoverable", "Expires", "Headers", "Body", "RowVersion"),
		"[out]":                      numbers(1),
		"'[dbo].[out]', N'U')":       column("lease_id"),
		databaseName:                 column("shop"),
		removePart:                   numbers(0),
	}
}

func sentTo(queue, id string) tablequeue.Row {
	return tablequeue.Row{Queue: queue, ID: id, Headers: []byte("{}"), TTL: time.Hour}
}

func TestAQueueOfNServiceBusIsSentTo(t *testing.T) {
	f, s := newFake(t, foreignAnswers())
	units := []*tablequeue.Unit{{Rows: []tablequeue.Row{sentTo("foreign", anID), sentTo("out", "a"), sentTo("foreign", "no uuid")}}}
	for range 2 {
		ok(t, s.Flush(t.Context(), units))
	}
	calls := f.take()
	var texts []string
	for _, c := range calls {
		first, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(c.text, lockWait), declareNow), "\n")
		texts = append(texts, first)
	}
	const ours, refused, foreign = "INSERT INTO [dbo].[out] (Headers, Body, visible_at, Expires)",
		"INSERT INTO [dbo].[foreign] (Headers, Body, visible_at, Expires)", "INSERT INTO [dbo].[foreign] (Id, Recoverable, Expires, Headers, Body)"
	want := []string{
		"begin", refused, "rollback", "SELECT c.name FROM sys.columns AS c WHERE c.object_id = object_id(N'[dbo].[foreign]', N'U')",
		"SELECT c.name FROM sys.columns AS c WHERE c.object_id = object_id(N'[dbo].[out]', N'U')",
		"begin", foreign, ours, "commit", "begin", foreign, ours, "commit",
	}
	if diff := cmp.Diff(want, texts); diff != "" {
		t.Fatal(diff)
	}
	for _, c := range calls {
		if rows := fmt.Sprint(c.args["rows"]); strings.Contains(rows, anID) {
			t.Errorf("the id of a message became that of a row: %s", rows)
		}
	}
	delayed := sentTo("foreign", anID)
	delayed.After = time.Minute
	err := s.Flush(t.Context(), []*tablequeue.Unit{{Rows: []tablequeue.Row{delayed}}})
	if !errors.Is(err, dialect.ErrDelay) || s.Classify(err) != tablequeue.Refused {
		t.Errorf("class %v of %v", s.Classify(err), err)
	}
	isErr(t, s.Exists(t.Context(), "foreign"), dialect.ErrForeign)
}

// Two find out at once what a table is: the one that comes second has been refused for the same
// reason.
func TestAQueueOfNServiceBusIsFoundOutByTwoAtOnce(t *testing.T) {
	_, s := newFake(t, foreignAnswers())
	units := []*tablequeue.Unit{{Rows: []tablequeue.Row{sentTo("foreign", anID)}}}
	tries := 0
	ok(t, s.detector.Repeat(t.Context(), units, func() error {
		if tries++; tries == 1 {
			ok(t, s.Flush(t.Context(), units)) // the first
			return mssql.Error{Number: invalidColumn, Class: 16}
		}
		return nil
	}))
	if tries != 2 {
		t.Errorf("%d tries", tries)
	}
}

// A transaction that meets a queue of NServiceBus is repeated.
func TestRepeatAtAQueueOfNServiceBus(t *testing.T) {
	f, s := newFake(t, foreignAnswers())
	for try := range 2 {
		own, _ := begun(t, s)
		u := completed()
		u.Rows = append(u.Rows, sentTo("foreign", anID))
		err := own.Complete(t.Context(), u)
		if try == 1 {
			ok(t, err)
		} else if s.Classify(err) != tablequeue.Conflict {
			t.Fatalf("class %v of %v", s.Classify(err), err)
		}
	}
	if got := f.texts(); got[len(got)-1] != "commit" {
		t.Errorf("asked %q", got)
	}
	foreign, err := s.engine.BeginTx(t.Context(), nil)
	ok(t, err)
	ok(t, s.InsertIn(t.Context(), foreign, []tablequeue.Row{sentTo("foreign", anID)}))
	ok(t, foreign.Rollback())
}

// A statement that gives what it hits is refused on a table with triggers; by way of a table
// variable it is not.
func TestTablesMayHaveTriggers(t *testing.T) {
	f, s := newFake(t, map[string]answer{
		claimPart: serverError(334, 16), removePart: serverError(334, 16), insertPart: serverError(334, 16), "OUTPUT r.n": serverError(334, 16),
		"OUTPUT r.n INTO @hit FROM OPENJSON": numbers(0), "SELECT seq FROM @hit": numbers(5),
		"SELECT seq, id": rowsOf([]driver.Value{int64(7), "a", "{}", nil, int64(1), int64(0)}),
	})
	rows, _, err := s.Claim(t.Context(), tablequeue.Claim{Queue: "claimed", Limit: 1, Lease: 1, For: time.Minute, Owner: "me"}, nil)
	ok(t, err)
	if len(rows) != 1 {
		t.Errorf("%d rows", len(rows))
	}
	lost, err := s.Renew(t.Context(), "renewed", []tablequeue.Lease{{Seq: 1, ID: 10}}, time.Second)
	ok(t, err)
	if lost[0] {
		t.Error("lost")
	}
	u := completed()
	ok(t, s.Flush(t.Context(), []*tablequeue.Unit{u}))
	if u.Lost {
		t.Error("lost")
	}
	f.take()
	ok(t, s.Flush(t.Context(), []*tablequeue.Unit{completed()}))
	for _, c := range f.take() {
		if c.tx && !strings.Contains(c.text, "@hit") {
			t.Errorf("asked again without a table variable: %s", c.text)
		}
	}
}

func TestSweepsTheQueuesThatItNotesFirst(t *testing.T) {
	f, s := newFake(t, map[string]answer{"SET swept_at": column("a", "dropped", "b"), "[dropped]": serverError(208, 16), "[a]": numbers(7)})
	ok(t, tablequeue.Sweep(t.Context(), s))
	want := []string{
		"UPDATE q SET swept_at = @now", "DELETE TOP (1000) FROM [dbo].[a] WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)",
		"DELETE TOP (1000) FROM [dbo].[dropped] WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)",
		"DELETE TOP (1000) FROM [dbo].[b] WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)",
	}
	if diff := cmp.Diff(want, f.texts()); diff != "" {
		t.Error(diff)
	}
	f.answers["[b]"] = serverError(229, 14)
	if err := tablequeue.Sweep(t.Context(), s); err == nil || !strings.Contains(err.Error(), `queue "b"`) {
		t.Errorf("error %v", err)
	}
}

func TestSubscriptionsAreSharedWithNServiceBus(t *testing.T) {
	f, s := newFake(t, map[string]answer{"SELECT Topic, QueueAddress": rowsOf(
		[]driver.Value{"Shop.Placed", "billing@[dbo]@[shop]"}, []driver.Value{"Shop.Placed", "foreign@[nsb]@[shop]"})})
	s.Routing, s.Endpoint = "SubscriptionRouting", "Billing"
	ok(t, s.Subscribe(t.Context(), "billing", []string{"Shop.Placed"}))
	want := map[string]any{"queue": "billing@[dbo]@[shop]", "endpoint": "Billing", "types": mssql.NVarCharMax(`["Shop.Placed"]`)}
	if diff := cmp.Diff(want, f.take()[0].args); diff != "" {
		t.Error(diff)
	}
	all, err := s.Subscriptions(t.Context())
	ok(t, err)
	if diff := cmp.Diff([]tablequeue.Subscription{{Type: "Shop.Placed", Queue: "billing"}, {Type: "Shop.Placed", Queue: "foreign@[nsb]"}}, all); diff != "" {
		t.Error(diff)
	}
	if err := s.Subscribe(t.Context(), "q", []string{strings.Repeat("t", 201)}); err == nil || !strings.Contains(err.Error(), "at most 200") {
		t.Errorf("a type too long for the key: %v", err)
	}
	if s.Check("subscriptionrouting") == nil {
		t.Error("a queue of the name of the table of subscriptions")
	}
}

func TestWantsADatabaseThatKnowsJSON(t *testing.T) {
	_, s := newFake(t, map[string]answer{"compatibility_level": rowsOf([]driver.Value{"old db", int64(110)})})
	err := s.connect(t.Context())
	if err == nil || !strings.Contains(err.Error(), "ALTER DATABASE [old db] SET COMPATIBILITY_LEVEL = 130") {
		t.Errorf("error %v", err)
	}
	_, err = (&Transport{SubscriptionRouting: "#x"}).Script(transport.Plan{})
	if err == nil {
		t.Error("an impossible table of subscriptions")
	}
}
