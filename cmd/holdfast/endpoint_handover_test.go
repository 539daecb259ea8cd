package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

func TestAnEndpointIsHandedOverToNServiceBus(t *testing.T) {
	t.Parallel()
	url := brokertest.Postgres(t)
	for _, name := range []string{"sales", "billing"} {
		must(t, "", "endpoint", "create", name, "--transport", url)
		must(t, "{}", "send", "--transport", url, "--to", name, "--type", "T")
		must(t, "{}", "send", "--transport", url, "--to", name, "--type", "T", "--after", "1h")
	}
	must(t, "{}", "send", "--transport", url, "--to", "billing.quarantine", "--type", "T")
	out := must(t, "", "endpoint", "hand-over", "sales", "--json", "--transport", url)
	if diff := cmp.Diff(`{"moved":1,"remaining":[]}`+"\n", out); diff != "" {
		t.Error(diff)
	}
	out = must(t, "", "endpoint", "hand-over", "billing", "--transport", url)
	for _, want := range []string{
		"billing: the queue is one of NServiceBus; 1 delayed messages were moved to billing.Delayed",
		"from which NServiceBus does not receive", "billing.quarantine", "1 ready",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the output has no %q:\n%s", want, out)
		}
	}
	if code, _, errs := call(t, "", "endpoint", "hand-over", "missing", "--transport", url); code != exitFailed || !strings.Contains(errs, "no such queue") {
		t.Errorf("a missing queue: exit code %d, %s", code, errs)
	}
	// A repeated command prints what one that was killed before its output would have.
	out = must(t, "", "endpoint", "hand-over", "sales", "--json", "--transport", url)
	if diff := cmp.Diff(`{"already":true,"moved":0,"remaining":[]}`+"\n", out); diff != "" {
		t.Error(diff)
	}
	out = must(t, "", "endpoint", "hand-over", "billing", "--transport", url)
	for _, want := range []string{"billing: already handed over", "billing.quarantine", "1 ready"} {
		if !strings.Contains(out, want) {
			t.Errorf("the output of the second command has no %q:\n%s", want, out)
		}
	}
	sqlite := "sqlite:" + filepath.Join(t.TempDir(), "q.db")
	must(t, "", "endpoint", "create", "sales", "--transport", sqlite)
	if code, _, errs := call(t, "", "endpoint", "hand-over", "sales", "--transport", sqlite); code != exitFailed || !strings.Contains(errs, "cannot hand queues over") {
		t.Errorf("on SQLite: exit code %d, %s", code, errs)
	}
	if code, _, _ := call(t, "", "endpoint", "hand-over", "--transport", url); code != exitUsage {
		t.Errorf("without a name: exit code %d", code)
	}
}
