package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

func TestQueuesAreCreatedPeekedIntoAndPurged(t *testing.T) {
	for name, url := range map[string]string{
		"PostgreSQL": brokertest.Postgres(t) + "&schema=app",
		"SQLite":     "sqlite:" + t.TempDir() + "/q.db",
	} {
		t.Run(name, func(t *testing.T) {
			setenv(t, transportVar, url)
			for range 2 {
				must(t, "", "queues", "create", "sales", "billing")
			}
			for i := range 3 {
				must(t, fmt.Sprintf(`{"n":%d}`, i), "send", "--to", "sales", "--type", "Shop.Order")
			}
			if out := must(t, "", "queues", "peek", "sales", "--first", "2"); strings.Count(out, "Shop.Order") != 2 {
				t.Errorf("peek shows %q, want two of them", out)
			}
			if out := must(t, "", "queues", "peek", "sales", "--json"); strings.Count(out, "\n") != 3 || !strings.Contains(out, `"body":"eyJuIjowfQ=="`) {
				t.Errorf("peek in JSON: %q", out)
			}
			if code, _, errs := call(t, "", "queues", "purge", "sales"); code != exitUsage || !strings.Contains(errs, "--all") {
				t.Errorf("purge without --all: exit code %d, %s", code, errs)
			}
			if out := must(t, "", "queues", "purge", "sales", "--all", "--dry-run"); !strings.Contains(out, "3 messages of sales to be discarded") {
				t.Errorf("what a purge would do: %q", out)
			}
			if out := must(t, "", "queues", "purge", "sales", "--all"); !strings.Contains(out, "3 messages") {
				t.Errorf("purge says %q", out)
			}
			if out := must(t, "", "queues", "sales", "--json"); !strings.Contains(out, `"ready":0`) {
				t.Errorf("after the purge: %s", out)
			}
			if code, _, errs := call(t, "", "queues", "peek", "missing"); code != exitFailed || !strings.Contains(errs, "no such queue") {
				t.Errorf("peek into what there is not: exit code %d, %s", code, errs)
			}
		})
	}
}

func TestTheSQLScriptMakesQueuesThatWork(t *testing.T) {
	setenv(t, transportVar, "")
	url := brokertest.Postgres(t)
	text := must(t, "", "sql", "script", "--endpoint", "sales", "error", "--transport", url+"&schema=app")
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	for range 2 {
		if _, err := c.Exec(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	must(t, "{}", "send", "--transport", url+"&schema=app", "--to", "sales.quarantine", "--type", "T")
	if text := must(t, "", "sql", "script", "error"); !strings.Contains(text, `"public"."error"`) {
		t.Errorf("a script without a URL:\n%s", text)
	}
	text = must(t, "", "sql", "script", "error", "--transport", "sqlserver://sa:secret@db.example?schema=app")
	if !strings.Contains(text, "CREATE TABLE [app].[error]") || strings.Contains(text, "secret") {
		t.Errorf("a script for SQL Server:\n%s", text)
	}
	for args, want := range map[string]string{
		"sql script x --transport sqlserver://h?schema=%23": "temporary",
		"sql script":                                "name queues",
		"sql script x --transport sqlite:x.db":      "no tables",
		"sql script " + strings.Repeat("x", 70):     "70 bytes",
		"sql script x --transport postgres://h:x/y": "special characters",
	} {
		if code, _, errs := call(t, "", strings.Fields(args)...); code != exitUsage || !strings.Contains(errs, want) {
			t.Errorf("%s: exit code %d, %s, want %q", args, code, errs, want)
		}
	}
}
