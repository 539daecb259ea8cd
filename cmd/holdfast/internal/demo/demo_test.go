package demo

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

func options(t *testing.T, path string) (Options, *bytes.Buffer) {
	t.Helper()
	out := &bytes.Buffer{}
	return Options{Input: orders, Limit: 60, Path: path, Out: out, Log: slog.New(slog.DiscardHandler)}, out
}

func TestDemoInMemoryEndsVerified(t *testing.T) {
	opts, out := options(t, "")
	if err := Run(t.Context(), opts); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !strings.Contains(out.String(), "Verified: each of 60 lines") {
		t.Errorf("the output is\n%s", out)
	}
}

func TestDemoOnAFileGoesOnAndSaysWhenThereIsNothingToDo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "demo ü.db")
	opts, out := options(t, path)
	if err := Verify(t.Context(), opts); !errors.Is(err, errNothing) {
		t.Fatalf("verify before a run: %v, want %v", err, errNothing)
	}

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Run(ended, opts); err == nil {
		t.Fatal("a run that was interrupted at once has no error")
	}

	out.Reset()
	if err := Run(t.Context(), opts); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		`60 orders from .*, \d+ of them malformed`, `  line 15: parsing time`, `after 1s, then after 2s more`,
		`sales +5\d `, `This run: 1\d\d messages in `, `Verified: each of 60 lines`,
	} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}

	out.Reset()
	if err := Run(t.Context(), opts); err != nil || !strings.Contains(out.String(), "To start over: --reset") {
		t.Errorf("a second run: %v\n%s", err, out)
	}
	if err := Verify(t.Context(), opts); err != nil {
		t.Errorf("verify: %v", err)
	}

	other := opts
	other.Limit = 61
	if err := Run(t.Context(), other); err == nil || !strings.Contains(err.Error(), "is about other orders (60 lines") {
		t.Errorf("other orders on the same file: %v", err)
	}

	tamper(t, path, `delete from demo_outcome where line = 7 and endpoint = 'shipping'`)
	out.Reset()
	if err := Verify(t.Context(), opts); !errors.Is(err, errUnproven) || !strings.Contains(out.String(), "line 7: shipping has not handled it") {
		t.Errorf("verify after a row was removed: %v\n%s", err, out)
	}

	if err := Reset(t.Context(), opts); err != nil {
		t.Fatal(err)
	}
	if err := Verify(t.Context(), opts); !errors.Is(err, errNothing) {
		t.Errorf("verify after a reset: %v, want %v", err, errNothing)
	}
}

// Two processes may begin at once.
func TestDemoSendsItsOrdersOnce(t *testing.T) {
	opts, _ := options(t, filepath.Join(t.TempDir(), "demo.db"))
	install(t, opts.Path, sales)
	err := open(t.Context(), opts, (*ledger).begin, func(d *demo) error {
		if err := errors.Join(d.importLines(t.Context()), d.importLines(t.Context())); err != nil {
			return err
		}
		stats, err := d.conn.(transport.Inspector).Inspect(t.Context(), sales)
		if err == nil && stats[0].Ready != 60 {
			t.Errorf("%d orders were sent, want 60", stats[0].Ready)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestResetKeepsItsHandsOffOtherFiles(t *testing.T) {
	dir := t.TempDir()
	foreign := filepath.Join(dir, "foreign.db")
	tamper(t, foreign, `create table precious (x)`)
	mixed := filepath.Join(dir, "mixed.db")
	opts, _ := options(t, mixed)
	in, err := ReadInput(opts.Input, opts.Limit)
	if err != nil {
		t.Fatal(err)
	}
	l, err := openLedger(mixed)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.begin(t.Context(), in), l.db.Close()); err != nil {
		t.Fatal(err)
	}
	install(t, mixed, "invoices")
	text := filepath.Join(dir, "notes.txt")
	write(t, text, strings.Repeat("not a database\n", 100))

	for path, want := range map[string]string{
		foreign: "is not the demo's", mixed: `holds the queue "invoices"`, text: "not a database",
	} {
		opts.Path = path
		if err := Reset(t.Context(), opts); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("reset of %s: %v, want %q", path, err, want)
		}
	}
	opts.Path, opts.Input = mixed, filepath.Join(dir, "missing.jsonl")
	if err := Reset(t.Context(), opts); err == nil || strings.Contains(err.Error(), "is not the demo's") {
		t.Errorf("reset with an input that is missing: %v", err)
	}
	opts.Path = filepath.Join(dir, "missing.db")
	if err := Reset(t.Context(), opts); err != nil {
		t.Errorf("reset of no file: %v", err)
	}
}

func tamper(t *testing.T, path, statement string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

func install(t *testing.T, path, queue string) {
	t.Helper()
	conn, err := (&sqlite.Transport{Path: path}).Open(t.Context(), transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	plan := transport.Plan{Queues: []transport.Queue{{Name: queue}}}
	if err := conn.(transport.Installer).Install(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
}
