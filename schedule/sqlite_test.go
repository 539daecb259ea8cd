package schedule_test

import (
	"context"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/schedule"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// often is due soon: each minute costs many looks at the file.
var often = schedule.Schedule{Name: "reports", Every: 4 * time.Minute, Message: buildReport{}}

// onSQLite runs f with an outbox in a file, in a bubble.
func onSQLite(t *testing.T, f func(t *testing.T, s *shop)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "jobs.db")
	synctest.Test(t, func(t *testing.T) {
		s := &shop{t: t, broker: &inmemory.Transport{}, db: &sqlite.Transport{Path: path, Relaxed: true}, started: time.Now()}
		s.broker.CreateQueues("error")
		f(t, s)
		s.stop()
	})
}

// The lease of a row of the outbox counts.
func TestALostOccurrenceIsFoundOnSQLite(t *testing.T) {
	onSQLite(t, func(t *testing.T, s *shop) {
		s.lose = 1
		s.start(often)
		s.after(5 * time.Minute)
		id := s.snapshot().Schedules[0].Current
		s.after(17 * time.Minute)
		if job := s.job(id); job.Status != schedule.Succeeded || len(s.sentTimes(id)) != 2 {
			t.Errorf("sent at %v, %+v", s.sentTimes(id), job)
		}
	})
}

func TestALongJobIsNotLostOnSQLite(t *testing.T) {
	onSQLite(t, func(t *testing.T, s *shop) {
		s.report = func(context.Context) error {
			sleep(29 * time.Minute)
			return nil
		}
		s.start(often)
		s.after(30 * time.Minute)
		id := s.snapshot().Schedules[0].Current
		if job := s.job(id); job.Status != schedule.Running || time.Since(job.Renewed) > 66*time.Second {
			t.Errorf("%+v", job)
		}
		s.after(4 * time.Minute)
		if job := s.job(id); job.Status != schedule.Succeeded || job.Attempt != 1 || len(s.sentTimes(id)) != 1 {
			t.Errorf("sent at %v, %+v", s.sentTimes(id), job)
		}
	})
}

func TestARestartOnSQLiteIsUndone(t *testing.T) {
	onSQLite(t, func(t *testing.T, s *shop) {
		s.start(secondVersion)
		s.after(time.Minute)
		old := s.another()
		old.start(firstVersion)
		s.after(6 * time.Minute)
		s.wantTimes("with the restarted process", oldTimes)
		old.stop()
		s.after(6 * time.Minute)
		s.wantTimes("without the process", newTimes)
	})
}
