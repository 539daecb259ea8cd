package sqlserver

import (
	"database/sql/driver"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	mssql "github.com/microsoft/go-mssqldb"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	recordPart  = "INSERT INTO [dbo].[in] ([key]"
	unkeyedPart = "DELETE h FROM"
)

func keyOf(n byte) transport.HandledKey {
	return transport.HandledKey{ID: [16]byte{0: 0xab, 15: n}, Sum: 0xfffffff0 + uint32(n)}
}

// fresh is the answer of the server that the keys were new.
func fresh(keys ...byte) answer {
	rows := [][]driver.Value{}
	for _, n := range keys {
		k := keyOf(n)
		rows = append(rows, []driver.Value{k.ID[:]})
	}
	return rowsOf(rows...)
}

// marked is u with a key.
func marked(u tablequeue.Unit, n byte) *tablequeue.Unit {
	k := keyOf(n)
	u.Key, u.Inbox = &k, "in"
	return &u
}

func records(n byte, rows ...tablequeue.Row) *tablequeue.Unit {
	return marked(tablequeue.Unit{Verb: tablequeue.Record, Rows: rows}, n)
}

func removes(seq int64, n byte, rows ...tablequeue.Row) *tablequeue.Unit {
	return marked(tablequeue.Unit{Verb: tablequeue.Delete, Queue: "q", Lease: tablequeue.Lease{Seq: seq, ID: 10 * seq}, Rows: rows}, n)
}

func out(id string) tablequeue.Row {
	return tablequeue.Row{Queue: "out", ID: id, Headers: []byte(`{"k":"` + id + `"}`)}
}

// flags are those of units: what Flush has set.
func flags(units []*tablequeue.Unit) (all string) {
	for _, u := range units {
		switch {
		case u.Lost && u.Handled:
			all += "?"
		case u.Lost:
			all += "L"
		case u.Handled:
			all += "H"
		default:
			all += "."
		}
	}
	return all
}

func TestKeysAreRecordedWithWhatTheyComplete(t *testing.T) {
	f, s := newFake(t, map[string]answer{
		recordPart: fresh(1, 3, 4), removePart: numbers(0), unkeyedPart: numbers(1), "[out]": numbers(7, 8),
	})
	units := []*tablequeue.Unit{
		removes(1, 1, out("a")), removes(2, 2, out("known")), removes(3, 3, out("lost")), records(4, out("b")), records(5, out("known")),
	}
	ok(t, s.Flush(t.Context(), units))
	if got := flags(units); got != ".HL.H" {
		t.Errorf("units %s", got)
	}
	calls := f.take()
	for i, want := range []struct{ part, list, rows string }{
		{"begin", "", ""},
		{recordPart, `[[0,"ab000000000000000000000000000001",-15],[1,"ab000000000000000000000000000002",-14],` +
			`[2,"ab000000000000000000000000000003",-13],[3,"ab000000000000000000000000000004",-12],[4,"ab000000000000000000000000000005",-11]]`, ""},
		{removePart, "", "[[0,1,10],[1,3,30]]"},
		{unkeyedPart, `[[0,"ab000000000000000000000000000003",-13]]`, ""},
		{"[out]", "", `[{"n":0,"headers":{"k":"a"},"body_from":1,"body_size":0,"at_us":0,"after_us":0,"ttl_us":0},` +
			`{"n":1,"headers":{"k":"b"},"body_from":1,"body_size":0,"at_us":0,"after_us":0,"ttl_us":0}]`},
		{"commit", "", ""},
	} {
		if !strings.Contains(calls[i].text, want.part) {
			t.Fatalf("call %d is %s, want %s", i, calls[i].text, want.part)
		}
		for name, want := range map[string]string{"keys": want.list, "rows": want.rows} {
			if got, _ := calls[i].args[name].(mssql.NVarCharMax); string(got) != want {
				t.Errorf("call %d: %s are %s, want %s", i, name, got, want)
			}
		}
	}
}

func TestAKeyAloneIsOneStatement(t *testing.T) {
	f, s := newFake(t, map[string]answer{recordPart: fresh(1)})
	u := records(1)
	ok(t, s.Flush(t.Context(), []*tablequeue.Unit{u}))
	if got := f.take(); len(got) != 1 || got[0].tx || u.Handled {
		t.Errorf("handled %t, asked %+v", u.Handled, got)
	}
}

