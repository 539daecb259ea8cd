package outage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/endpoint/internal/work"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/transport"
)

var (
	errDown   = fmt.Errorf("%w: restarting", transport.ErrUnreachable)
	errDenied = fmt.Errorf("%w: insert", transport.ErrDenied)
	errOther  = errors.New("broken")
)

// fake is a database with answers.
type fake struct {
	probe, stores, records error
	asked                  int // how often the database was asked for a row
}

func (f *fake) database(t *testing.T) *Database {
	o := New(t.Context(), "outbox", Questions{
		Probe:         func(context.Context) error { return f.probe },
		Stores:        func(context.Context) error { f.asked++; return f.stores },
		StoresRecords: func(context.Context) error { return f.records },
	}, slog.New(slog.DiscardHandler))
	t.Cleanup(o.Close)
	return o
}

// fakeTx is a transaction whose driver takes errOther for an outage.
type fakeTx struct{ transport.Tx }

func (fakeTx) Outage(_ context.Context, err error) bool { return errors.Is(err, errOther) }

// fakeStore counts rollbacks.
type fakeStore struct {
	work.Store
	undone int
}

func (s *fakeStore) Undo(context.Context, transport.Tx, string) { s.undone++ }

func delivery(elsewhere bool) *settle.Delivery {
	return &settle.Delivery{Settler: &settle.Settler{Log: slog.New(slog.DiscardHandler), TxElsewhere: elsewhere}}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestAnOutageEndsWhenTheDatabaseCanBeUsed(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		ends bool
	}{
		{"not reachable", errDown, false},
		{"no answer", context.DeadlineExceeded, false},
		{"no table", transport.ErrNoQueue, false},
		{"no right", errDenied, false},
		{"another error", errOther, true},
		{"no error", nil, true},
	} {
		for _, question := range []string{"probe", "stores", "records"} {
			t.Run(tt.name+" "+question, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := &fake{}
					*map[string]*error{"probe": &f.probe, "stores": &f.stores, "records": &f.records}[question] = tt.err
					o := f.database(t)
					over := o.Began(t.Context(), errDown)
					if again := o.Began(t.Context(), errOther); again != over {
						t.Error("a second outage began in an outage")
					}
					time.Sleep(time.Hour)
					if isClosed(over) != tt.ends {
						t.Errorf("over: %t, want %t", !tt.ends, tt.ends)
					}
					s := o.Status()
					if s.Of != "outbox" || (s.Err == nil) != tt.ends || !tt.ends && time.Since(s.Since) != time.Hour {
						t.Errorf("status %+v", s)
					}
					o.Close()
				})
			})
		}
	}
}

// The pause before a probe grows from outage to outage, unless the database has written meanwhile.
// One commit shortens one pause.
func TestThePauseGrowsUntilACommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := new(fake).database(t)
		lasting := func() time.Duration {
			began := time.Now()
			<-o.Began(t.Context(), errDown)
			return time.Since(began)
		}
		for range 5 {
			lasting()
		}
		long := lasting()
		o.Committed.Store(true)
		if short := lasting(); long < MaxPause/2 || short > minPause {
			t.Errorf("the outage lasted %v, and after a commit %v", long, short)
		}
		for range 5 {
			lasting()
		}
		if long = lasting(); long < MaxPause/2 {
			t.Errorf("the last of the outages after the commit lasted %v", long)
		}
		o.Close()
	})
}

func TestWithoutADatabaseNoFailureIsAnOutage(t *testing.T) {
	var o *Database
	var u work.Unit
	_ = u.Fail(&work.CommitError{Err: errDown})
	ctx, d := t.Context(), delivery(true)
	if o.FailsAlone(ctx, d, &u, errDown, false) || o.BreaksAlone(ctx, d, &u, errDown) || o.StoresOthers(ctx) ||
		o.Down(ctx, d, &u, fakeTx{}, errOther) != nil || o.Status().Err != nil {
		t.Error("there is an outage of no database")
	}
	o.Close()
}

