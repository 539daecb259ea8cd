package postgres

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// Triggers, rules and policies that may keep messages out are named in the log at the start, by
// Verify and in the warnings.
func TestFiltersOfATableAreNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	w.impede("in", "")
	w.exec(`CREATE TRIGGER later AFTER INSERT ON ` + w.schema + `.in FOR EACH ROW EXECUTE FUNCTION ` + quote(w.schema, "impede in") + `()`)
	w.exec(`CREATE RULE keep AS ON DELETE TO ` + w.schema + `.in WHERE old.seq < 0 DO INSTEAD NOTHING`)
	w.exec(`ALTER TABLE ` + w.schema + `.in ENABLE ROW LEVEL SECURITY`)
	var log bytes.Buffer
	c, err := (&Transport{URL: w.unprivileged(), Schema: w.schema}).Open(t.Context(), transport.Env{
		Endpoint: w.schema, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	ok(t, err)
	defer func() { ok(t, c.Close()) }()
	want := []string{"trigger impede", "rule keep", "row level security"}
	receiver(t, c, "in")
	receiver(t, c, "in")
	if n := strings.Count(log.String(), "may keep messages out"); n != 1 {
		t.Errorf("%d warnings at the start, want one:\n%s", n, &log)
	}
	found, err := c.(transport.Verifier).Verify(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "in"}}})
	ok(t, err)
	s := w.store()
	warnings, err := s.Warnings(t.Context(), []string{"in"})
	ok(t, err)
	for _, name := range want {
		if !strings.Contains(log.String(), name) {
			t.Errorf("the log does not name the %s:\n%s", name, &log)
		}
		if text := fmt.Sprint(found); !strings.Contains(text, name) {
			t.Errorf("Verify does not name the %s: %s", name, text)
		}
		// The owner of the table bypasses its policies.
		if text := fmt.Sprint(warnings); strings.Contains(text, name) == (name == "row level security") {
			t.Errorf("the owner's warnings about the %s: %s", name, text)
		}
	}
	if strings.Contains(fmt.Sprint(found, log.String()), "later") {
		t.Error("a trigger after the insert cannot keep a row out, and is named")
	}
}

// A row that a trigger or a policy skips is an error of its message. The other messages of the
// batch are written.
func TestSkippedRowsAreErrors(t *testing.T) {
	t.Parallel()
	const skip = `CREATE FUNCTION %[1]s() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER skip BEFORE %[2]s ON %[3]s FOR EACH ROW EXECUTE FUNCTION %[1]s()`
	for _, p := range []Transport{{}, {Pooled: true}} {
		t.Run(fmt.Sprintf("pooled %t", p.Pooled), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "in", "out", "skips", "keeps")
			w.exec(fmt.Sprintf(skip, quote(w.schema, "skip"), "INSERT", quote(w.schema, "skips")))
			w.exec(fmt.Sprintf(skip, quote(w.schema, "keep"), "DELETE", quote(w.schema, "keeps")))
			c := w.openAs(p)
			later := to("skips", msg("later"))
			later.After = time.Hour
			for i, op := range []transport.Operation{to("skips", msg("x")), later} {
				_, err := c.Dispatch(t.Context(), []transport.Operation{to("out", msg("y")), op})
				if got := failedOps(t, err); !slices.Equal(got, []int{1}) || !strings.Contains(err.Error(), "skipped") {
					t.Errorf("send %d: %v", i, err)
				}
			}
			send(t, c, to("in", msg("1")), to("in", msg("2")), to("in", msg("3")))
			ds := receive(t, receiver(t, c, "in"), 3)
			ok(t, completeWith(t, ds[0], to("out", msg("z"))))
			if err := completeWith(t, ds[1], to("out", msg("z")), to("skips", msg("z"))); err == nil || !strings.Contains(err.Error(), "skipped") {
				t.Errorf("completed with a message that was skipped: %v", err)
			}
			tx, _ := begun(t, ds[2])
			if err := tx.Complete(t.Context(), []transport.Operation{to("out", msg("z")), to("skips", msg("z"))}); err == nil || !strings.Contains(err.Error(), "skipped") {
				t.Errorf("a transaction committed without a message that was skipped: %v", err)
			}
			if n := w.count("out"); n != 3 {
				t.Errorf("%d messages are sent, want 3", n)
			}

			send(t, c, to("keeps", msg("1")), to("keeps", msg("2")))
			kept := receive(t, receiver(t, c, "keeps"), 2)
			if err := kept[0].Complete(t.Context()); err == nil || !strings.Contains(err.Error(), "skipped") {
				t.Errorf("completed a message that is in its queue: %v", err)
			}
			tx, _ = begun(t, kept[1])
			if err := tx.Complete(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "skipped") {
				t.Errorf("committed a message that is in its queue: %v", err)
			}
		})
	}
}
