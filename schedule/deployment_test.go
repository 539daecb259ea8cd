package schedule_test

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/schedule"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// The two versions of a program differ in one schedule.
var (
	firstVersion  = schedule.Schedule{Name: "reports", Every: 40 * time.Minute, Message: buildReport{}}
	secondVersion = schedule.Schedule{Name: "reports", Every: 50 * time.Minute, Message: buildReport{}}
)

const (
	oldTimes = "every 40m0s"
	newTimes = "every 50m0s"
)

// another returns another process of the endpoint.
func (s *shop) another() *shop {
	return &shop{t: s.t, broker: s.broker, db: s.db, started: s.started}
}

// wantTimes checks the times of the only plan.
func (s *shop) wantTimes(when, want string) {
	s.t.Helper()
	if all := s.snapshot().Schedules; len(all) != 1 || all[0].Times != want {
		s.t.Errorf("%s: %+v, want %s", when, all, want)
	}
}

// database returns the database of the endpoint.
func (s *shop) database() stateful.Database {
	s.t.Helper()
	conn, err := s.db.Open(s.t.Context(), transport.Env{Endpoint: "billing"})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	db, err := stateful.DatabaseOn(conn)
	if err != nil {
		s.t.Fatal(err)
	}
	return db
}

const kindOfProcesses = "holdfast.schedules.processes@billing"

func (s *shop) processes() []transport.Record {
	s.t.Helper()
	records, err := s.database().Records(s.t.Context(), transport.RecordPage{Kind: kindOfProcesses, Limit: 100})
	if err != nil {
		s.t.Fatal(err)
	}
	return records
}

// change changes the record with an id, or a new one.
func (s *shop) change(id transport.RecordID, create *transport.RecordName, f func(r *transport.Record)) {
	s.t.Helper()
	err := s.database().Change(s.t.Context(), func(store transport.StateStore) ([]transport.Operation, error) {
		r, err := store.Load(s.t.Context(), id, create)
		if err != nil {
			return nil, err
		}
		f(&r)
		return nil, store.Save(s.t.Context(), r)
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// changePlan changes members of the plan of "reports", as a process of another version does.
func (s *shop) changePlan(members map[string]any) {
	s.t.Helper()
	s.change(saga.ID("billing", "holdfast.schedules", "reports"), nil, func(r *transport.Record) {
		r.State = s.changed(r.State, members)
	})
}

// crash ends the process without the removal of its record.
func (s *shop) crash() {
	s.t.Helper()
	before := s.processes()
	s.stop()
	s.stop = nil
	for _, old := range before {
		s.change(old.ID, &old.Name, func(r *transport.Record) {
			r.Meta, r.Status, r.Keep = old.Meta, transport.RecordEnded, time.Hour
		})
	}
}

func TestTheLaterStartDecides(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(firstVersion)
		s.after(time.Minute)
		other := s.another()
		other.start(secondVersion)
		for range 24 {
			s.wantTimes("with both", newTimes)
			s.after(5 * time.Minute)
		}
		if len(s.times())+len(other.times()) == 0 {
			t.Error("no occurrence has run")
		}
		other.stop()
		s.after(6 * time.Minute)
		s.wantTimes("with the first alone", oldTimes)
	})
}

// The second version is made before the first, and starts after it: by the clocks of their
// processes it is the older.
func TestAClockThatIsAheadDecidesNothing(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		other := s.another()
		run := other.prepare(secondVersion)
		s.after(time.Hour)
		s.start(firstVersion)
		s.after(time.Minute)
		run()
		s.after(6 * time.Minute)
		s.wantTimes("with both", newTimes)
		s.stop()
		s.stop = nil
		other.after(2 * time.Hour)
		other.wantTimes("with the second alone", newTimes)
		other.stop()
	})
}

// A process of an older version stores no id, and the time of its own clock.
func TestAPlanOfAnOlderVersionIsChanged(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(firstVersion)
		s.after(time.Minute)
		s.stop()
		s.changePlan(map[string]any{"Process": nil, "Since": time.Now().Add(12 * time.Hour)})
		s.start(secondVersion)
		s.after(time.Minute)
		s.wantTimes("after a change", newTimes)

		// An older version changes the plan once more, and leaves the id of the process.
		s.changePlan(map[string]any{"Spec": `{"every":2400000000000}`, "Since": time.Now().Add(12 * time.Hour)})
		s.wantTimes("changed by an older version", oldTimes)
		s.after(6 * time.Minute)
		s.wantTimes("after the next comparison", newTimes)
	})
}

