package schedule_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/schedule"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

func seconds(all ...int) []time.Duration {
	ds := make([]time.Duration, len(all))
	for i, n := range all {
		ds[i] = time.Duration(n) * time.Second
	}
	return ds
}

func TestAnIntervalIsKept(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(schedule.Schedule{Name: "reports", Every: 10 * time.Second, Message: buildReport{}})
		s.after(35 * time.Second)
		if diff := cmp.Diff(seconds(10, 20, 30), s.times()); diff != "" {
			t.Error(diff)
		}
		at := s.snapshot().Schedules[0]
		if at.Last.Status != schedule.Succeeded || at.Next.Sub(s.started).Round(time.Second) != 40*time.Second {
			t.Errorf("%+v", at)
		}
		for _, run := range s.runs {
			if job := s.job(run.JobID); job.Status != schedule.Succeeded || job.Attempt != 1 || job.Schedule != "reports" {
				t.Errorf("%+v", job)
			}
		}
	})
}

func TestCronTimesAreKept(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) { // bubbles begin at midnight UTC
		s.start(schedule.Schedule{Name: "reports", Cron: "*/2 * * * *", Message: buildReport{}})
		s.after(5 * time.Minute)
		if diff := cmp.Diff(seconds(120, 240), s.times()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAfterCountsFromTheEndOfARun(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.report = func(context.Context) error {
			sleep(7 * time.Second)
			return nil
		}
		s.start(schedule.Schedule{Name: "reports", After: 10 * time.Second, Message: buildReport{}})
		s.after(50 * time.Second)
		if diff := cmp.Diff(seconds(10, 27, 44), s.times()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAnOverlapIsSkipped(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.report = func(context.Context) error {
			sleep(15 * time.Second)
			return nil
		}
		s.start(schedule.Schedule{Name: "reports", Every: 10 * time.Second, Message: buildReport{}})
		s.after(59 * time.Second)
		if diff := cmp.Diff(seconds(10, 30, 50), s.times()); diff != "" {
			t.Error(diff)
		}
		if at := s.snapshot().Schedules[0]; at.Skipped != 2 {
			t.Errorf("%+v", at)
		}
	})
}

func TestAnOverlapIsAllowed(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.report = func(context.Context) error {
			sleep(15 * time.Second)
			return nil
		}
		s.start(schedule.Schedule{
			Name: "reports", Every: 10 * time.Second, Message: buildReport{}, Overlap: schedule.AllowOverlap,
		})
		s.after(35 * time.Second)
		if diff := cmp.Diff(seconds(10, 20, 30), s.times()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestMissedOccurrences(t *testing.T) {
	for _, test := range []struct {
		missed         schedule.Missed
		first          time.Duration // run after the pause
		runs, uncalled int
	}{
		{schedule.RunOnce, 105 * time.Second, 3, 8},
		{schedule.SkipMissed, 110 * time.Second, 2, 9},
		{schedule.CatchUp, 105 * time.Second, 11, 0},
	} {
		t.Run(test.missed.String(), func(t *testing.T) {
			inEachMode(t, func(t *testing.T, s *shop) {
				every := schedule.Schedule{Name: "reports", Every: 10 * time.Second, Message: buildReport{}, Missed: test.missed}
				s.start(every)
				s.after(15 * time.Second)
				s.stop()
				s.after(90 * time.Second) // 20 to 100 are missed
				s.start(every)
				s.after(14 * time.Second)
				got := s.times()
				if len(got) != test.runs || got[1] != test.first {
					t.Errorf("runs at %v, want %d, the second at %v", got, test.runs, test.first)
				}
				for i, run := range s.runs[1:] {
					if !run.Due.After(s.runs[i].Due) {
						t.Errorf("due times out of order: %v", s.runs)
					}
				}
				if at := s.snapshot().Schedules[0]; at.Missed != test.uncalled {
					t.Errorf("%+v", at)
				}
			})
		})
	}
}

func TestAChangedScheduleHasNewTimes(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(schedule.Schedule{Name: "reports", Every: time.Hour, Message: buildReport{}})
		s.after(time.Minute)
		s.stop()
		s.start(schedule.Schedule{Name: "reports", Every: 10 * time.Second, Message: buildReport{}})
		s.after(25 * time.Second)
		if diff := cmp.Diff(seconds(70, 80), s.times()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestARemovedScheduleIsForgotten(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(schedule.Schedule{Name: "reports", Every: 10 * time.Second, Message: buildReport{}})
		s.after(15 * time.Second)
		s.stop()
		s.start(schedule.Schedule{Name: "other", Every: 24 * time.Hour, Message: buildReport{}})
		s.after(time.Hour)
		if n := len(s.snapshot().Schedules); n != 2 {
			t.Errorf("%d schedules after an hour", n)
		}
		s.after(30 * time.Hour)
		if all := s.snapshot().Schedules; len(all) != 1 || all[0].Name != "other" {
			t.Errorf("%+v", all)
		}
		if diff := cmp.Diff(10*time.Second, s.times()[0]); diff != "" || len(s.times()) != 2 {
			t.Error(diff, s.times())
		}
	})
}

func TestAPausedScheduleRunsNothing(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(schedule.Schedule{Name: "reports", Every: 10 * time.Second, Message: buildReport{}})
		s.after(15 * time.Second)
		if err := s.inspector().SetState(t.Context(), "reports", schedule.Paused); err != nil {
			t.Fatal(err)
		}
		s.after(30 * time.Second)
		if at := s.snapshot().Schedules[0]; at.State != schedule.Paused || at.Paused != 3 {
			t.Errorf("%+v", at)
		}
		if err := s.inspector().SetState(t.Context(), "reports", schedule.Active); err != nil {
			t.Fatal(err)
		}
		s.after(10 * time.Second)
		if diff := cmp.Diff(seconds(10, 50), s.times()); diff != "" {
			t.Error(diff)
		}
		if err := s.inspector().SetState(t.Context(), "none", schedule.Active); !errors.Is(err, schedule.ErrUnknownSchedule) {
			t.Errorf("a schedule that does not exist: %v", err)
		}
	})
}

func TestRunStartsAnOccurrenceNow(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(schedule.Schedule{Name: "reports", Every: 10 * time.Second, Message: buildReport{}})
		s.after(4 * time.Second)
		if err := s.inspector().Run(t.Context(), "reports"); err != nil {
			t.Fatal(err)
		}
		s.after(8 * time.Second)
		if diff := cmp.Diff(2, len(s.times())); diff != "" || s.times()[1] != 10*time.Second {
			t.Error(diff, s.times())
		}
	})
}

// The clock of the process is ahead of the clock of the database from the first run to the second.
func TestAfterIsLaterWhenTheClockIsSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &machine{Transport: &inmemory.Transport{}}
		s := &shop{t: t, broker: &inmemory.Transport{}, db: db, started: time.Now()}
		s.broker.CreateQueues("error")
		steps := []time.Duration{10 * time.Minute, 0}
		s.report = func(context.Context) error {
			if len(steps) > 0 {
				db.step(steps[0], 0)
				steps = steps[1:]
			}
			return nil
		}
		s.start(schedule.Schedule{Name: "reports", After: 30 * time.Second, Message: buildReport{}})
		s.after(12 * time.Minute)
		s.stop()
		if len(s.runs) < 3 {
			t.Fatalf("runs %+v", s.runs)
		}
		for i, run := range s.runs[1:] {
			if last := s.runs[i].Due; !run.Due.After(last) {
				t.Errorf("run %d is due at %v, and the one before at %v", i+2, run.Due, last)
			}
		}
	})
}
