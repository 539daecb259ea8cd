package sqlserver

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestStatementsAreTheReviewedOnes compares all statements with testdata/statements.sql, in which
// names show where they go: a schema and a queue with every quote there is.
func TestStatementsAreTheReviewedOnes(t *testing.T) {
	scripts := ddl{&schema{Settings: dialect.Settings{Schema: "dbo"}}}
	const file = "testdata/statements.sql"
	schema, queue := `my's [schema]`, `Sales."Orders"]'--`
	var b strings.Builder
	add := func(name, statement string) { fmt.Fprintf(&b, "-- %s\n%s\n\n", name, strings.TrimSpace(statement)) }
	add("database", databaseAndLevel)
	add("name of the database", databaseName)
	add("time of the database", databaseTime)
	add("whether the database takes writes", updateability)
	add("save", setSavepoint)
	add("undo", undoSavepoint)
	add("install lock", installLock)
	add("schema", createSchema(schema))
	add("queues", listQueues)
	add("missing queues", missingTables)
	add("before a write", lockWait)
	add("before a write that waits", longLockWait)
	at := place{schema: schema, table: queue}
	addFields(add, "queue", reflect.ValueOf(*newTable(schema, at, traits{})))
	addFields(add, "queue with triggers", reflect.ValueOf(*newTable("dbo", place{schema: "dbo", table: "q"}, traits{triggers: true})))
	shared := newTable("dbo", place{catalog: "other", schema: "nsb", table: "q"}, traits{foreign: true, recoverable: true})
	add("send to a queue of NServiceBus's in another database", shared.insert)
	add("inspect a queue of NServiceBus's", shared.inspect)
	addFields(add, "queue of version 1", reflect.ValueOf(*newTable("dbo", place{schema: "dbo", table: "q"}, traits{first: true})))
	add("columns in another database", shared.columns)
	add("version of a queue in another schema", newTable("dbo", place{schema: "nsb", table: "q"}, traits{}).note)
	addFields(add, "adopt", reflect.ValueOf(newAdoption(schema, at)))
	add("repeat in a script", repeated("q", newAdoption("dbo", place{schema: "dbo", table: "q"}).lease))
	add("refuse in a script", scripts.refused("q", newAdoption("dbo", place{schema: "dbo", table: "q"}).unfit))
	add("lock of an adoption", tryInstallLock)
	add("end of an adoption", freeInstallLock)
	add("edition", canIndexOnline)
	addFields(add, "delayed messages of NServiceBus", reflect.ValueOf(newDelayed(place{schema: schema, table: queue + ".Delayed"}, at)))
	addFields(add, "hand over", reflect.ValueOf(newHandOver(at, place{schema: schema, table: queue + ".Delayed"})))
	kept := place{schema: "dbo", table: "q.Delayed"}
	addFields(add, "delay in a table of NServiceBus", reflect.ValueOf(newMoving(newTable("dbo", place{schema: "dbo", table: "q"}, traits{}), kept, false)))
	addFields(add, "delay all in a table of NServiceBus", reflect.ValueOf(newMoving(newTable("dbo", place{schema: "dbo", table: "q.forwards"}, traits{}), kept, true)))
	addFields(add, "versions", reflect.ValueOf(newVersions(schema)))
	add("versions of inboxes", createInboxVersions(schema))
	addFields(add, "inbox", reflect.ValueOf(*newInbox(schema, at)))
	add("before a statement about records", recordWait)
	addFields(add, "records", reflect.ValueOf(*newRecords(schema)))
	addFields(add, "subscriptions", reflect.ValueOf(newSubscriptions(schema)))
	addFields(add, "shared subscriptions", reflect.ValueOf(newRouting("dbo", "SubscriptionRouting")))

	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("statements differ from %s (go test -run %s -update writes it anew): -want +got\n%s", file, t.Name(), diff)
	}
}

// addFields adds every statement of a struct, so that none is forgotten.
func addFields(add func(name, statement string), of string, v reflect.Value) {
	for i := range v.NumField() {
		if v.Field(i).Kind() == reflect.String {
			add(of+" "+v.Type().Field(i).Name, v.Field(i).String())
		}
	}
}

// Every statement on a queue's rows locks single rows or none: a lock on pages or the table would
// have receivers wait for each other.
func TestStatementsLockRowsOnly(t *testing.T) {
	q, in := newTable("dbo", place{schema: "dbo", table: "q"}, traits{}), newInbox("dbo", place{schema: "dbo", table: "in"})
	records := newRecords("dbo")
	for name, text := range map[string]string{
		"claim": q.claim, "renew": q.renew, "update": q.update, "remove": q.remove,
		"restore": q.restore, "abandon": q.abandon, "orphans": q.orphans, "cancel": q.cancel, "take": q.take,
		"sweep": q.sweep, "purge": q.purge, "due to be swept": newVersions("dbo").due,
		"record": in.record, "forget": in.forget, "forget keys": in.forgetKeys, "due to be forgotten": in.due,
		"lock record": records.lock, "save record": records.save, "remove record": records.remove, "forget records": records.forget,
	} {
		if !strings.Contains(text, "ROWLOCK") {
			t.Errorf("%s takes what locks it likes:\n%s", name, text)
		}
	}
	for _, hint := range []string{"READPAST", "UPDLOCK", "READCOMMITTEDLOCK", "INDEX (holdfast_due)"} {
		if !strings.Contains(q.claim, hint) {
			t.Errorf("the claim has no %s", hint)
		}
	}
	for name, text := range map[string]string{"last": q.last, "browse": q.browse, "inspect": q.inspect, "find": in.find, "inspect inbox": in.inspect} {
		if !strings.Contains(text, "READPAST") {
			t.Errorf("%s waits for open transactions:\n%s", name, text)
		}
	}
}

func TestNamesStayInTheirBrackets(t *testing.T) {
	for name, want := range map[string]string{
		"orders":                    "[dbo].[orders]",
		"Sales.Orders":              "[dbo].[Sales.Orders]",
		"a]; DROP TABLE orders; --": "[dbo].[a]]; DROP TABLE orders; --]",
		"]]":                        "[dbo].[]]]]]",
		`it's "q"`:                  `[dbo].[it's "q"]`,
	} {
		if got := quote("dbo", name); got != want {
			t.Errorf("quote %q = %s, want %s", name, got, want)
		}
	}
	if got, want := literal("it's"), "N'it''s'"; got != want {
		t.Errorf("text = %s, want %s", got, want)
	}
}

func TestImpossibleNamesAreRefusedWithAReason(t *testing.T) {
	_, s := newFake(t, nil)
	for name, want := range map[string]string{
		"":                       "empty",
		strings.Repeat("q", 129): "128 characters",
		strings.Repeat("😀", 65):  "128 characters", // two code units each
		"a\x00b":                 "not text",
		"a\xff":                  "not text",
		"#orders":                "temporary",
		"orders ":                "ends in a space",
		"Holdfast_Subscriptions": "taken",
		"Holdfast_Handled":       "taken",
	} {
		if err := s.Check(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("check %q: %v, want an error with %q", name, err, want)
		}
	}
	for _, name := range []string{strings.Repeat("q", 128), "Sales.Orders", "it's [fine]"} {
		ok(t, s.Check(name))
	}
}