func TestARestartDuringADeploymentIsUndone(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		old := s.another()
		old.start(firstVersion)
		s.after(time.Minute)
		s.start(secondVersion)
		s.after(time.Minute)
		old.stop()
		old = s.another()
		old.start(firstVersion)
		s.after(6 * time.Minute)
		s.wantTimes("with the restarted process", oldTimes)
		old.stop()
		s.after(6 * time.Minute)
		s.wantTimes("without the process", newTimes)
		s.after(2 * time.Hour)
		if len(s.times()) < 2 {
			t.Errorf("runs at %v", s.times())
		}
	})
}

// The process that crashed began last: only its silence ends its claim.
func TestACrashedProcessIsSilentAfterAWhile(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(secondVersion)
		s.after(time.Minute)
		records := s.processes()
		old := s.another()
		old.start(firstVersion)
		s.after(2 * time.Minute)
		old.crash()
		if n := len(s.processes()); n != 2 || len(records) != 1 {
			t.Fatalf("%d records of processes, before %d", n, len(records))
		}
		s.after(12 * time.Minute)
		s.wantTimes("14 minutes after the last sign", oldTimes)
		s.after(10 * time.Minute)
		s.wantTimes("24 minutes after the last sign", newTimes)
		s.after(time.Hour)
		if n := len(s.processes()); n != 1 {
			t.Errorf("%d records of processes after an hour", n)
		}
		s.stop()
		s.stop = nil
		if n := len(s.processes()); n != 0 {
			t.Errorf("%d records of processes that have ended", n)
		}
	})
}

// A plan names one of the processes that have its spec. When that one ends, another one takes its
// place.
func TestAnEqualProcessTakesThePlanOver(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(firstVersion)
		s.after(time.Minute)
		second, third := s.another(), s.another()
		second.start(secondVersion)
		s.after(time.Minute)
		third.start(secondVersion)
		s.after(time.Minute)
		second.stop()
		for range 30 {
			s.after(time.Minute)
			s.wantTimes("with the third", newTimes)
		}
		third.stop()
		s.after(6 * time.Minute)
		s.wantTimes("alone", oldTimes)
	})
}

// A process whose clock is behind that of an older version sets a time-out again that was lost.
func TestALostTimeOutIsSetByAnyProcess(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(firstVersion)
		s.after(time.Minute)
		s.changePlan(map[string]any{"Process": nil, "Since": time.Now().Add(12 * time.Hour), "Next": s.started})
		s.after(6 * time.Minute)
		if at := s.snapshot().Schedules[0]; at.Times != oldTimes || !at.Next.After(time.Now()) {
			t.Errorf("%+v", at)
		}
	})
}

// The name and the log of the endpoint are those that endpoint.New gets.
func TestANameSetAfterApplyCounts(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		scheduler, err := schedule.New(schedule.Config{Schedules: []schedule.Schedule{firstVersion}})
		if err != nil {
			t.Fatal(err)
		}
		cfg := endpoint.Config{
			Transport: broker, Install: true, Transactions: endpoint.SendsAtomicWithReceive,
			Messages: []endpoint.Message{endpoint.Command[buildReport]("Shop.BuildReport")},
			Handlers: []endpoint.Handler{endpoint.Handle(func(context.Context, *endpoint.Session, buildReport) error { return nil })},
		}
		scheduler.Apply(&cfg)
		cfg.Name = "billing"
		r := harness.Start(t, cfg)
		sleep(41 * time.Minute)
		inspector, err := scheduler.Inspector(r.Endpoint)
		if err != nil {
			t.Fatal(err)
		}
		snapshot, err := inspector.Snapshot(t.Context())
		if err != nil || len(snapshot.Schedules) != 1 || snapshot.Schedules[0].Last.Status != schedule.Succeeded {
			t.Errorf("%+v, %v", snapshot, err)
		}
	})
}