// A message that was delivered again may be completed in one batch with its first delivery.
func TestTheKeyOfALostLeaseIsNewToTheNextUnit(t *testing.T) {
	first := fresh(1)
	again := fresh(1)
	first.then = &again
	hits := numbers()
	second := numbers(0)
	hits.then = &second
	f, s := newFake(t, map[string]answer{recordPart: first, removePart: hits, unkeyedPart: numbers(1), "[out]": numbers(7)})
	units := []*tablequeue.Unit{removes(1, 1, out("first")), removes(2, 1, out("again"))}
	ok(t, s.Flush(t.Context(), units))
	if got := flags(units); got != "L." {
		t.Errorf("units %s", got)
	}
	var parts []string
	for _, c := range f.take() {
		for _, part := range []string{"begin", recordPart, removePart, unkeyedPart, "[out]", "commit"} {
			if strings.Contains(c.text, part) {
				parts = append(parts, part)
			}
		}
	}
	want := []string{"begin", recordPart, removePart, unkeyedPart, recordPart, removePart, "[out]", "commit"}
	if diff := cmp.Diff(want, parts); diff != "" {
		t.Error(diff)
	}
}

func TestOneKeyIsRecordedOnceInABatch(t *testing.T) {
	first := fresh(1)
	first.then = &answer{sets: [][][]driver.Value{{}}}
	f, s := newFake(t, map[string]answer{recordPart: first, "[out]": numbers(7)})
	units := []*tablequeue.Unit{records(1, out("a")), records(1, out("b"))}
	ok(t, s.Flush(t.Context(), units))
	calls := f.take()
	if got := flags(units); got != ".H" || len(calls) != 5 {
		t.Errorf("units %s, asked %+v", got, calls)
	}
	// Executed again, nothing of the attempt before counts.
	f.answers[recordPart] = fresh(1)
	ok(t, s.Flush(t.Context(), units[1:]))
	if units[1].Handled {
		t.Error("the unit is still handled")
	}
}

func TestARivalIsFoundByTheNextAttempt(t *testing.T) {
	for _, number := range []int32{duplicateKey, duplicateIndex} {
		f, s := newFake(t, map[string]answer{recordPart: serverError(number, 14)})
		err := s.Flush(t.Context(), []*tablequeue.Unit{records(1, out("a"))})
		if got := s.Classify(err); got != tablequeue.Conflict {
			t.Errorf("class %v of %v", got, err)
		}
		if got := f.texts(); got[len(got)-1] != "rollback" {
			t.Errorf("asked %q", got)
		}
		own, _ := begun(t, s)
		u := records(1, out("a"))
		ok(t, own.Complete(t.Context(), u))
		if got := f.texts(); !u.Handled || got[len(got)-1] != "rollback" {
			t.Errorf("handled %t, asked %q", u.Handled, got)
		}
	}
}

func TestAHandlersTransactionRecordsItsKey(t *testing.T) {
	f, s := newFake(t, map[string]answer{recordPart: fresh(1), "[out]": numbers(7), removePart: numbers(0)})
	for name, test := range map[string]struct {
		unit *tablequeue.Unit
		want []string
	}{
		"entry":             {records(1, out("a")), []string{"begin", "INSERT charges", recordPart, "[out]", "commit"}},
		"entry without key": {&tablequeue.Unit{Verb: tablequeue.Record, Rows: []tablequeue.Row{out("a")}}, []string{"begin", "INSERT charges", "[out]", "commit"}},
		"completion":        {removes(1, 1, out("a")), []string{"begin", "INSERT charges", recordPart, removePart, "[out]", "commit"}},
		"known key":         {records(2, out("a")), []string{"begin", "INSERT charges", recordPart, "rollback"}},
	} {
		f.answers[recordPart] = fresh(1)
		if name == "known key" {
			f.answers[recordPart] = fresh()
		}
		own, _ := begun(t, s)
		ok(t, own.Complete(t.Context(), test.unit))
		calls := f.take()
		matches := slices.EqualFunc(calls, test.want, func(a asked, part string) bool { return strings.Contains(a.text, part) })
		if !matches || test.unit.Handled != (name == "known key") {
			t.Errorf("%s: handled %t, asked %+v", name, test.unit.Handled, calls)
		}
	}
}

