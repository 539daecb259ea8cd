package schedule_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/schedule"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// longFirst returns a handler whose first run takes d.
func (s *shop) longFirst(d time.Duration) func(context.Context) error {
	return func(context.Context) error {
		if len(s.times()) == 1 {
			sleep(d)
		}
		return nil
	}
}

// runNow starts an occurrence with Inspector.Run.
func (s *shop) runNow() {
	s.t.Helper()
	if err := s.inspector().Run(s.t.Context(), "reports"); err != nil {
		s.t.Fatal(err)
	}
}

// wantRuns checks the times of the runs.
func (s *shop) wantRuns(want ...int) {
	s.t.Helper()
	if diff := cmp.Diff(seconds(want...), s.times()); diff != "" {
		s.t.Error(diff)
	}
}

// The first run ends after the third.
func TestAnOlderOutcomeReplacesNoNewerOne(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.report = s.longFirst(25 * time.Second)
		s.start(schedule.Schedule{Name: "reports", Every: 10 * time.Second, Message: buildReport{}, Overlap: schedule.AllowOverlap})
		s.after(36 * time.Second)
		if last := s.snapshot().Schedules[0].Last; last.Due.Sub(s.started) != 30*time.Second || s.job(s.run(0).JobID).Ended.IsZero() {
			t.Errorf("%+v", last)
		}
	})
}

// A run that Inspector.Run begins does not take the place of the current job, and its end frees no
// other.
func TestARunNowLeavesTheCurrentJob(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.report = s.longFirst(35 * time.Second)
		s.start(schedule.Schedule{Name: "reports", Every: 10 * time.Second, Message: buildReport{}})
		s.after(12 * time.Second)
		s.runNow()
		s.after(40 * time.Second)
		s.wantRuns(10, 12, 50)
		if at := s.snapshot().Schedules[0]; at.Skipped != 3 {
			t.Errorf("%+v", at)
		}
	})
}

// The plan of a schedule with After stays as it is while a run of Inspector.Run goes on.
func TestARunNowLeavesThePlanOfAfter(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.report = s.longFirst(30 * time.Second)
		s.start(schedule.Schedule{Name: "reports", After: 10 * time.Second, Message: buildReport{}})
		s.after(4 * time.Second)
		s.runNow()
		s.after(38 * time.Second)
		s.wantRuns(4, 10, 20, 30, 40)
		if at := s.snapshot().Schedules[0]; at.Skipped != 0 {
			t.Errorf("%+v", at)
		}
	})
}

// The plan has no time while the run goes on, and each comparison looks at the plan.
func TestALongRunHasNoNextTime(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.report = s.longFirst(22 * time.Minute)
		s.start(schedule.Schedule{Name: "reports", After: 10 * time.Second, Message: buildReport{}})
		s.after(20 * time.Minute)
		if at := s.snapshot().Schedules[0]; len(s.times()) != 1 || at.Skipped != 0 || !at.Next.IsZero() {
			t.Errorf("runs at %v, %+v", s.times(), at)
		}
		s.after(5 * time.Minute) // the run ends
	})
}

// The schedule goes on at once after the end of an occurrence that waits for a retry.
func TestTheEndOfAWaitingOccurrenceIsKnown(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.report = func(context.Context) error {
			if len(s.times()) <= 6 {
				return errors.New("no printer")
			}
			return nil
		}
		s.start(schedule.Schedule{Name: "reports", After: 10 * time.Second, Message: buildReport{}})
		s.after(15 * time.Second)
		id := s.run(0).JobID
		if job := s.job(id); job.Status != schedule.WaitingRetry {
			t.Fatalf("%+v", job)
		}
		if cancelled, err := s.inspector().Cancel(t.Context(), id); !cancelled || err != nil {
			t.Fatal(cancelled, err)
		}
		s.after(0)
		if at := s.snapshot().Schedules[0]; at.Last.Status != schedule.Cancelled || at.Last.Job != id || at.Current != "" {
			t.Errorf("%+v", at)
		}
		s.after(11 * time.Second)
		if n := len(s.times()); n != 7 {
			t.Errorf("%d runs", n)
		}
	})
}

