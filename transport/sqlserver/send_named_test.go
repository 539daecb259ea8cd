package sqlserver

import (
	"slices"
	"strings"
	"testing"
	"time"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	vacatePart = "INNER LOOP JOIN [dbo].[out] AS q WITH (INDEX (holdfast_timer)"
	namedPart  = "Expires, timer)"
)

func called(name byte, body string) tablequeue.Row {
	r := out(body)
	r.Name, r.After = [16]byte{0: name}, time.Hour
	return r
}

func TestNamedRowsAreReplacedInTheOrderOfTheirNames(t *testing.T) {
	f, s := newFake(t, map[string]answer{"[out] (Headers, Body, visible_at, Expires)\n": numbers(1), vacatePart: {}, namedPart: numbers(2, 3)})
	removed := called(2, "")
	removed.Removes = true
	ok(t, s.Flush(t.Context(), []*tablequeue.Unit{
		{Rows: []tablequeue.Row{called(3, "c"), out("plain"), removed}},
		{Rows: []tablequeue.Row{called(1, "a"), called(3, "last")}},
	}))
	calls := f.take()
	want := []string{"begin", "Expires)", vacatePart, namedPart, "commit"}
	if !slices.EqualFunc(calls, want, func(a asked, part string) bool { return strings.Contains(a.text, part) }) {
		t.Fatalf("asked %+v", calls)
	}
	names, _ := calls[2].args["names"].(mssql.NVarCharMax)
	if want := `["01000000-0000-0000-0000-000000000000","02000000-0000-0000-0000-000000000000","03000000-0000-0000-0000-000000000000"]`; string(names) != want {
		t.Errorf("the names are %s", names)
	}
	rows, _ := calls[3].args["rows"].(mssql.NVarCharMax)
	if text := string(rows); strings.Count(text, `"n":`) != 2 || !strings.Contains(text, `{"k":"a"}`) || !strings.Contains(text, `{"k":"last"}`) ||
		!strings.Contains(text, `"name":"03000000-0000-0000-0000-000000000000"`) {
		t.Errorf("the rows are %s", text)
	}
	ok(t, s.Flush(t.Context(), []*tablequeue.Unit{{Rows: []tablequeue.Row{removed}}}))
	if calls = f.take(); len(calls) != 3 || !strings.Contains(calls[1].text, vacatePart) {
		t.Errorf("asked %+v to remove a row", calls)
	}
}

func TestTheSameNameElsewhereIsAConflictAndNoDuplicate(t *testing.T) {
	for _, number := range []int32{duplicateKey, duplicateIndex} {
		_, s := newFake(t, map[string]answer{vacatePart: {}, namedPart: serverError(number, 14)})
		unit := func() *tablequeue.Unit {
			return &tablequeue.Unit{Verb: tablequeue.Record, Rows: []tablequeue.Row{called(1, "a")}}
		}
		if err := s.Flush(t.Context(), []*tablequeue.Unit{unit()}); s.Classify(err) != tablequeue.Conflict {
			t.Errorf("class %v of %v", s.Classify(err), err)
		}
		own, _ := begun(t, s)
		u := unit()
		if err := own.Complete(t.Context(), u); u.Handled || s.Classify(err) != tablequeue.Conflict {
			t.Errorf("handled %t, class %v of %v", u.Handled, s.Classify(err), err)
		}
	}
}

func TestATableWithoutTimersRefusesNames(t *testing.T) {
	for _, number := range []int32{invalidColumn, missingIndex} {
		_, s := newFake(t, map[string]answer{vacatePart: serverError(number, 16), "sys.columns": rowsOf()})
		err := s.Flush(t.Context(), []*tablequeue.Unit{{Rows: []tablequeue.Row{called(1, "a")}}})
		isErr(t, err, tablequeue.ErrNoTimers)
		if got := s.Classify(err); got != tablequeue.Refused {
			t.Errorf("class %v of %v", got, err)
		}
	}
}

func TestTheInstallerAddsTimersWhereTheyAreAskedFor(t *testing.T) {
	for _, timers := range []bool{false, true} {
		script, err := (&Transport{URL: "sqlserver://h?database=d"}).Script(transport.Plan{Queues: []transport.Queue{{Name: "q", Timers: timers}}})
		ok(t, err)
		if got := strings.Contains(script, "ADD timer") && strings.Contains(script, "INDEX holdfast_timer"); got != timers {
			t.Errorf("with Timers %t the script adds them: %t", timers, got)
		}
	}
}