func TestAMissingInboxIsNoQueue(t *testing.T) {
	_, s := newFake(t, map[string]answer{
		"[in]": serverError(208, 16), "holdfast_handled": serverError(208, 16), "INSERT INTO [dbo].[out]": numbers(1),
	})
	k := keyOf(1)
	err := s.Flush(t.Context(), []*tablequeue.Unit{records(1, out("a"))})
	isErr(t, err, transport.ErrNoQueue)
	if got := s.Classify(err); got != tablequeue.Refused {
		t.Errorf("class %v", got)
	}
	_, err = s.FindHandled(t.Context(), "in", []transport.HandledKey{k})
	isErr(t, err, transport.ErrNoQueue)
	_, err = s.Forget(t.Context(), "in", time.Hour, 10)
	isErr(t, err, transport.ErrNoQueue)
	_, err = s.ForgetKeys(t.Context(), "in", []transport.HandledKey{k})
	isErr(t, err, transport.ErrNoQueue)
	_, err = s.DueForForgetting(t.Context(), "in", time.Minute)
	isErr(t, err, transport.ErrNoQueue)
	_, err = s.InspectInbox(t.Context(), "in")
	isErr(t, err, transport.ErrNoQueue)
}

func TestKeysAreFoundByTheirNumber(t *testing.T) {
	f, s := newFake(t, map[string]answer{"h.[sum] FROM": rowsOf([]driver.Value{int64(2), int64(-13)}, []driver.Value{int64(0), int64(5)})})
	states, err := s.FindHandled(t.Context(), "in", []transport.HandledKey{keyOf(1), keyOf(2), keyOf(3)})
	ok(t, err)
	if diff := cmp.Diff([]transport.HandledState{transport.HandledOther, transport.NotHandled, transport.Handled}, states); diff != "" {
		t.Error(diff)
	}
	if got := f.take(); len(got) != 1 || got[0].tx {
		t.Errorf("asked %+v", got)
	}
	f.answers = map[string]answer{"h.[sum] FROM": {err: io.EOF}}
	_, err = s.FindHandled(t.Context(), "in", []transport.HandledKey{keyOf(1)})
	if got := s.Classify(err); got != tablequeue.Unknown {
		t.Errorf("class %v of a broken connection", got)
	}
}

func TestOldKeysAreRemovedByTheirAge(t *testing.T) {
	f, s := newFake(t, map[string]answer{
		"SET forgotten_at": numbers(1), "DELETE FROM old": numbers(5), unkeyedPart: numbers(1),
		"count_big": rowsOf([]driver.Value{int64(5), int64(16384), int64(2), int64(90_000_000)}),
	})
	due, err := s.DueForForgetting(t.Context(), "in", time.Minute)
	ok(t, err)
	n, err := s.Forget(t.Context(), "in", time.Hour, 10)
	ok(t, err)
	removed, err := s.ForgetKeys(t.Context(), "in", []transport.HandledKey{keyOf(1), keyOf(2)})
	ok(t, err)
	if !due || n != 5 || removed != 1 {
		t.Errorf("due %t, %d old keys, %d named ones", due, n, removed)
	}
	calls := f.take()
	if calls[0].args["ago"] != int64(-60_000_000) || calls[1].args["ago"] != int64(-3_600_000_000) || calls[1].args["limit"] != 10 {
		t.Errorf("arguments %v and %v", calls[0].args, calls[1].args)
	}
	stats, err := s.InspectInbox(t.Context(), "in")
	ok(t, err)
	want := transport.InboxStats{Name: "in", Rows: 5, Bytes: 16384, LastHour: 2, Oldest: 90 * time.Second}
	if diff := cmp.Diff(want, stats); diff != "" {
		t.Error(diff)
	}
	f.answers["SET forgotten_at"] = numbers(0)
	if due, err := s.DueForForgetting(t.Context(), "in", time.Minute); err != nil || due {
		t.Errorf("due %t, %v, though another process was first", due, err)
	}
}

