package sqlserver

import (
	"bytes"
	"context"
	"database/sql/driver"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/transport"
)

// nsbColumns are the columns of a queue table that NServiceBus has created.
var nsbColumns = column("Id", "CorrelationId", "ReplyToAddress", "Recoverable", "Expires", "Headers", "Body", "RowVersion")

// kindPart tells the query for the parts of a table apart.
const kindPart = "SELECT N'column' AS kind, d.name, d.detail FROM ("

// adoptAnswers answers as a server on which the queue "q" is a table of NServiceBus.
func adoptAnswers() map[string]answer {
	return map[string]answer{
		"sp_getapplock": numbers(0),
		canIndexOnline:  numbers(1),
		columnsPart:     nsbColumns,
		kindPart:        rowsOf(),
	}
}

func adopting(t *testing.T, answers map[string]answer) (*fakeServer, *store, *bytes.Buffer) {
	t.Helper()
	f, s := newFake(t, answers)
	log := new(bytes.Buffer)
	s.adopts, s.log = true, slog.New(slog.NewTextHandler(log, nil))
	return f, s, log
}

// bodies are the statements that were asked, each without the texts before it.
func bodies(calls []asked) (all []string) {
	for _, c := range calls {
		all = append(all, strings.TrimPrefix(c.text, adoptionWait))
	}
	return all
}

// A table of NServiceBus is adopted outside a transaction.
func TestAdoptOutsideATransaction(t *testing.T) {
	f, s, _ := adopting(t, adoptAnswers())
	ok(t, s.Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "q"}}}))
	a, q := newAdoption("dbo", s.place("q")), s.table("q")
	calls := f.take()
	want := []string{
		tryInstallLock, q.columns, a.unfit, canIndexOnline, a.columns, a.fill, a.indexes, a.lease, freeInstallLock,
		"begin", installLock, createSchema("dbo"), newVersions("dbo").create, s.subscribers().create, q.create, q.note, "commit",
	}
	if diff := cmp.Diff(want, bodies(calls)); diff != "" {
		t.Fatal(diff)
	}
	for _, c := range calls[:9] {
		if c.tx {
			t.Errorf("in a transaction: %s", c.text)
		}
	}
	for _, c := range calls[4:8] {
		if !strings.HasPrefix(c.text, "SET XACT_ABORT ON; SET LOCK_TIMEOUT 50;") {
			t.Errorf("waits for locks: %s", c.text)
		}
	}
	if got := calls[0].args["name"]; got != "holdfast install dbo" || calls[10].args["name"] != got {
		t.Errorf("locks %q and %q", got, calls[10].args["name"])
	}
}

func TestOnlyAdoptChangesTablesThatExist(t *testing.T) {
	f, s := newFake(t, adoptAnswers())
	ok(t, s.Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "q"}}}))
	for _, text := range f.texts() {
		if strings.Contains(text, "ALTER") {
			t.Errorf("changed: %s", text)
		}
	}
	f, s, _ = adopting(t, adoptAnswers())
	ok(t, s.Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "error", Shared: true}}}))
	for _, c := range f.take() {
		if strings.HasPrefix(c.text, adoptionWait) {
			t.Errorf("changed a shared table: %s", c.text)
		}
	}
	f, s, _ = adopting(t, map[string]answer{"sp_getapplock": numbers(0)}) // no table
	ok(t, s.Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "q"}}}))
	f2, s2, _ := adopting(t, map[string]answer{"sp_getapplock": numbers(0), columnsPart: column("RowVersion", "Id", "lease_id")})
	ok(t, s2.Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "q"}}}))
	for _, c := range append(f.take(), f2.take()...) {
		if strings.Contains(c.text, adoptionWait) {
			t.Errorf("changed: %s", c.text)
		}
	}
}

func TestATableThatNServiceBusHasNotCreatedIsRefused(t *testing.T) {
	answers := adoptAnswers()
	answers[kindPart] = rowsOf([]driver.Value{"column", "Pri]ority", "int(4) NOT NULL"}, []driver.Value{"trigger", "audit", ""})
	f, s, _ := adopting(t, answers)
	err := s.Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "q"}}})
	const want = `sqlserver: adopt tables: queue "q": its table is not as NServiceBus creates it, and is not adopted: ` +
		`found column [Pri]]ority] int(4) NOT NULL, trigger [audit]`
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	texts := bodies(f.take())
	for _, text := range texts {
		if strings.Contains(text, "ALTER") || text == "begin" {
			t.Errorf("after the refusal: %s", text)
		}
	}
	if last := texts[len(texts)-1]; last != freeInstallLock {
		t.Errorf("the lock was kept: %s", last)
	}
}

