package schedule_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/schedule"
	"github.com/holdfast-go/holdfast/transport"
)

// hourly is a schedule whose occurrence is lost.
var hourly = schedule.Schedule{Name: "reports", Every: time.Hour, Message: buildReport{}}

// loseRunning starts the endpoint, ends the process in the first run of a schedule, and empties the
// queue. The endpoint does not run then.
func (s *shop) loseRunning(of schedule.Schedule) (id string) {
	s.t.Helper()
	s.report = func(ctx context.Context) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	s.start(of)
	s.after(max(of.Every, of.After))
	s.stop()
	s.stop = nil
	if n := s.purge(); n != 1 || len(s.runs) != 1 {
		s.t.Fatalf("%d runs, and %d messages in the queue", len(s.runs), n)
	}
	s.report = nil
	return s.runs[0].JobID
}

// purge removes the messages from the endpoint's queue.
func (s *shop) purge() int64 {
	s.t.Helper()
	conn, err := s.broker.Open(s.t.Context(), transport.Env{Endpoint: "tool"})
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	n, err := conn.(transport.Purger).Purge(s.t.Context(), "billing")
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// changeJob changes members of the record of a job that has not ended.
func (s *shop) changeJob(id string, members map[string]any) {
	s.t.Helper()
	s.change(saga.ID("billing", "holdfast.jobs", id), nil, func(r *transport.Record) { r.State = s.changed(r.State, members) })
}

// changed returns a JSON object with other members. A nil value removes a member.
func (s *shop) changed(text []byte, members map[string]any) []byte {
	s.t.Helper()
	all := map[string]any{}
	if err := json.Unmarshal(text, &all); err != nil {
		s.t.Fatal(err)
	}
	for name, value := range members {
		if value == nil {
			delete(all, name)
			continue
		}
		all[name] = value
	}
	text, err := json.Marshal(all)
	if err != nil {
		s.t.Fatal(err)
	}
	return text
}

func TestARunningAttemptGivesSigns(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.invoice = func(ctx context.Context) error {
			select {
			case <-time.After(time.Hour):
				return nil
			case <-ctx.Done():
				<-time.After(20 * time.Minute) // an attempt that does not end at once when the job is cancelled
				return errors.New("cancelled")
			}
		}
		s.start()
		id := s.enqueueInHandler("42")
		for range 30 {
			s.after(time.Minute)
			if job := s.job(id); job.Status != schedule.Running || job.Renewed.IsZero() || time.Since(job.Renewed) > 66*time.Second {
				t.Fatalf("at %v: %+v", time.Since(s.started), job)
			}
		}
		for range 2 { // the attempt gives signs, so the second call waits for the attempt too
			if cancelled, err := s.inspector().Cancel(t.Context(), id); !cancelled || err != nil {
				t.Fatal(cancelled, err)
			}
			s.after(15 * time.Minute)
			if len(s.job(id).History) != 1 {
				t.Errorf("%+v", s.job(id))
			}
			if job := s.job(id); job.Status == schedule.Running && time.Since(job.Renewed) > 66*time.Second {
				t.Errorf("%+v", job)
			}
			if s.job(id).Status.Ended() {
				break
			}
		}
		if job := s.job(id); job.Status != schedule.Cancelled || !job.Renewed.IsZero() || len(s.runs) != 1 {
			t.Errorf("%d runs, %+v", len(s.runs), job)
		}
	})
}

func TestASilentJobIsCancelledAtOnce(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		id := s.loseRunning(hourly)
		s.start(hourly)
		if cancelled, err := s.inspector().Cancel(t.Context(), id); !cancelled || err != nil {
			t.Fatal(cancelled, err)
		}
		s.after(time.Second)
		if job := s.job(id); job.Status != schedule.Running { // its attempt may run
			t.Errorf("%+v", job)
		}
		s.after(11 * time.Minute)
		if cancelled, err := s.inspector().Cancel(t.Context(), id); !cancelled || err != nil {
			t.Fatal(cancelled, err)
		}
		if job := s.job(id); job.Status != schedule.Cancelled || job.History[0].Outcome != schedule.AttemptInterrupted {
			t.Errorf("%+v", job)
		}
		s.after(time.Hour)
		if n := len(s.times()); n != 2 {
			t.Errorf("%d runs, want that of the next occurrence too", n)
		}
	})
}

// An attempt of an older version gives no signs: a missing sign says nothing.
func TestAnAttemptOfAnOlderVersionIsNotSilent(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		id := s.loseRunning(hourly)
		s.changeJob(id, map[string]any{"renewed": nil})
		s.start(hourly)
		s.after(10 * time.Hour)
		if cancelled, err := s.inspector().Cancel(t.Context(), id); !cancelled || err != nil {
			t.Fatal(cancelled, err)
		}
		if job := s.job(id); job.Status != schedule.Running || job.CancelRequested.IsZero() || len(s.runs) != 1 {
			t.Errorf("%d runs, %+v", len(s.runs), job)
		}
	})
}

// Occurrences are skipped behind a job that runs for four intervals.
func TestSkippedOccurrencesAreAWarning(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.report = func(context.Context) error {
			if len(s.times()) == 1 {
				sleep(265 * time.Minute)
			}
			return nil
		}
		s.start(hourly)
		s.after(3*time.Hour + 10*time.Minute) // two are skipped
		if at := s.snapshot().Schedules[0]; at.Skipped != 2 || at.Warning != "" {
			t.Errorf("%+v", at)
		}
		s.after(time.Hour)
		at := s.snapshot().Schedules[0]
		if want := "the last 3 occurrences were skipped, because job " + at.Current; at.Current == "" || !strings.Contains(at.Warning, want) {
			t.Errorf("%+v, want %q", at, want)
		}
		if warnings := s.endpoint.Health().Warnings; len(warnings) != 1 || warnings[0] != at.Warning {
			t.Errorf("warnings of the endpoint: %q", warnings)
		}
		if h := s.endpoint.Health(); !h.Ready {
			t.Errorf("%+v", h)
		}
		s.after(2 * time.Hour)
		if at := s.snapshot().Schedules[0]; at.Warning != "" || len(s.endpoint.Health().Warnings) != 0 {
			t.Errorf("after the end of the job: %+v, %q", at, s.endpoint.Health().Warnings)
		}
	})
}
