package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

func TestThePlanOfAnOutboxIsThatOfAnEndpoint(t *testing.T) {
	for name, test := range map[string]struct {
		outbox bool
		cfg    endpoint.Config
		of     endpointSpec
	}{
		"outbox":        {true, endpoint.Config{}, endpointSpec{outbox: &target{}, inbox: true}},
		"without inbox": {true, endpoint.Config{Remember: endpoint.None}, endpointSpec{outbox: &target{}}},
		"atomic mode": {
			false, endpoint.Config{Transactions: endpoint.SendsAtomicWithReceive, Remember: 48 * time.Hour}, endpointSpec{inbox: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var broker, database planned
			test.cfg.Name, test.cfg.Transport = "billing", &broker
			if test.outbox {
				test.cfg.Outbox = &database
			}
			e, err := endpoint.New(test.cfg)
			if err != nil {
				t.Fatal(err)
			}
			if err := e.Install(t.Context()); err != nil {
				t.Fatal(err)
			}
			test.of.name, test.of.errors = "billing", "error"
			for i, site := range test.of.sites(target{}) {
				got := []*planned{&broker, &database}[i].plan
				if diff := cmp.Diff(byName(got), byName(site.plan)); diff != "" || !slices.Equal(got.Inboxes, site.plan.Inboxes) {
					t.Errorf("an endpoint installs (-) with the inboxes %q, and the plan of the flags is (+), with %q:\n%s",
						got.Inboxes, site.plan.Inboxes, diff)
				}
			}
		})
	}
}

func TestTheOutboxOfAnEndpointIsAdministered(t *testing.T) {
	t.Parallel()
	database := brokertest.Postgres(t)
	setenv(t, transportVar, "sqlite:"+filepath.Join(t.TempDir(), "q.db"))
	setenv(t, databaseVar, "sqlite:"+filepath.Join(t.TempDir(), "no.db")) // has no effect
	names := func(parts []part) (names []string) {
		for _, p := range parts {
			names = append(names, p.Name)
		}
		return names
	}
	const outbox, inbox = "billing.outbox", "billing.handled"
	r, errs := provision(t, exitFailed, "endpoint", "verify", "billing", "--outbox", database)
	if r.OK || !strings.Contains(errs, "missing") {
		t.Errorf("before: %+v, %s", r, errs)
	}
	r, _ = provision(t, exitOK, "endpoint", "create", "billing", "--dry-run", "--outbox", database)
	if got := names(r.Created); !slices.Contains(got, outbox) || !slices.Contains(got, inbox) || !slices.Contains(got, "billing") {
		t.Errorf("it would create %q", got)
	}
	r, _ = provision(t, exitOK, "endpoint", "create", "billing", "--inbox=false", "--outbox", database)
	if got := names(r.Created); !slices.Contains(got, outbox) || slices.Contains(got, inbox) {
		t.Errorf("without an inbox it created %q", got)
	}
	r, _ = provision(t, exitFailed, "endpoint", "verify", "billing", "--outbox", database)
	if len(r.Found) != 1 || r.Found[0].Name != inbox || r.Found[0].Kind != "inbox" {
		t.Errorf("found %v", r.Found)
	}
	if r, _ := provision(t, exitOK, "endpoint", "create", "billing", "--outbox", database); !r.OK || len(r.Created) != 1 {
		t.Errorf("created %v", r.Created)
	}
	if out := must(t, "", "queues", "--transport", database, "--json"); !strings.Contains(out, outbox) || strings.Contains(out, "quarantine") {
		t.Errorf("in the database there are %s", out)
	}
	if out := must(t, "", "queues", "--json"); strings.Contains(out, outbox) {
		t.Errorf("at the broker there are %s", out)
	}
	must(t, "", "endpoint", "delete", "billing", "--yes") // the outbox was not asked for
	if out := must(t, "", "queues", "--transport", database, "--json"); !strings.Contains(out, outbox) {
		t.Errorf("without --outbox the database has %s", out)
	}
	must(t, "", "endpoint", "delete", "billing", "--yes", "--outbox", database)
	if out := must(t, "", "queues", "--transport", database, "--json"); strings.Contains(out, "billing") {
		t.Errorf("left in the database: %s", out)
	}
	if r, _ := provision(t, exitFailed, "endpoint", "verify", "billing", "--outbox", database); !slices.ContainsFunc(r.Found, func(f transport.Finding) bool { return f.Name == inbox }) {
		t.Errorf("found %v", r.Found)
	}
}

func TestAnInboxIsInTheQueuesDatabaseInAtomicMode(t *testing.T) {
	setenv(t, transportVar, brokertest.Postgres(t))
	r, _ := provision(t, exitOK, "endpoint", "create", "sales", "--inbox")
	if !slices.Contains(r.Created, part{"inbox", "sales.handled"}) {
		t.Errorf("created %v", r.Created)
	}
	must(t, "", "endpoint", "delete", "sales", "--inbox", "--yes")
	if r, _ := provision(t, exitFailed, "endpoint", "verify", "sales", "--inbox"); len(r.Found) < 3 {
		t.Errorf("found %v", r.Found)
	}
}

func TestAnOutboxIsADatabase(t *testing.T) {
	setenv(t, transportVar, "sqlite:"+filepath.Join(t.TempDir(), "q.db"))
	for url, want := range map[string]string{
		"amqp://shop:hunter22@localhost": "RabbitMQ is no database",
		"sqs://eu-central-1":             "Amazon SQS is no database",
		"mysql://shop:hunter22@db":       `unknown scheme "mysql"`,
		"memory:":                        "one process",
	} {
		code, _, errs := call(t, "", "endpoint", "create", "billing", "--outbox", url)
		if code != exitUsage || !strings.Contains(errs, want) || strings.Contains(errs, "hunter22") {
			t.Errorf("%s: exit code %d, %s", url, code, errs)
		}
	}
	code, out, errs := call(t, "", "endpoint", "create", "billing", "--outbox", "postgres://shop:hunter22@127.0.0.1:1/x?connect_timeout=1", "--log-level", "debug")
	if code != exitFailed || strings.Contains(out+errs, "hunter22") {
		t.Errorf("exit code %d and %q, want a failure without the password", code, out+errs)
	}
}

func TestTheScriptCreatesOutboxes(t *testing.T) {
	for url, quote := range map[string]string{"": `"%s"`, "sqlserver://db": "[%s]"} {
		setenv(t, transportVar, url)
		out := must(t, "", "sql", "script", "--outbox", "billing", "--inbox", "sales")
		for _, name := range []string{"billing.outbox", "billing.handled", "sales.handled"} {
			if !strings.Contains(out, fmt.Sprintf(quote, name)) {
				t.Errorf("%s: no table %s in\n%s", url, name, out)
			}
		}
		if strings.Contains(out, "sales.outbox") || strings.Contains(out, "quarantine") {
			t.Errorf("%s: too much in\n%s", url, out)
		}
	}
}
