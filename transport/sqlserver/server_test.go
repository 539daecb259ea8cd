//go:build mssql

package sqlserver

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/internal/tablequeue/storetest"
	"github.com/holdfast-go/holdfast/transport"
)

// patience is the longest wait for an expected event.
const patience = time.Minute

// schemas counts those that tests have made.
var schemas atomic.Int64

// world is a schema of a test's own on the server of make test-mssql.
type world struct {
	t      testing.TB
	schema string
}

func testURL(t testing.TB) string {
	t.Helper()
	url := os.Getenv("HOLDFAST_TEST_MSSQL")
	if url == "" {
		t.Fatal("HOLDFAST_TEST_MSSQL is not set")
	}
	return url
}

// worlds has a world for each test.
type worlds map[testing.TB]*world

func (ws worlds) of(t testing.TB) *world {
	t.Helper()
	if ws[t] == nil {
		w := &world{t, fmt.Sprintf("store_%d_%d", os.Getpid(), schemas.Add(1))}
		w.exec("CREATE SCHEMA " + w.schema)
		t.Cleanup(func() {
			w.exec(`DECLARE @drop nvarchar(max) = N'';
SELECT @drop += N'DROP TABLE ` + w.schema + `.' + quotename(name) + N';' FROM sys.tables WHERE schema_id = schema_id('` + w.schema + `');
EXEC (@drop); DROP SCHEMA ` + w.schema)
		})
		ws[t] = w
	}
	return ws[t]
}

func (w *world) exec(statement string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	db, err := sql.Open("sqlserver", testURL(w.t))
	ok(w.t, err)
	defer db.Close()
	if _, err := db.ExecContext(ctx, statement); err != nil {
		w.t.Fatalf("%s: %v", statement, err)
	}
}

func (w *world) store(routing string) *store {
	w.t.Helper()
	m := Transport{URL: testURL(w.t), Schema: w.schema, SubscriptionRouting: routing}
	set, err := m.settings("test")
	ok(w.t, err)
	opens, err := m.connector(transport.Env{Endpoint: "test"})
	ok(w.t, err)
	s := newStore(connector{opens}, set)
	w.t.Cleanup(func() { _ = s.Close() })
	ok(w.t, s.connect(w.t.Context()))
	return s
}

// triggered is a store whose queues have triggers.
type triggered struct {
	*store
	w *world
}

func (s triggered) parts() tablequeue.Store {
	parts := s.store.parts()
	parts.Topology = s
	return parts
}

func (s triggered) Install(ctx context.Context, plan transport.Plan) error {
	if err := s.store.Install(ctx, plan); err != nil {
		return err
	}
	for _, q := range plan.Queues {
		table := quote(s.w.schema, q.Name)
		s.w.exec(`CREATE OR ALTER TRIGGER ` + quote(s.w.schema, q.Name+"_trigger") + ` ON ` + table +
			` AFTER INSERT, UPDATE, DELETE AS SET NOCOUNT ON;`)
	}
	return nil
}

func TestTheStoreDoesWhatTheEngineExpects(t *testing.T) {
	for name, open := range map[string]func(w *world) tablequeue.Store{
		"plain":         func(w *world) tablequeue.Store { return w.store("").parts() },
		"with triggers": func(w *world) tablequeue.Store { return triggered{w.store(""), w}.parts() },
	} {
		t.Run(name, func(t *testing.T) {
			worlds := worlds{}
			storetest.Run(t, storetest.Harness{
				Open: func(t testing.TB) tablequeue.Store { return open(worlds.of(t)) },
				Due: func(t testing.TB) {
					worlds.of(t).exec(`UPDATE ` + worlds.of(t).schema + `.holdfast_tables SET swept_at = dateadd(hour, -1, swept_at)`)
				},
			})
		})
	}
}

// The script, and what it makes of a table that NServiceBus has made.
func TestScriptAndQueuesOfNServiceBusOnAServer(t *testing.T) {
	w := worlds{}.of(t)
	w.exec(`CREATE TABLE ` + w.schema + `.foreign (Id uniqueidentifier NOT NULL, CorrelationId varchar(255), ReplyToAddress varchar(255),
	Recoverable bit NOT NULL, Expires datetime, Headers nvarchar(max) NOT NULL, Body varbinary(max), RowVersion bigint IDENTITY(1,1) NOT NULL)`)
	s := w.store("SubscriptionRouting")
	for range 2 {
		for _, step := range s.ddl.installation(plan("foreign", "in", "it's [one]")) {
			w.exec(step.statement)
		}
	}
	isErr(t, s.Exists(t.Context(), "foreign"), dialect.ErrForeign)
	for range 2 {
		ok(t, s.Subscribe(t.Context(), "in", []string{"Shop.Placed", "Shop.Paid"}))
	}
	ok(t, s.Unsubscribe(t.Context(), "in", []string{"Shop.Paid"}))
	all, err := s.Subscriptions(t.Context())
	ok(t, err)
	if len(all) != 1 || all[0] != (tablequeue.Subscription{Type: "Shop.Placed", Queue: "in"}) {
		t.Errorf("subscriptions %+v", all)
	}
	unit := &tablequeue.Unit{Rows: []tablequeue.Row{sentTo("foreign@["+w.schema+"]@["+s.database+"]", anID), sentTo("in", "ours"), sentTo("foreign", "no uuid")}}
	ok(t, s.Flush(t.Context(), []*tablequeue.Unit{unit}))
	for queue, want := range map[string]int64{"foreign": 2, "in": 1} {
		if stats, err := s.Inspect(t.Context(), queue); err != nil || stats.Ready != want {
			t.Errorf("stats %+v, %v, want %d ready", stats, err, want)
		}
	}
	// As its senders insert.
	w.exec(`INSERT INTO ` + w.schema + `.[in] (Id, CorrelationId, ReplyToAddress, Recoverable, Expires, Headers, Body)
VALUES ('` + anID + `', NULL, NULL, 1, dateadd(hour, 1, getutcdate()), N'{}', 0x01)`)
	rows, _, err := s.Claim(t.Context(), tablequeue.Claim{Queue: "in", Limit: 2, Lease: 1, For: time.Minute, Owner: "me"}, nil)
	ok(t, err)
	if len(rows) != 2 {
		t.Errorf("%d rows", len(rows))
	}
}

func plan(queues ...string) (p transport.Plan) {
	for _, q := range queues {
		p.Queues = append(p.Queues, transport.Queue{Name: q})
	}
	return p
}