func TestTheStateOfAnInbox(t *testing.T) {
	const versionPart = "SELECT version"
	for name, test := range map[string]struct {
		columns, version answer
		want             string
	}{
		"there":          {column("key", "at", "sum"), numbers(1), ""},
		"missing":        {column(), numbers(), transport.ErrNoQueue.Error()},
		"not noted":      {column("key", "at", "sum"), numbers(), transport.ErrNoQueue.Error()},
		"of another use": {column("key", "value"), numbers(), `no column "at"`},
		"newer":          {column("key", "at", "sum"), numbers(2), "update this program"},
		"silent":         {answer{err: io.EOF}, numbers(1), "EOF"},
	} {
		_, s := newFake(t, map[string]answer{columnsPart: test.columns, versionPart: test.version})
		err := s.InboxState(t.Context(), "in")
		if test.want == "" {
			ok(t, err)
			continue
		}
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q", name, err, test.want)
		}
		_, unfit := errors.AsType[*tablequeue.UnfitError](err)
		if want := name == "newer" || name == "of another use"; unfit != want {
			t.Errorf("%s: unfit %t", name, unfit)
		}
	}
}

func TestInboxesAreInstalledAfterTheQueues(t *testing.T) {
	f, s := newFake(t, nil)
	plan := transport.Plan{Queues: []transport.Queue{{Name: "q"}}, Inboxes: []string{"in", "other"}}
	ok(t, s.Install(t.Context(), plan))
	var texts []string
	for _, c := range f.take() {
		texts = append(texts, c.text)
	}
	want := []string{
		createInboxVersions("dbo"), s.inbox("in").create, s.inbox("in").note, s.inbox("other").create, s.inbox("other").note, "commit",
	}
	if diff := cmp.Diff(want, texts[max(0, len(texts)-len(want)):]); diff != "" {
		t.Error(diff)
	}
	script, err := (&Transport{}).Script(plan)
	ok(t, err)
	for _, statement := range want[:5] {
		if !strings.Contains(script, statement+"\nGO\n") {
			t.Errorf("the script lacks %s", statement)
		}
	}
	if _, err := (&Transport{}).Script(transport.Plan{Inboxes: []string{"a\n$(x)"}}); err == nil {
		t.Error("an inbox is in a script that sqlcmd would take for a command")
	}
	ok(t, s.Install(t.Context(), transport.Plan{Queues: plan.Queues}))
	for _, c := range f.take() {
		if strings.Contains(c.text, "holdfast_handled") {
			t.Errorf("without an inbox: %s", c.text)
		}
	}
}

// The engine's Conn is an outbox store on this dialect, whose transaction is the handler's.
func TestTxIsTheTransactionOfAnOutbox(t *testing.T) {
	f, s := newFake(t, map[string]answer{recordPart: fresh(1), "[out]": numbers(7)})
	c := tablequeue.Open(s.parts(), tablequeue.Config{})
	defer func() { ok(t, c.Close()) }()
	k := keyOf(1)
	e := transport.OutboxEntry{Inbox: "in", Key: &k, Ops: []transport.Operation{{Queue: "out", Message: &transport.Message{ID: "a"}}}}
	for _, want := range []error{nil, transport.ErrAlreadyHandled} {
		tx, err := c.BeginStore(t.Context(), e)
		ok(t, err)
		own, err := Tx(t.Context(), session{tx})
		ok(t, err)
		_, err = own.ExecContext(t.Context(), "INSERT charges")
		ok(t, err)
		if err := tx.Complete(t.Context(), nil); !errors.Is(err, want) {
			t.Errorf("error %v, want %v", err, want)
		}
		f.answers[recordPart] = fresh()
	}
	if err := c.Store(t.Context(), e); !errors.Is(err, transport.ErrAlreadyHandled) {
		t.Errorf("error %v, want ErrAlreadyHandled", err)
	}
}

func TestTheClockIsTheServers(t *testing.T) {
	want := time.Date(2030, 1, 2, 3, 4, 5, 6700, time.UTC)
	f, s := newFake(t, map[string]answer{databaseTime: rowsOf([]driver.Value{want})})
	now, err := s.Now(t.Context())
	ok(t, err)
	if !now.Equal(want) {
		t.Errorf("the time is %v, want %v", now, want)
	}
	f.answers[databaseTime] = answer{err: io.EOF}
	if _, err := s.Now(t.Context()); err == nil {
		t.Error("a server that does not answer has a time")
	}
}
