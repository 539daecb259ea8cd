package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// Nothing is deleted before the user has seen what goes and has confirmed it, nor while messages
// are being handled.
func TestDeletingAnEndpointIsConfirmed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "q.db")
	on := func(args ...string) []string { return append(args, "--transport", "sqlite:"+path) }
	must(t, "", on("endpoint", "create", "sales")...)
	must(t, "{}\n{}\n{}", on("send", "--to", "sales", "--type", "T", "--jsonl")...)
	for _, args := range [][]string{{"endpoint", "delete", "sales"}, {"endpoint", "delete", "sales", "--yes", "--dry-run"}} {
		code, out, errs := call(t, "", on(args...)...)
		if !strings.Contains(out, "sales: 3 ready, 0 being handled, 0 delayed") || !strings.Contains(out, "sales.quarantine: 0 ready") {
			t.Errorf("%q shows %s", args, out)
		}
		if want := map[bool]int{true: exitOK, false: exitUsage}[len(args) == 5]; code != want {
			t.Errorf("%q: exit code %d, want %d: %s", args, code, want, errs)
		}
	}
	conn, err := (&sqlite.Transport{Path: path}).Open(t.Context(), transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r, err := conn.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: "sales"})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.Window(1)
	if ds, err := r.Receive(t.Context(), 1); err != nil || len(ds) != 1 {
		t.Fatalf("%d deliveries, %v", len(ds), err)
	}
	code, out, errs := call(t, "", on("endpoint", "delete", "sales", "--yes")...)
	if code != exitFailed || !strings.Contains(out, "1 being handled") || !strings.Contains(errs, "stop the endpoint first, and add --force") {
		t.Errorf("while a message is handled: exit code %d, %s%s", code, out, errs)
	}
	if out := must(t, "", on("endpoint", "delete", "sales", "--yes", "--force")...); !strings.Contains(out, "sales: its queues are deleted") {
		t.Errorf("with --force: %s", out)
	}
	if out := must(t, "", on("endpoint", "delete", "sales", "--yes")...); !strings.Contains(out, "sales: there is no such queue") {
		t.Errorf("once more: %s", out)
	}
}