// A cancelled job for later leaves no timer in the database.
func TestACancelledJobForLaterHasNoTimer(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start()
		conn, err := s.db.Open(t.Context(), transport.Env{Endpoint: "tool"})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		rows := func() int64 {
			stats, err := conn.(transport.Inspector).Inspect(t.Context(), "billing.outbox")
			if err != nil {
				t.Fatal(err)
			}
			return stats[0].Ready + stats[0].Unsettled + stats[0].Delayed
		}
		before := rows()
		id, err := s.scheduler.EnqueueFrom(t.Context(), s.endpoint, sendInvoice{"7"}, schedule.After(time.Hour))
		if err != nil || rows() != before+1 {
			t.Fatalf("%d rows, %v", rows(), err)
		}
		if cancelled, err := s.inspector().Cancel(t.Context(), id); !cancelled || err != nil {
			t.Fatal(cancelled, err)
		}
		s.after(time.Second)
		if rows() != before {
			t.Errorf("%d rows after the job was cancelled, want %d", rows(), before)
		}
	})
}

// The first attempt ends before EnqueueFrom stores the job.
func TestEnqueueFromLeavesAJobThatHasRun(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.sentTo = func(d *pipeline.Dispatch) {
			if d.Incoming == nil {
				sleep(time.Second)
			}
		}
		s.start()
		id, err := s.scheduler.EnqueueFrom(t.Context(), s.endpoint, sendInvoice{"7"})
		if err != nil {
			t.Fatal(err)
		}
		s.after(time.Second)
		if job := s.job(id); job.Status != schedule.Succeeded || job.Attempt != 1 || len(s.runs) != 1 {
			t.Errorf("%d runs, %+v", len(s.runs), job)
		}
		if n := s.snapshot().Active; n != 0 {
			t.Errorf("%d jobs are active", n)
		}
	})
}

// A reply to an occurrence is no message for the plan.
func TestAnOccurrenceNamesNoSaga(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		var saga []string
		s.sentTo = func(d *pipeline.Dispatch) {
			for _, op := range d.Operations {
				if op.Message != nil && op.Message.Headers.Get(header.EnclosedMessageTypes) == "Shop.BuildReport" {
					saga = append(saga, op.Message.Headers.Get(header.OriginatingSagaID)+op.Message.Headers.Get(header.OriginatingSagaType))
				}
			}
		}
		s.start(schedule.Schedule{Name: "reports", Every: 10 * time.Second, Message: buildReport{}})
		s.after(11 * time.Second)
		if diff := cmp.Diff([]string{""}, saga); diff != "" {
			t.Error(diff)
		}
	})
}

// The state of another attempt, which has begun meanwhile, stays as it is.
func TestAFailureIsThatOfOneAttempt(t *testing.T) {
	for name, retry := range map[string]struct{ immediate, delayed int }{
		"immediate": {1, recoverability.None}, "delayed": {recoverability.None, 1}, "final": {recoverability.None, recoverability.None},
	} {
		t.Run(name, func(t *testing.T) {
			inEachMode(t, func(t *testing.T, s *shop) {
				s.immediate, s.delayed = retry.immediate, retry.delayed
				var id string
				var armed atomic.Bool
				db := s.db.(*inmemory.Transport)
				db.Fail = func(verb, _ string) error {
					if verb == "Load" && armed.CompareAndSwap(true, false) {
						s.changeJob(id, map[string]any{"run": "another"})
					}
					return nil
				}
				s.report = func(ctx context.Context) error {
					if len(s.times()) > 1 {
						<-ctx.Done()
						return context.Cause(ctx)
					}
					id = s.run(0).JobID
					return errors.New("no printer")
				}
				s.failed = func() {
					if len(s.times()) == 1 {
						armed.Store(true)
					}
				}
				s.start(schedule.Schedule{Name: "reports", Every: time.Hour, Message: buildReport{}})
				s.after(time.Hour)
				if job := s.job(id); armed.Load() || job.RunID != "another" && job.Attempt != 2 || job.History[0].Outcome == schedule.AttemptFailed {
					t.Errorf("%+v", job)
				}
			})
		})
	}
}

