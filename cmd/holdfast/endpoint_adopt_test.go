package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/internal/brokertest/nservicebus"
	"github.com/holdfast-go/holdfast/transport"
)

func TestAnEndpointOfNServiceBusIsTakenOver(t *testing.T) {
	t.Parallel()
	url := brokertest.Postgres(t)
	setenv(t, transportVar, url)
	db, err := pgx.Connect(t.Context(), url)
	done(t, err)
	defer db.Close(t.Context())
	peer, errs := nservicebus.Address("public", "Net.Peer"), nservicebus.Address("public", "error")
	for _, q := range []string{peer, errs} {
		done(t, nservicebus.CreateQueue(t.Context(), db, q))
	}
	done(t, nservicebus.Send(t.Context(), db, peer, nservicebus.Message{Headers: map[string]string{"NServiceBus.MessageId": "1"}}))
	foreign := func(r report) bool {
		return len(r.Found) == 1 && r.Found[0].Name == "Net.Peer" && r.Found[0].State == transport.Differs &&
			strings.Contains(r.Found[0].Detail, "endpoint create --adopt")
	}
	for _, args := range [][]string{{"endpoint", "create", "Net.Peer"}, {"endpoint", "verify", "Net.Peer"}} {
		if r, _ := provision(t, exitFailed, args...); !foreign(r) {
			t.Errorf("%v: %+v", args, r)
		}
	}
	if r, _ := provision(t, exitFailed, "endpoint", "create", "Net.Peer", "--adopt", "--dry-run"); !foreign(r) || len(r.Changed) > 0 {
		t.Errorf("dry run: %+v", r)
	}
	r, _ := provision(t, exitOK, "endpoint", "create", "Net.Peer", "--adopt")
	if diff := cmp.Diff([]part{{"queue", "Net.Peer"}}, r.Changed); diff != "" || !r.OK || len(r.Notes) != 1 {
		t.Errorf("taken over: %+v", r)
	}
	if r, _ := provision(t, exitOK, "endpoint", "create", "Net.Peer", "--adopt"); len(r.Changed) > 0 || len(r.Notes) != 1 {
		t.Errorf("again: %+v", r)
	}
	if out := must(t, "", "endpoint", "verify", "Net.Peer"); !strings.Contains(out, "note") || !strings.Contains(out, "must not receive from it") {
		t.Errorf("verified: %s", out)
	}
	if out := must(t, "", "queues", "Net.Peer", "--json"); !strings.Contains(out, `"ready":1`) {
		t.Errorf("its queue: %s", out)
	}
}

func TestABusinessTableIsNotTakenOver(t *testing.T) {
	url := brokertest.Postgres(t)
	setenv(t, transportVar, url)
	db, err := pgx.Connect(t.Context(), url)
	done(t, err)
	defer db.Close(t.Context())
	_, err = db.Exec(t.Context(), `CREATE TABLE customers (id uuid PRIMARY KEY, name text)`)
	done(t, err)
	code, _, errs := call(t, "", "endpoint", "create", "customers", "--adopt")
	if code != exitFailed || !strings.Contains(errs, "cannot be taken over") || !strings.Contains(errs, "it has the column name") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	if out := must(t, "", "queues", "--json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("queues were created: %s", out)
	}
}

func TestAdoptIsForTablesOnly(t *testing.T) {
	code, _, errs := call(t, "", "endpoint", "create", "sales", "--adopt", "--transport", "sqlite:x.db")
	if code != exitUsage || !strings.Contains(errs, "--adopt: SQLite") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	text := must(t, "", "sql", "script", "--adopt", "--endpoint", "sales", "--shared", "error", "--transport", "postgres://h/x?schema=app")
	for _, want := range []string{`\gexec`, `pg_try_advisory_lock`, `CREATE UNIQUE INDEX IF NOT EXISTS "error_id_key" ON "app"."error" (id)`} {
		if !strings.Contains(text, want) {
			t.Errorf("the script has no %s", want)
		}
	}
	if text := must(t, "", "sql", "script", "sales", "--transport", "postgres://h/x"); strings.Contains(text, `\gexec`) {
		t.Error("the script takes tables over without --adopt")
	}
}
