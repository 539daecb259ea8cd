package postgres

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

var update = flag.Bool("update", false, "write the golden files anew")

// Every statement that messages go through, and the installer's, as they are sent: a change of
// any is seen in review. go test ./transport/postgres -run Golden -update
func TestGoldenStatements(t *testing.T) {
	t.Parallel()
	const file = "testdata/statements.sql"
	s := newStore(settings{Settings: dialect.Settings{Schema: "app"}})
	in, outgoing, theirs := s.table("in"), s.table("out"), s.table(`"public"."foreign"`)
	inbox := s.table("in.handled")
	lone := &out{to: outgoing, rows: make([]*tablequeue.Row, 1), args: make([]any, 2)}
	plain, timed := &out{to: outgoing, args: make([]any, 3)}, &out{to: outgoing, timed: true, args: make([]any, 6)}
	leased := &out{to: outgoing, leased: true, args: make([]any, 6)}
	foreign := &out{to: theirs, timed: true, foreign: true, args: make([]any, 6)}
	var b, install strings.Builder
	installed := plan("in")
	installed.Inboxes, installed.Records = []string{"in.handled"}, []string{"orders/saga"}
	records := newRecordStatements(s.recordTable())
	for _, step := range s.ddl.installation(installed) {
		install.WriteString(step.text + ";\n")
	}
	for _, st := range []struct{ name, text string }{
		{"claim", in.claim},
		{"renew", in.renew},
		{"settle without completing", in.update},
		{"make rows visible after the clock was set back", in.restore},
		{"abandon the rows of an owner", in.abandon},
		{"abandon the rows of claims", in.orphans},
		{"lock for a transaction that keeps a snapshot", in.lock},
		{"cancel", in.cancel},
		{"sweep", in.sweep},
		{"purge", in.purge},
		{"send", insert(plain, 1, false)},
		{"send what is timed", insert(timed, 1, false)},
		{"send to a table of NServiceBus's", insert(foreign, 1, false)},
		{"take from a table of NServiceBus's, and send to two queues", taking(theirs, []*out{plain, foreign})},
		{"purge a table of NServiceBus's", purgeForeign(theirs)},
		{"complete", completion(in, nil)},
		{"complete, and send to two queues", completion(in, []*out{plain, foreign})},
		{"complete in a handler's transaction", removal(in, nil, nil)},
		{"complete in a handler's transaction, and send to two queues", removal(in, nil, []*out{lone, foreign})},
		{"complete with keys", completionRecorded(in, inbox, []*out{plain})},
		{"complete in a handler's transaction with a key", removal(in, inbox, []*out{lone})},
		{"record keys", record(inbox, []*out{plain})},
		{"record keys, and insert rows with leases", record(inbox, []*out{leased})},
		{"record a key in a handler's transaction", inbox.record},
		{"send in a handler's transaction", insertOne(lone, 1)},
		{"send in a handler's transaction, with a lease", insertOne(&out{to: outgoing, leased: true, rows: lone.rows}, 1)},
		{"look for keys", inbox.find},
		{"remove old keys", inbox.forget},
		{"what is set before a record is loaded", recordSettings},
		{"create a record", records.create},
		{"lock a record", records.lock},
		{"what is set after a record was loaded", handlersSettings},
		{"save a record", records.save},
		{"remove a record", records.remove},
		{"remove ended records", records.forget},
		{"list records", records.page},
		{"find a record", records.one},
		{"count records", records.count},
		{"estimate the number of records", records.sample},
		{"what is set before, behind a proxy", planner.statement()},
		{"look for the end of callers' transactions", endedTransactions},
		{"look for locks", lockedTables},
		{"look for tables", missingTables},
		{"make rows visible that waited for a lock", hasten(in)},
		{"install", install.String()},
		{"take over", s.ddl.adoptScript(transport.Plan{Queues: []transport.Queue{own("in"), shared("error")}})},
	} {
		fmt.Fprintf(&b, "-- %s\n%s;\n\n", st.name, st.text)
	}
	if *update {
		ok(t, os.WriteFile(file, []byte(b.String()), 0o600))
	}
	want, err := os.ReadFile(file)
	ok(t, err)
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("statements differ from %s (-want +got):\n%s", file, diff)
	}
}