func TestAFailedCommitIsComparedWithOtherRows(t *testing.T) {
	for _, tt := range []struct {
		name            string
		commit, stores  error
		known           bool
		alone, impeded  bool
		others, isAsked bool
	}{
		{"others are stored", errDown, nil, false, true, false, true, true},
		{"a right is missing", errDenied, nil, false, true, false, true, true},
		{"nothing is stored", errDown, errDown, false, false, false, false, true},
		{"a full disk", errors.Join(errDown, errOther), nil, false, false, true, true, true},
		{"a full database", errors.Join(errDown, errOther), errDown, false, false, false, false, true},
		{"in a known outage", errDown, nil, true, false, false, false, false},
		{"a refused row", errOther, nil, false, false, true, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{probe: errDown, stores: tt.stores}
				o, ctx := f.database(t), t.Context()
				if tt.known {
					o.Began(ctx, errDown)
				}
				var u work.Unit
				u.Resume(nil, fakeTx{})
				err := u.Fail(&work.CommitError{Err: tt.commit})
				if got := o.FailsAlone(ctx, delivery(true), &u, err, false); got != tt.alone {
					t.Errorf("fails alone: %t", got)
				}
				if got := o.IsImpeded(ctx, fakeTx{}, err); got != tt.impeded {
					t.Errorf("impeded: %t", got)
				}
				if got := o.StoresOthers(ctx); got != tt.others {
					t.Errorf("stores others: %t", got)
				}
				if (f.asked > 0) != tt.isAsked {
					t.Errorf("asked for a row %d times", f.asked)
				}
				o.Close()
			})
		})
	}
}

// The failure of a statement about records is the message's own if the database has the rights to
// records. The question follows the rollback, because it may need the connection.
func TestAFailedRecordIsComparedWithOthers(t *testing.T) {
	for _, tt := range []struct {
		name       string
		records    error
		repeatable bool
		alone      bool
		undone     int
	}{
		{"others are stored", nil, false, true, 1},
		{"no record is stored", errDenied, false, false, 1},
		{"the attempt may be repeated", nil, true, false, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, store := &fake{records: tt.records}, new(fakeStore)
			u := work.Unit{Store: store}
			u.Resume(nil, fakeTx{})
			err := fmt.Errorf("load: %w", &stateful.StoreError{Err: errDenied})
			got := f.database(t).FailsAlone(t.Context(), delivery(true), &u, err, tt.repeatable)
			if got != tt.alone || store.undone != tt.undone {
				t.Errorf("fails alone: %t, %d rollbacks; want %t, %d", got, store.undone, tt.alone, tt.undone)
			}
		})
	}
}

func TestWhyTheDatabaseIsDown(t *testing.T) {
	refused := func(err error) error { return &transport.DispatchError{Ops: []transport.OpError{{Err: err}}} }
	record := func(err error) error { return &stateful.StoreError{Err: err} }
	for _, tt := range []struct {
		name            string
		unit, failure   error
		probe, stores   error
		elsewhere, open bool
		want            string // "" for not down
	}{
		{name: "a handler's error", failure: errOther},
		{name: "unreachable", unit: errDown, want: "restarting"},
		{name: "no table", unit: transport.ErrNoQueue, want: "Config.Install"},
		{name: "no destination", unit: refused(transport.ErrNoQueue)},
		{name: "no table of an outbox", unit: refused(transport.ErrNoQueue), elsewhere: true, want: "Config.Install"},
		{name: "no right", unit: errDenied, want: "tables of the outbox and the inbox"},
		{name: "no right to a destination", unit: refused(errDenied)},
		{name: "no right to the inbox", unit: refused(errDenied), stores: errDenied, want: "grant SELECT"},
		{name: "an expired begin", unit: &work.ExpiredError{Err: errDown}},
		{name: "an expired begin, no answer", unit: &work.ExpiredError{Err: errOther}, probe: errDown, want: "restarting"},
		{name: "records away", failure: record(errDown), want: "restarting"},
		{name: "no table of records", failure: record(transport.ErrNoQueue), want: "the table of records"},
		{name: "no right to records", failure: record(errDenied), want: "on the table of records"},
		{name: "a full disk", failure: errOther, open: true, want: "broken"},
		{name: "a lost connection", failure: errDenied, open: true, probe: errDown, want: "restarting"},
		{name: "a handler's error in a transaction", failure: errDenied, open: true, probe: errOther},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := (&fake{probe: tt.probe, stores: tt.stores}).database(t)
			var u work.Unit
			if tt.unit != nil {
				_ = u.Fail(tt.unit)
			}
			var tx transport.Tx
			if tt.open {
				tx = fakeTx{}
			}
			err := o.Down(t.Context(), delivery(tt.elsewhere), &u, tx, tt.failure)
			if (err != nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("down: %v, want %q", err, tt.want)
			}
		})
	}
}

func TestAnImpededMessageFailsAfterALongTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p Impediment
		began, d := time.Now(), delivery(true)
		for range 1000 {
			pause, err := p.Next(t.Context(), d, errOther)
			if err != nil {
				if !errors.Is(err, errOther) || !strings.Contains(err.Error(), "for 10m0s") {
					t.Errorf("failed with %v", err)
				}
				break
			}
			if pause <= 0 || pause > MaxPause+MaxPause/2 {
				t.Fatalf("a pause of %v", pause)
			}
			time.Sleep(pause)
		}
		if took := time.Since(began); took < maxImpeded || took > maxImpeded+time.Minute {
			t.Errorf("failed after %v", took)
		}
	})
}