func TestATableInAnotherDatabaseIsNotAdopted(t *testing.T) {
	_, s, _ := adopting(t, adoptAnswers())
	err := s.Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "q@[dbo]@[other]"}}})
	if err == nil || !strings.Contains(err.Error(), `its table is in database "other": adopt it by an endpoint of that database`) {
		t.Errorf("error %v", err)
	}
}

// locked answers n times that a lock was not available.
func locked(n int) answer {
	var a answer
	for range n {
		next := a
		a = serverError(lockTimeoutExceeded, 16)
		a.then = &next
	}
	return a
}

func TestALockedTableIsTriedAgainWithALineNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := adoptAnswers()
		a := newAdoption("dbo", place{schema: "dbo", table: "q"})
		answers[a.columns] = locked(20)
		f, s, log := adopting(t, answers)
		start := time.Now()
		ok(t, s.Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "q"}}}))
		tries := 0
		for _, text := range bodies(f.take()) {
			if text == a.columns {
				tries++
			}
		}
		if tries != 21 {
			t.Errorf("%d tries, want 21", tries)
		}
		if took := time.Since(start); took < 5*time.Second || took > 20*time.Second {
			t.Errorf("took %v: the pauses grow to between half a second and a second", took)
		}
		lines := strings.Count(log.String(), "the table is locked by another transaction")
		if lines < 2 || lines > 4 || !strings.Contains(log.String(), "queue=q") {
			t.Errorf("%d lines in %s", lines, log)
		}
	})
}

func TestAnAdoptionWaitsForAnotherInstallerWithoutALock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := adoptAnswers()
		free := numbers(0)
		busy := numbers(-1)
		busy.then = &free
		answers["@LockTimeout = 0;"] = busy
		f, s, log := adopting(t, answers)
		ok(t, s.Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "q"}}}))
		if got := bodies(f.take())[:2]; got[0] != tryInstallLock || got[1] != tryInstallLock {
			t.Errorf("asked %q", got)
		}
		if !strings.Contains(log.String(), "another installer is at work") {
			t.Error("no line in " + log.String())
		}
	})
}

func TestAnAdoptionEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := adoptAnswers()
		a := newAdoption("dbo", place{schema: "dbo", table: "q"})
		answers[a.columns] = serverError(lockTimeoutExceeded, 16)
		f, s, _ := adopting(t, answers)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := s.Install(ctx, transport.Plan{Queues: []transport.Queue{{Name: "q"}}})
		if err == nil || !strings.Contains(err.Error(), "the table is locked by another transaction") {
			t.Errorf("error %v", err)
		}
		if texts := bodies(f.take()); texts[len(texts)-1] != freeInstallLock {
			t.Errorf("the lock was kept: %s", texts[len(texts)-1])
		}
	})
}

func TestAnEditionWithoutOnlineIndexesIsNamed(t *testing.T) {
	answers := adoptAnswers()
	answers[canIndexOnline] = numbers(0)
	_, s, log := adopting(t, answers)
	ok(t, s.Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "q"}}}))
	if !strings.Contains(log.String(), "cannot create indexes online: senders wait") {
		t.Error("no line in " + log.String())
	}
}

func TestATableOfVersion1IsRewrittenOnDemand(t *testing.T) {
	f, s, log := adopting(t, map[string]answer{"sp_getapplock": numbers(0), columnsPart: firstColumns})
	ok(t, s.Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "q"}}}))
	texts := bodies(f.take())
	if upgrade := newAdoption("dbo", s.place("q")).upgrade; texts[2] != upgrade {
		t.Errorf("asked %q, want the change of version 1", texts[2])
	}
	if !strings.Contains(log.String(), "the table is rewritten, and is locked for that time") {
		t.Error("no line in " + log.String())
	}
}