// plan returns members of the plan of "reports".
func (s *shop) plan() (p planState) {
	s.t.Helper()
	h := &history{T: s.t, records: s.database()}
	p, known := h.plan()
	if !known {
		s.t.Fatal("there is no plan")
	}
	return p
}

// A process that knows the schedule ends the time since when no process knows the schedule.
func TestAKnownScheduleIsNotForgotten(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		unknown := map[string]any{"Unknown": time.Now()}
		s.start(hourly)
		s.after(time.Minute)
		s.changePlan(unknown)
		s.after(time.Hour)
		if p := s.plan(); len(s.times()) != 1 || !p.Unknown.IsZero() {
			t.Errorf("after an occurrence: %+v", p)
		}
		s.stop()
		s.changePlan(unknown)
		s.start(hourly)
		s.after(time.Second)
		if p := s.plan(); len(s.times()) != 1 || !p.Unknown.IsZero() {
			t.Errorf("after a start: %+v", p)
		}
	})
}

// The time-out is lost, and nothing else.
func TestALateOccurrenceIsSetAgain(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(firstVersion)
		s.after(time.Minute)
		s.changePlan(map[string]any{"Next": s.started})
		s.after(6 * time.Minute)
		if at := s.snapshot().Schedules[0]; !at.Next.After(time.Now()) {
			t.Errorf("%+v", at)
		}
	})
}

// 121 occurrences are missed: the last 100 of them run.
func TestCatchUpCountsTheOccurrencesThatItDrops(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		every := schedule.Schedule{Name: "reports", Every: 10 * time.Second, Message: buildReport{}, Missed: schedule.CatchUp}
		s.start(every)
		s.after(5 * time.Second)
		s.stop()
		s.after(1210 * time.Second)
		s.start(every)
		s.after(3 * time.Minute)
		at, due := s.snapshot().Schedules[0], int(time.Since(s.started)/every.Every)
		if n := len(s.times()); at.Missed == 0 || n < 100 || n+at.Missed > due {
			t.Errorf("%d runs of %d, %+v", n, due, at)
		}
	})
}

// Each occurrence takes 3 s.
func TestCatchUpWaitsForTheLastOccurrence(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.report = func(context.Context) error {
			sleep(3 * time.Second)
			return nil
		}
		every := schedule.Schedule{Name: "reports", Every: 10 * time.Second, Message: buildReport{}, Missed: schedule.CatchUp}
		s.start(every)
		s.after(5 * time.Second)
		s.stop()
		s.after(100 * time.Second)
		s.start(every)
		s.after(2 * time.Minute)
		for i, run := range s.runs {
			if run.Due.Sub(s.started) != time.Duration(i+1)*10*time.Second || i > 0 && s.times()[i]-s.times()[i-1] < 3*time.Second {
				t.Fatalf("runs %+v at %v", s.runs, s.times())
			}
		}
		if at := s.snapshot().Schedules[0]; at.Skipped != 0 || at.Missed != 0 || len(s.runs) < 20 {
			t.Errorf("%d runs, %+v", len(s.runs), at)
		}
	})
}

// The clock of the process is a minute ahead when the first run of Inspector.Run begins. The second
// holds up an occurrence.
func TestASkippedOccurrenceReplacesNoNewerOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &machine{Transport: &inmemory.Transport{}}
		s := &shop{t: t, broker: &inmemory.Transport{}, db: db, started: time.Now()}
		s.broker.CreateQueues("error")
		s.report = func(context.Context) error {
			if len(s.times()) == 2 {
				sleep(20 * time.Second)
			}
			return nil
		}
		s.start(schedule.Schedule{Name: "reports", Every: 10 * time.Second, Message: buildReport{}})
		s.after(2 * time.Second)
		db.step(time.Minute, 0)
		s.runNow()
		s.after(time.Second)
		db.step(0, 0)
		s.runNow()
		s.after(10 * time.Second)
		if at := s.snapshot().Schedules[0]; at.Skipped != 1 || at.Last.Job != s.run(0).JobID || at.Last.Due.Sub(s.started) < time.Minute {
			t.Errorf("%+v", at)
		}
		s.after(10 * time.Second)
		s.stop()
	})
}
