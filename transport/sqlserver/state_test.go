package sqlserver

import (
	"database/sql/driver"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	mssql "github.com/microsoft/go-mssqldb"

	"github.com/holdfast-go/holdfast/internal/stateset"
	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

var (
	recordID   = transport.RecordID{0: 0xab, 15: 1}
	recordName = &transport.RecordName{Kind: "orders@sales", Key: "o-\x00'1"}
)

const (
	lockRecordPart = "WITH (UPDLOCK, ROWLOCK, READCOMMITTEDLOCK) WHERE id = @id"
	saveRecordPart = "WITH (ROWLOCK) SET version = @version"
)

// recordRow is the answer of the server with a record.
func recordRow(version, status int64, state any) answer {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return rowsOf([]driver.Value{recordID[:], []byte(recordName.Kind), []byte(recordName.Key), version, status, state, nil, at, at})
}

// loadRecord begins a transaction and loads the record.
func loadRecord(t *testing.T, s *store, create *transport.RecordName) (tablequeue.StoreTx, transport.Record, error) {
	t.Helper()
	tx, err := s.Begin(t.Context())
	ok(t, err)
	r, err := tx.(tablequeue.RecordTx).LoadRecord(t.Context(), recordID, create)
	return tx, r, err
}

func TestARecordIsLockedAndSaved(t *testing.T) {
	f, s := newFake(t, map[string]answer{lockRecordPart: recordRow(3, 1, `{"n":1}`), saveRecordPart: numbers(1)})
	tx, r, err := loadRecord(t, s, nil)
	ok(t, err)
	want := transport.Record{ID: recordID, Name: *recordName, Status: transport.RecordActive, Version: 3, State: []byte(`{"n":1}`)}
	want.Started = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	want.Changed = want.Started
	if diff := cmp.Diff(want, r); diff != "" {
		t.Error(diff)
	}
	var set stateset.Set
	set.Add(r)
	r.Status, r.Meta, r.Keep = transport.RecordEnded, []byte(`{"m":1}`), time.Hour
	ok(t, set.Save(r, time.Now()))
	ok(t, tx.Complete(t.Context(), &tablequeue.Unit{Verb: tablequeue.Record, Records: set.Changes()}))
	calls := f.take()
	if n := len(calls); n != 4 || calls[0].text != "begin" || calls[3].text != "commit" || !calls[2].tx {
		t.Fatalf("asked %+v", calls)
	}
	if !strings.HasPrefix(calls[1].text, recordWait) {
		t.Errorf("the lock is %s", calls[1].text)
	}
	save := calls[2].args
	state, _ := save["state"].(string)
	meta, _ := save["meta"].(mssql.NVarCharMax)
	if save["loaded"] != int64(3) || save["version"] != int64(4) || save["status"] != int64(2) || state != "" ||
		string(meta) != `{"m":1}` || save["keep"] != time.Hour.Microseconds() {
		t.Errorf("saved by %v", save)
	}
}

func TestARecordIsCreatedWithVersionZero(t *testing.T) {
	f, s := newFake(t, map[string]answer{lockRecordPart: recordRow(0, 0, nil), "version = @loaded": numbers(1)})
	tx, r, err := loadRecord(t, s, recordName)
	ok(t, err)
	if r.Status != transport.RecordNew || r.Version != 0 || !r.Started.IsZero() {
		t.Errorf("%+v", r)
	}
	var set stateset.Set
	set.Add(r)
	ok(t, tx.Complete(t.Context(), &tablequeue.Unit{Verb: tablequeue.Record, Records: set.Changes()})) // it was not saved
	texts := f.texts()
	if len(texts) != 5 || !strings.HasPrefix(texts[1], "SET LOCK_TIMEOUT") || !strings.HasPrefix(texts[3], "DELETE FROM [dbo].[holdfast_state]") {
		t.Errorf("asked %q", texts)
	}
}

func TestARecordThatIsMissing(t *testing.T) {
	_, s := newFake(t, map[string]answer{lockRecordPart: rowsOf()})
	if _, _, err := loadRecord(t, s, nil); !errors.Is(err, transport.ErrNoRecord) {
		t.Errorf("%v", err)
	}
	if _, _, err := loadRecord(t, s, recordName); !errors.Is(err, transport.ErrConflict) {
		t.Errorf("a record that others remove again and again: %v", err)
	}
	_, s = newFake(t, map[string]answer{lockRecordPart: serverError(invalidObject, 16)})
	if _, _, err := loadRecord(t, s, nil); !errors.Is(err, transport.ErrNoQueue) {
		t.Errorf("without the table: %v", err)
	}
}

func TestARecordThatWasChangedIsAConflict(t *testing.T) {
	_, s := newFake(t, map[string]answer{lockRecordPart: recordRow(3, 1, `1`), saveRecordPart: numbers(0)})
	tx, r, err := loadRecord(t, s, nil)
	ok(t, err)
	var set stateset.Set
	set.Add(r)
	ok(t, set.Save(r, time.Now()))
	err = tx.Complete(t.Context(), &tablequeue.Unit{Verb: tablequeue.Record, Records: set.Changes()})
	if err == nil || s.Classify(err) != tablequeue.Conflict {
		t.Errorf("%v", err)
	}
}

func TestALockOnARecordIsLocked(t *testing.T) {
	_, s := newFake(t, map[string]answer{lockRecordPart: serverError(lockTimeoutExceeded, 16)})
	_, _, err := loadRecord(t, s, nil)
	if s.Classify(err) != tablequeue.Locked {
		t.Errorf("%v", err)
	}
}

// The table of records is installed if records are stored.
func TestTableOfRecordsIsInstalled(t *testing.T) {
	for _, records := range [][]string{nil, {"orders@sales"}} {
		script, err := (&Transport{URL: "sqlserver://h?database=d"}).Script(transport.Plan{Records: records})
		ok(t, err)
		if got := strings.Contains(script, "holdfast_state"); got != (records != nil) {
			t.Errorf("with records %v the script creates the table: %t", records, got)
		}
	}
}

func TestTheTableOfRecordsIsExamined(t *testing.T) {
	all := column("id", "kind", "key", "version", "status", "state", "meta", "started", "changed", "forget_at")
	for name, test := range map[string]struct {
		columns, version answer
		unfit            bool
		want             error
	}{
		"whole":        {columns: all, version: numbers(1)},
		"missing":      {columns: rowsOf(), want: transport.ErrNoQueue},
		"no version":   {columns: all, version: rowsOf(), want: transport.ErrNoQueue},
		"newer":        {columns: all, version: numbers(2), unfit: true},
		"another kind": {columns: column("id"), version: numbers(1), unfit: true},
	} {
		t.Run(name, func(t *testing.T) {
			_, s := newFake(t, map[string]answer{"FROM sys.columns": test.columns, "SELECT version": test.version})
			err := s.RecordsState(t.Context())
			if _, unfit := errors.AsType[*tablequeue.UnfitError](err); unfit != test.unfit || !unfit && !errors.Is(err, test.want) {
				t.Errorf("%v", err)
			}
		})
	}
}