// The script has the statements of the installer, in pieces that repeat themselves while a table is
// locked. A refusal ends it.
func TestTheScriptAdoptsInTheSameSteps(t *testing.T) {
	text, err := (&Transport{Adopt: true}).Script(transport.Plan{Queues: []transport.Queue{{Name: "q"}}})
	ok(t, err)
	a := newAdoption("dbo", place{schema: "dbo", table: "q"})
	at := 0
	for i, part := range []string{a.upgrade, a.unfit, "SET NOEXEC ON;", a.columns, a.fill, a.indexes, a.lease, anyLockWait, "CREATE TABLE [dbo].[q]"} {
		if i < 7 && i != 1 {
			part = strings.ReplaceAll(part, "\n", "\n\t\t")
		}
		next := strings.Index(text[at:], part)
		if next < 0 {
			t.Fatalf("part %d is missing, or not in its place:\n%s", i, text)
		}
		at += next
	}
	for i, batch := range strings.Split(strings.TrimSuffix(text, "GO\n"), "\nGO\n") {
		if _, err := parsed(batch); err != nil && strings.TrimSpace(batch) != "" {
			t.Errorf("batch %d: %v:\n%s", i, err, batch)
		}
	}
	shared, err := (&Transport{Adopt: true}).Script(transport.Plan{Queues: []transport.Queue{{Name: "q", Shared: true}}})
	ok(t, err)
	if strings.Contains(shared, "ADD lease_id") || !strings.Contains(shared, "N'RowVersion', N'COLUMN'") {
		t.Errorf("the script for a shared queue:\n%s", shared)
	}
	plain, err := (&Transport{}).Script(transport.Plan{Queues: []transport.Queue{{Name: "q"}}})
	ok(t, err)
	if strings.Contains(plain, "ADD lease_id") {
		t.Error("a script without Adopt changes tables")
	}
}

// Until the last step the table is a foreign one for every program.
func TestAnInterruptedAdoptionCanBeRepeated(t *testing.T) {
	a := newAdoption("dbo", place{schema: "dbo", table: "q"})
	for name, text := range map[string]string{"columns": a.columns, "fill": a.fill, "indexes": a.indexes, "lease": a.lease} {
		if has := strings.Contains(text, "ADD lease_id"); has != (name == "lease") {
			t.Errorf("%s: adds lease_id: %v", name, has)
		}
		if !strings.HasPrefix(text, "IF object_id(N'[dbo].[q]', N'U') IS NOT NULL AND col_length(N'[dbo].[q]', N'lease_id') IS NULL\nBEGIN\n") {
			t.Errorf("%s changes other tables too: %s", name, text)
		}
	}
	for i, add := range []string{"ADD CONSTRAINT", "ADD visible_at"} {
		if n := strings.Count(a.columns, add); n != 2-i {
			t.Errorf("%d times %s", n, add)
		}
	}
	if fmt.Sprint(strings.Count(a.columns, "IF "), strings.Count(a.indexes, "IF ")) != "4 4" {
		t.Errorf("unconditional changes in %s or %s", a.columns, a.indexes)
	}
}

// A queue that was sent to as one of NServiceBus's is used as one of this transport once it has
// been adopted, by this process or by another.
func TestAnAdoptedTableIsNoLongerForeign(t *testing.T) {
	for name, become := range map[string]func(f *fakeServer, s *store){
		"by this process": func(_ *fakeServer, s *store) {
			s.adopts = true
			ok(t, s.Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "q"}}}))
		},
		"by another": func(f *fakeServer, s *store) {
			f.answers[columnsPart] = column("RowVersion", "Id", "lease_id")
			ok(t, s.Exists(t.Context(), "q"))
		},
	} {
		f, s, _ := adopting(t, adoptAnswers())
		s.tables.Set("q", newTable("dbo", s.place("q"), traits{foreign: true}))
		become(f, s)
		if s.Foreign("q") {
			t.Errorf("%s: it is still foreign", name)
		}
	}
}

func TestALockThatCannotBeReleasedEndsItsSession(t *testing.T) {
	answers := adoptAnswers()
	answers[freeInstallLock] = serverError(1223, 16)
	f, s, _ := adopting(t, answers)
	ok(t, s.Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "q"}}}))
	if f.opened != 2 {
		t.Errorf("%d sessions, want a new one for the installation", f.opened)
	}
}
